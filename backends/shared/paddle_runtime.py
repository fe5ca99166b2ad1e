"""PaddleRuntime: the runtime interface through paddle alone, where no bindings of the device's own are installed.

It copies to and from memory that it allocated itself; tensors of others go by paddle's own copies (``addresses``).
"""

from __future__ import annotations

import bisect
import itertools
from typing import Any

from slotline.backends.shared.paddle_tensors import PaddleTensors
from slotline.compat import paddle as compat
from slotline.core.errors import DeviceError
from slotline.core.host_memory import host_bytes
from slotline.core.runtime import Copy, Runtime


class PaddleRuntime(Runtime):
    """Streams, events and memory of ``tensors``' device."""

    addresses = False

    def __init__(self, tensors: PaddleTensors) -> None:
        self.tensors, self.paddle = tensors, tensors.paddle
        self._numbers = itertools.count(1)
        self._events: dict[int, Any] = {}
        self._bases: list[int] = []
        self._memory: dict[int, Any] = {}

    # -- streams

    def current_stream(self) -> int:
        return self.tensors.current_stream()

    def create_stream(self) -> int:
        return self.tensors._remember(self.paddle.device.Stream(self.tensors.device))

    def destroy_stream(self, stream: int) -> None:
        self.tensors._streams().pop(stream, None)

    def is_capturing(self, stream: int) -> bool:
        return False

    def synchronize(self) -> None:
        self.paddle.device.synchronize(self.tensors.device)

    # -- events

    def create_event(self) -> int:
        handle = next(self._numbers)
        with self.tensors.running(self.current_stream()):  # an event belongs to the current device
            self._events[handle] = compat.make_event(self.tensors.device)
        return handle

    def destroy_event(self, event: int) -> None:
        del self._events[event]

    def record(self, event: int, stream: int) -> None:
        self._events[event].record(self.tensors.stream_object(stream))

    def wait(self, stream: int, event: int) -> None:
        self.tensors.stream_object(stream).wait_event(self._events[event])

    def is_done(self, event: int) -> bool:
        return bool(self._events[event].query())

    def sync_event(self, event: int) -> None:
        self._events[event].synchronize()

    # -- memory

    def allocate(self, nbytes: int) -> int:
        with self.tensors.running(self.current_stream()):
            tensor = self.tensors.empty((nbytes,), "uint8")
        base = int(tensor.data_ptr())
        bisect.insort(self._bases, base)
        self._memory[base] = tensor
        return base

    def allocate_host(self, nbytes: int) -> int:
        # A pinned tensor of paddle's can turn into one of the device by a copy into it, so none is made here.
        raise DeviceError("paddle", "page-locked memory", None, None, "paddle hands out none that stays on the host")

    def free(self, address: int) -> None:
        if address not in self._memory:
            raise DeviceError("paddle", "free", None, None, f"nothing was allocated at {address:#x}")
        self.synchronize()
        del self._memory[address]
        self._bases.remove(address)

    free_host = free

    def tensor_at(self, address: int, nbytes: int) -> Any:
        """Own memory at ``address`` as a uint8 tensor; else host memory at that address."""
        at = bisect.bisect_right(self._bases, address) - 1
        if at >= 0:
            base = self._bases[at]
            tensor = self._memory[base]
            if address + nbytes <= base + tensor.size:
                return tensor[address - base : address - base + nbytes]
        return compat.from_numpy(host_bytes(address, nbytes))

    # -- copies

    def copy(self, dst: int, src: int, nbytes: int, way: Copy, stream: int) -> None:
        with self.tensors.running(stream):
            self.tensor_at(dst, nbytes).copy_(self.tensor_at(src, nbytes), False)

    def copy_2d(
        self, dst: int, dst_pitch: int, src: int, src_pitch: int, width: int, height: int, way: Copy, stream: int
    ) -> None:
        for row in range(height):
            self.copy(dst + row * dst_pitch, src + row * src_pitch, width, way, stream)
