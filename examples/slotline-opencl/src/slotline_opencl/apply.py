"""OpenclApplier: a packet's image applied by one kernel over (field, offset) (rules B10, I4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pyopencl as cl
from numpy.typing import NDArray

from slotline.device import Applier, BufferLayout, Image, targets
from slotline_opencl.failures import native
from slotline_opencl.kernels import MEMORIES, Kernels
from slotline_opencl.memory import Memory
from slotline_opencl.runtime import OpenclRuntime
from slotline_opencl.tensors import OpenclTensors


class Bound:
    """The buffers of a batch as the kernel wants them: the table, and a kernel for each 16 memory objects.

    A layout that slotline allocated is one object. An engine's own tensors may be many; then a packet takes a launch
    for each 16 of them that it writes into.
    """

    def __init__(self, kernels: Kernels, context: cl.Context, table: NDArray[np.int64], buffers: Sequence[Any]) -> None:
        memories: list[Memory] = []
        owners = np.full(len(buffers), -1, np.int32)
        for index, buffer in enumerate(buffers):
            if buffer is None:
                continue
            if buffer.memory not in memories:
                memories.append(buffer.memory)
            owners[index] = memories.index(buffer.memory)
            table[index, 0] = buffer.offset
        self.memories = memories  # the kernels' arguments do not keep them
        self.groups = np.where(owners < 0, -1, owners // MEMORIES)
        flags = cl.mem_flags.READ_ONLY | cl.mem_flags.COPY_HOST_PTR
        with native("clCreateBuffer", "the destination table"):
            self._table = cl.Buffer(context, flags, hostbuf=table)
            self._owners = cl.Buffer(context, flags, hostbuf=owners)
        self.kernels = [self._kernel(kernels, first) for first in range(0, len(memories), MEMORIES)]

    def _kernel(self, kernels: Kernels, first: int) -> cl.Kernel:
        some = [m.buffer for m in self.memories[first : first + MEMORIES]]
        kernel = kernels.apply()
        with native("clSetKernelArg"):
            for index, value in enumerate((self._table, self._owners, np.int32(first)), 5):
                kernel.set_arg(index, value)
            for index, buffer in enumerate(some + some[:1] * (MEMORIES - len(some)), 8):
                kernel.set_arg(index, buffer)
        return kernel


class OpenclApplier(Applier):
    """One launch for a packet."""

    name = "opencl"
    packed = True

    def __init__(self, runtime: OpenclRuntime, kernels: Kernels, tensors: OpenclTensors) -> None:
        self._runtime, self._kernels, self._tensors = runtime, kernels, tensors

    def bind(self, layout: BufferLayout, buffers: Sequence[Any]) -> Bound:
        self._runtime.require_open()
        infos = [None if b is None else self._tensors.inspect(b) for b in buffers]
        return Bound(self._kernels, self._runtime.context, targets(layout, infos), buffers)

    def run(self, image: Image, address: int, bound: Bound, stream: int) -> int:
        meta = image.meta
        if not meta.programs:
            return 0
        ring, at = self._runtime.space.find(address)
        queue, threads = self._runtime.lane(stream).queue, self._kernels.threads
        numbers = [np.int64(n) for n in (at, meta.numbers_at, meta.payload_at, meta.work_at)]
        groups = [0] if len(bound.kernels) == 1 else sorted({int(bound.groups[s.field]) for s in image.packet.segments})
        for group in groups:
            kernel = bound.kernels[group]
            with self._kernels.lock, native("clEnqueueNDRangeKernel"):
                for index, value in enumerate((ring.buffer, *numbers)):
                    kernel.set_arg(index, value)
                cl.enqueue_nd_range_kernel(queue, kernel, (meta.programs * threads,), (threads,))
        return len(groups)
