"""Transfers: what is on its way between the host and one device, and the memory that it needs until it is there.

Nothing here waits for queued work but ``Landing.array`` and, when the staging memory is used up, the ring (W6).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slotline.core.device import DONE, Download, Event
from slotline.core.errors import DeviceError
from slotline.core.image import Image
from slotline.core.runtime import Copy
from slotline.core.staging import Block, HostMemory, LandingPool, StagingRing
from slotline.core.stats import Stats
from slotline.core.streams import EventPool

Bytes = NDArray[np.uint8]


class Arrived:
    """Bytes on the device, at ``address``, for what is queued on the stream inside of ``Transfers.sent``."""

    def __init__(self, address: int) -> None:
        self.address = address
        self.event: Event = DONE
        """Behind the last use; known when the block is left."""


class Transfers:
    """The staging ring with its twin on the device, events, memory for results, and sources that are still read."""

    def __init__(
        self, events: EventPool, capacity: int, *, pinned: bool, own_stream: bool = True, waits: bool = False
    ) -> None:
        self.events, self.capacity = events, capacity
        runtime = self.runtime = events.runtime
        self.ring = StagingRing(runtime, capacity, pinned=pinned)
        self.landing = LandingPool(runtime, pinned=pinned)
        self.lock = threading.RLock()
        self._own_stream, self._waits = own_stream, waits
        self._copy_stream: int | None = None
        self._twin: int | None = None
        self._scratch: list[tuple[int, int, Event]] = []  # size, address, end of its last use
        self._retained: deque[tuple[Event, Any]] = deque()
        self._dropped: deque[tuple[Event, HostMemory]] = deque()  # results that nobody will take
        self.closed = False

    # -- to the device

    @contextmanager
    def sent(self, image: Image, stream: int, operation: str, stats: Stats) -> Iterator[Arrived]:
        """The image on the device, from its copy to the end of what is queued inside; one copy, or W6's split."""
        stats.add("bytes", operation, image.nbytes)
        with self.lock:
            if image.nbytes > self.capacity:
                whole = np.empty(image.nbytes, np.uint8)
                image.write_into(whole)
                with self._split(whole, stream, operation, stats) as arrived:
                    yield arrived
                return
            with self._staged(image.nbytes, operation, stats) as block:
                image.write_into(block.view)
                if self._twin is None:
                    self._twin = self.runtime.allocate(self.capacity)
                arrived = Arrived(self._twin + block.offset)
                self._send(arrived.address, block, stream, operation, stats)
                yield arrived
                arrived.event = self.events.record(stream)
                self.ring.hold(block, arrived.event)

    def put(self, data: Bytes, stream: int, operation: str, stats: Stats, queue: Callable[[int, Copy], None]) -> Event:
        """``data`` into a tensor: ``queue(address, way)`` queues the copy from where it is staged. Order of ``stream``.

        ``data`` may change when the call returns.
        """
        stats.add("bytes", operation, data.nbytes)
        with self.lock:
            if data.nbytes > self.capacity:
                with self._split(data, stream, operation, stats) as arrived:
                    queue(arrived.address, Copy.DEVICE_TO_DEVICE)
                return arrived.event
            with self._staged(data.nbytes, operation, stats) as block:
                block.view[:] = data
                self._count(operation, stats)
                queue(block.address, Copy.HOST_TO_DEVICE)
                event = self.events.record(stream)
                self.ring.hold(block, event)
                return event

    @contextmanager
    def _staged(self, nbytes: int, operation: str, stats: Stats) -> Iterator[Block]:
        """A block of the ring; if what is queued with it fails, it is free again once the device is done with it."""
        self.sweep()
        block = self.ring.acquire(nbytes, operation, stats)
        try:
            yield block
        except BaseException:
            with suppress(DeviceError):  # a lost device uses nothing any more; the first error is the one to see
                self.runtime.synchronize()
            self.ring.give_up(block)
            raise

    @contextmanager
    def _split(self, data: Bytes, stream: int, operation: str, stats: Stats) -> Iterator[Arrived]:
        """More bytes than the ring has, in as few copies as that allows, into memory of their own on the device."""
        address, size = self._take_scratch(data.nbytes)
        arrived = Arrived(address)
        try:
            for first in range(0, data.nbytes, self.capacity):
                piece = data[first : first + self.capacity]
                with self._staged(piece.nbytes, operation, stats) as block:
                    block.view[:] = piece
                    self._send(address + first, block, stream, operation, stats)
                    lane = stream if self._copy_stream is None else self._copy_stream
                    self.ring.hold(block, self.events.record(lane))
                if first:
                    stats.add("splits", operation)
            yield arrived
            arrived.event = self.events.record(stream)
        except BaseException:
            with suppress(DeviceError):
                self.runtime.synchronize()
            raise
        finally:
            self._scratch.append((size, address, arrived.event))

    def _send(self, address: int, block: Block, stream: int, operation: str, stats: Stats) -> None:
        """Queue the copy of ``block``, on the copy stream if there is one; ``stream`` goes on when it is there."""
        self._count(operation, stats)
        if self._own_stream and self._copy_stream is None:
            self._copy_stream = self.runtime.create_stream()
        lane = stream if self._copy_stream is None else self._copy_stream
        self.runtime.copy(address, block.address, block.nbytes, Copy.HOST_TO_DEVICE, lane)
        if lane != stream:
            self.events.record(lane).wait(stream)

    def _count(self, operation: str, stats: Stats) -> None:
        stats.add("transfers", operation)
        if self._waits:  # without async_upload a copy waits for queued work (B12)
            stats.add("host_synchronisations", operation)

    def _take_scratch(self, nbytes: int) -> tuple[int, int]:
        """Device memory of at least ``nbytes`` that nothing queued uses, as (address, size)."""
        size = 1 << max(nbytes - 1, 1).bit_length()
        for found in self._scratch:
            if found[0] >= size and found[2].is_done:
                self._scratch.remove(found)
                return found[1], found[0]
        return self.runtime.allocate(size), size

    # -- to the host

    def take(self, nbytes: int, stream: int, queue: Callable[[int], None]) -> Landing:
        """Bytes of a tensor: ``queue(address)`` queues their copies to the host memory there."""
        with self.lock:
            self.sweep()
            memory = self.landing.take(nbytes)
            try:
                queue(memory.address)
                return Landing(self, memory, nbytes, self.events.record(stream))
            except BaseException:
                with suppress(DeviceError):
                    self.runtime.synchronize()
                self.landing.give_back(memory)
                raise

    # -- what must live until it has been used

    def retain(self, event: Event, what: Any) -> None:
        """Keep ``what`` alive until ``event`` has passed."""
        with self.lock:
            self._retained.append((event, what))
            self.sweep()

    def sweep(self) -> None:
        """Let go, oldest first, of what has been used."""
        while self._retained and self._retained[0][0].is_done:
            self._retained.popleft()
        while self._dropped and self._dropped[0][0].is_done:
            self.landing.give_back(self._dropped.popleft()[1])

    def drop(self, event: Event, memory: HostMemory) -> None:
        """Take the memory of a result that nobody will take, once it has landed. From any thread, at any time."""
        self._dropped.append((event, memory))

    @property
    def retained(self) -> int:
        """Sources and staging blocks that the device may still read; 0 after a synchronisation."""
        with self.lock:
            self.sweep()
            return len(self._retained) + self.ring.blocks

    def close(self) -> None:
        """Wait for what is queued and give all memory, streams and events back. Once is enough."""
        with self.lock:
            if self.closed:
                return
            self.closed = True
            self.runtime.synchronize()
            self.sweep()
            self._retained.clear()
            self._dropped.clear()
            self.ring.close()
            self.landing.close()
            for _, address, _ in self._scratch:
                self.runtime.free(address)
            self._scratch = []
            if self._twin is not None:
                self.runtime.free(self._twin)
                self._twin = None
            self.events.close()
            if self._copy_stream is not None:
                self.runtime.destroy_stream(self._copy_stream)
                self._copy_stream = None


