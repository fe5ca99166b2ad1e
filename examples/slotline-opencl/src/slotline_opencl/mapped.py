"""Host memory of the driver's choice: page-locked on every driver that knows such memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyopencl as cl
from numpy.typing import NDArray

from slotline_opencl.failures import native


class MappedMemory:
    """Memory objects of ``CL_MEM_ALLOC_HOST_PTR``, mapped for as long as they live, by their host address."""

    def __init__(self, context: cl.Context, device: cl.Device) -> None:
        self._context, self._device = context, device
        self._queue: cl.CommandQueue | None = None
        self._held: dict[int, tuple[cl.Buffer, NDArray[np.uint8]]] = {}

    def allocate(self, nbytes: int) -> int:
        """The address of ``nbytes`` bytes of host memory."""
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.ALLOC_HOST_PTR
        both, shape = cl.map_flags.READ | cl.map_flags.WRITE, (max(nbytes, 1),)
        with native("clEnqueueMapBuffer", f"{nbytes} bytes of host memory"):
            if self._queue is None:  # of its own: a mapping waits for what was queued before it
                self._queue = cl.CommandQueue(self._context, self._device)
            buffer = cl.Buffer(self._context, flags, shape[0])
            array, _ = cl.enqueue_map_buffer(self._queue, buffer, both, 0, shape, np.uint8, is_blocking=True)
        address = int(array.ctypes.data)
        self._held[address] = buffer, array
        return address

    def free(self, address: int) -> None:
        """Give it back; nothing queued may use it any more."""
        _, array = self._held.pop(address)
        base: Any = array.base
        while not isinstance(base, cl.MemoryMap):
            base = base.base
        with native("clEnqueueUnmapMemObject"):
            base.release()

    def __len__(self) -> int:
        return len(self._held)

    def close(self) -> None:
        """Give all of it back."""
        for address in list(self._held):
            self.free(address)
        self._queue = None
