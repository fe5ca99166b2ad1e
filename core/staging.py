"""Staging memory: what a write takes from the host until the device has read it (rules W4, W6).

A ring of one bound. Each block is held until the event of its write has passed, which is asked, never assumed.
"""

from __future__ import annotations

from collections import deque

import numpy as np
from numpy.typing import NDArray

from slotline.core.device import Event
from slotline.core.errors import DeviceError
from slotline.core.host_memory import host_bytes
from slotline.core.runtime import Copy, Runtime
from slotline.core.stats import Stats

ALIGNMENT = 256


class HostMemory:
    """Host memory for copies: page-locked where the device has it, else pageable."""

    def __init__(self, runtime: Runtime, nbytes: int, *, pinned: bool) -> None:
        self._runtime, self.pinned = runtime, pinned
        if pinned:
            self.address = runtime.allocate_host(nbytes)
            self.array = host_bytes(self.address, nbytes)
        else:
            whole = np.empty(nbytes + ALIGNMENT, np.uint8)
            skip = -whole.ctypes.data % ALIGNMENT
            self.array = whole[skip : skip + nbytes]
            self.address = self.array.ctypes.data

    def free(self) -> None:
        """Give it back; nothing queued may use it any more."""
        if self.pinned:
            self._runtime.free_host(self.address)


def staging_kind(runtime: Runtime) -> tuple[bool, str]:
    """Whether page-locked memory works here, found out by writing and reading back; and if not, why (the ladder)."""
    pattern = np.arange(1024, dtype=np.uint16).view(np.uint8)
    size = pattern.size
    try:
        memory = HostMemory(runtime, 2 * size, pinned=True)
    except DeviceError as error:
        return False, f"pageable, since {error}"
    stream, address = runtime.current_stream(), runtime.allocate(size)
    try:
        memory.array[:size], memory.array[size:] = pattern, 0
        runtime.copy(address, memory.address, size, Copy.HOST_TO_DEVICE, stream)
        runtime.copy(memory.address + size, address, size, Copy.DEVICE_TO_HOST, stream)
        runtime.synchronize()
        runtime.host_read(memory.address + size, size)
        if not np.array_equal(memory.array[size:], pattern):
            return False, "pageable, since page-locked memory did not come back as it was written"
        return True, "pinned, written and read back"
    except DeviceError as error:
        return False, f"pageable, since {error}"
    finally:
        memory.free()
        runtime.free(address)


class Block:
    """A part of the ring, held for one write."""

    __slots__ = ("address", "event", "nbytes", "offset", "stop", "view")

    def __init__(self, offset: int, stop: int, nbytes: int, address: int, view: NDArray[np.uint8]) -> None:
        self.offset, self.stop, self.nbytes, self.address, self.view = offset, stop, nbytes, address, view
        self.event: Event | None = None
        """The end of the write; None while it is being queued."""


class StagingRing:
    """``capacity`` bytes of host memory, given out in order and taken back in order.

    Not for several threads at once: the backend holds its lock from ``acquire`` to ``hold``.
    """

    def __init__(self, runtime: Runtime, capacity: int, *, pinned: bool) -> None:
        self.runtime, self.capacity, self.pinned = runtime, capacity, pinned
        self._memory: HostMemory | None = None
        self._held: deque[Block] = deque()
        self._next = 0

    def acquire(self, nbytes: int, operation: str, stats: Stats) -> Block:
        """``nbytes``, at most the capacity, for one write. Waits for the oldest only when there is no room (W6)."""
        if self._memory is None:
            self._memory = HostMemory(self.runtime, self.capacity, pinned=self.pinned)
        self.sweep()
        size = min(self.capacity, -(-nbytes // ALIGNMENT) * ALIGNMENT)
        while (offset := self._room(size)) is None:
            oldest = self._held[0]
            if oldest.event is not None and not oldest.event.is_done:
                stats.add("staging_waits", operation)
                oldest.event.sync()
            self._release()
        address = self._memory.address + offset
        self.runtime.host_written(address, nbytes)
        block = Block(offset, offset + size, nbytes, address, self._memory.array[offset : offset + nbytes])
        self._held.append(block)
        self._next = offset + size
        return block

    def hold(self, block: Block, event: Event) -> None:
        """``block`` is in use until ``event`` has passed."""
        block.event = event

    def give_up(self, block: Block) -> None:
        """``block`` was not used: its write failed before anything was queued."""
        self._held.remove(block)
        self._next = self._held[-1].stop if self._held else 0

    def sweep(self) -> None:
        """Take back, oldest first, the blocks whose event has passed."""
        while self._held and (event := self._held[0].event) is not None and event.is_done:
            self._release()

    def _release(self) -> None:
        block = self._held.popleft()
        self.runtime.released(block.address, block.nbytes)

    def _room(self, size: int) -> int | None:
        """Where ``size`` bytes fit in front of the oldest block that is held, or behind the newest."""
        if not self._held:
            return 0
        oldest, start = self._held[0].offset, self._next
        if start > oldest:  # free: [start, capacity) and [0, oldest)
            if start + size <= self.capacity:
                return start
            return 0 if size <= oldest else None
        return start if start + size <= oldest else None

    @property
    def blocks(self) -> int:
        """Blocks in use; 0 after a synchronisation."""
        self.sweep()
        return len(self._held)

    def close(self) -> None:
        """Give the memory back, once everything queued is done."""
        while self._held:
            event = self._held[0].event
            if event is not None:
                event.sync()
            self._release()
        if self._memory is not None:
            self._memory.free()
            self._memory = None


class LandingPool:
    """Host memory for copies from the device; a piece is used again once its result was taken."""

    def __init__(self, runtime: Runtime, *, pinned: bool) -> None:
        self.runtime, self.pinned = runtime, pinned
        self._free: dict[int, list[HostMemory]] = {}
        self._all: list[HostMemory] = []

    def take(self, nbytes: int) -> HostMemory:
        size = 1 << max(nbytes - 1, 4095).bit_length()
        free = self._free.get(size)
        if free:
            return free.pop()
        memory = HostMemory(self.runtime, size, pinned=self.pinned)
        self._all.append(memory)
        return memory

    def give_back(self, memory: HostMemory) -> None:
        self.runtime.released(memory.address, memory.array.nbytes)
        self._free.setdefault(memory.array.nbytes, []).append(memory)

    def close(self) -> None:
        for memory in self._all:
            memory.free()
        self._all, self._free = [], {}


__all__ = ["Block", "HostMemory", "LandingPool", "StagingRing", "staging_kind"]