class Landing:
    """Bytes on their way to the host. Nothing of them can be seen before they are there."""

    def __init__(self, transfers: Transfers, memory: HostMemory, nbytes: int, event: Event) -> None:
        self._transfers, self._nbytes, self.event = transfers, nbytes, event
        self._memory: HostMemory | None = memory

    def bytes(self) -> Bytes:
        """A copy of them; waits for their event. Once only: the memory behind it is used again."""
        memory, transfers = self._memory, self._transfers
        assert memory is not None
        self.event.sync()
        with transfers.lock:
            if transfers.closed:
                raise DeviceError("backend", "fetch", None, None, "it was closed before this result was taken")
            transfers.runtime.host_read(memory.address, self._nbytes)
            found = memory.array[: self._nbytes].copy()
            self._memory = None
            transfers.landing.give_back(memory)
        return found

    def __del__(self) -> None:
        if self._memory is not None:
            self._transfers.drop(self.event, self._memory)


class Pending(Download):
    """A tensor's copy on its way to the host, as an array of its shape and dtype."""

    def __init__(self, landing: Landing, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self._landing, self._shape, self._dtype = landing, shape, dtype
        self._found: NDArray[Any] | None = None
        self._lock = threading.Lock()  # results may be taken from another thread (W10)

    @property
    def is_done(self) -> bool:
        return self._found is not None or self._landing.event.is_done

    def array(self) -> NDArray[Any]:
        with self._lock:
            if self._found is None:
                self._found = self._landing.bytes().view(self._dtype).reshape(self._shape)
            return self._found
