"""SimRuntime: the runtime interface over a simulated machine."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from slotline.backends.sim.access import Access
from slotline.backends.sim.machine import Machine
from slotline.backends.sim.memory import POISON
from slotline.core.errors import DeviceError
from slotline.core.host_memory import host_bytes
from slotline.core.runtime import Copy, Runtime


class SimRuntime(Runtime):
    """Streams, events and copies of a ``Machine``. The current stream is each thread's own, 0 at first."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._current = threading.local()
        self._in_flight: list[tuple[int, int]] = []
        """Pageable memory that queued copies touch, from where to where."""

    def current_stream(self) -> int:
        return getattr(self._current, "stream", 0)

    @contextmanager
    def on_stream(self, stream: int) -> Iterator[int]:
        """Inside, ``stream`` is this thread's current stream."""
        self.machine.require_stream(stream)
        before = self.current_stream()
        self._current.stream = stream
        try:
            yield stream
        finally:
            self._current.stream = before

    def create_stream(self) -> int:
        return self.machine.add_stream()

    def destroy_stream(self, stream: int) -> None:
        self.machine.remove_stream(stream)

    def is_capturing(self, stream: int) -> bool:
        self.machine.require_stream(stream)
        return False

    def synchronize(self) -> None:
        self.machine.synchronize()

    def create_event(self) -> int:
        return self.machine.add_event()

    def destroy_event(self, event: int) -> None:
        self.machine.remove_event(event)

    def record(self, event: int, stream: int) -> None:
        self.machine.record(event, stream)

    def wait(self, stream: int, event: int) -> None:
        self.machine.wait(stream, event)

    def is_done(self, event: int) -> bool:
        return self.machine.is_done(event)

    def sync_event(self, event: int) -> None:
        self.machine.sync_event(event)

    # -- memory

    def allocate(self, nbytes: int) -> int:
        return self._allocate(nbytes, "device", "device memory")

    def allocate_host(self, nbytes: int) -> int:
        return self._allocate(nbytes, "host", "page-locked host memory")

    def _allocate(self, nbytes: int, kind: str, name: str) -> int:
        with self.machine.lock:
            return self.machine.memory.allocate(nbytes, kind, name, held=True).base

    def free(self, address: int) -> None:
        with self.machine.lock:
            self.machine.synchronize()  # as drivers do
            try:
                self.machine.memory.free(address)
            except KeyError:
                raise DeviceError("sim", "free", 1, "invalid value", f"nothing was allocated at {address:#x}") from None

    free_host = free

    def host_written(self, address: int, nbytes: int) -> None:
        self.machine.host_access(address, nbytes, writing=True)

    def host_read(self, address: int, nbytes: int) -> None:
        self.machine.host_access(address, nbytes, writing=False)

    def released(self, address: int, nbytes: int) -> None:
        self.machine.released(address, nbytes)

    # -- copies

    def copy(self, dst: int, src: int, nbytes: int, way: Copy, stream: int) -> None:
        self.copy_2d(dst, nbytes, src, nbytes, nbytes, 1, way, stream)

    def copy_2d(
        self, dst: int, dst_pitch: int, src: int, src_pitch: int, width: int, height: int, way: Copy, stream: int
    ) -> None:
        if min(dst_pitch, src_pitch) < width:
            pitch = min(dst_pitch, src_pitch)
            raise DeviceError("sim", "copy_2d", 12, "invalid pitch", f"pitch {pitch} is less than the width {width}")
        if not width or not height:
            return
        machine = self.machine
        with machine.lock:
            into, to = self._cells(dst, dst_pitch, width, height, on_device=way != Copy.DEVICE_TO_HOST)
            out_of, read = self._cells(src, src_pitch, width, height, on_device=way != Copy.HOST_TO_DEVICE)
            pageable = [r for r, known in ((_range(into), to), (_range(out_of), read)) if not known]

            def run() -> None:
                # The source is read now, when the copy runs: page-locked or not, whoever changed it before has lost.
                np.copyto(into, out_of.copy())
                for memory in pageable:
                    self._in_flight.remove(memory)

            if way == Copy.DEVICE_TO_HOST and self._is_idle(into, to):
                into[...] = POISON  # nothing may be seen there before the copy has landed
            machine.require_stream(stream)
            self._in_flight += pageable
            machine.enqueue(stream, f"a copy {_WAYS[way]}", run, read, to)

    def _is_idle(self, cells: NDArray[np.uint8], accesses: list[Access]) -> bool:
        """Nothing that is queued touches the host memory, as far as the host knows."""
        if accesses:
            return not any(self.machine.clashes(access) for access in accesses)
        low, high = _range(cells)
        return all(end <= low or high <= start for start, end in self._in_flight)

    def _cells(
        self, address: int, pitch: int, width: int, height: int, *, on_device: bool
    ) -> tuple[NDArray[np.uint8], list[Access]]:
        allocation = self.machine.memory.find(address)
        shape, strides = (height, width), (pitch, 1)
        if allocation is None:
            if on_device:
                self.machine.region(address, shape, strides, 1)  # raises
            flat = host_bytes(address, pitch * (height - 1) + width)
            return np.lib.stride_tricks.as_strided(flat, shape, strides), []
        access = self.machine.region(address, shape, strides, 1)
        flat = allocation.bytes[access.offset :]
        return np.lib.stride_tricks.as_strided(flat, shape, strides), [access]


def _range(cells: NDArray[np.uint8]) -> tuple[int, int]:
    start = cells.ctypes.data
    return start, start + (cells.shape[0] - 1) * cells.strides[0] + cells.shape[1]


_WAYS = {
    Copy.HOST_TO_DEVICE: "from the host to the device",
    Copy.DEVICE_TO_HOST: "from the device to the host",
    Copy.DEVICE_TO_DEVICE: "within the device",
}
