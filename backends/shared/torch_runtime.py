"""TorchRuntime: the runtime interface through torch alone, where no bindings of the device's own are installed.

It copies to and from memory that it allocated itself; tensors of others go by torch's own copies (``addresses``).
"""

from __future__ import annotations

import bisect
import itertools
from typing import Any

from slotline.backends.shared.torch_tensors import TorchTensors
from slotline.core.errors import DeviceError
from slotline.core.host_memory import host_bytes
from slotline.core.runtime import Copy, Runtime


class TorchRuntime(Runtime):
    """Streams, events and memory of ``tensors``' device."""

    addresses = False

    def __init__(self, tensors: TorchTensors) -> None:
        self.tensors, self.torch, self.module = tensors, tensors.torch, tensors.module
        self._numbers = itertools.count(1)
        self._events: dict[int, Any] = {}
        self._own_streams: dict[int, Any] = {}
        self._bases: list[int] = []
        self._memory: dict[int, Any] = {}

    # -- streams

    def current_stream(self) -> int:
        return self.tensors.current_stream()

    def create_stream(self) -> int:
        stream = self.module.Stream(self.tensors.device)
        handle = self.tensors._remember(stream)
        self._own_streams[handle] = stream
        return handle

    def destroy_stream(self, stream: int) -> None:
        self._own_streams.pop(stream, None)  # torch takes its streams from a pool and gives none back

    def is_capturing(self, stream: int) -> bool:
        ask = getattr(self.module, "is_current_stream_capturing", None)
        return bool(ask()) if ask is not None else False

    def synchronize(self) -> None:
        self.module.synchronize(self.tensors.device)

    # -- events

    def create_event(self) -> int:
        handle = next(self._numbers)
        self._events[handle] = self.module.Event()
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
        return self._keep(self.torch.empty(nbytes, dtype=self.torch.uint8, device=self.tensors.device))

    def allocate_host(self, nbytes: int) -> int:
        try:
            tensor = self.torch.empty(nbytes, dtype=self.torch.uint8, pin_memory=True)
        except (RuntimeError, NotImplementedError) as error:
            raise DeviceError("torch", "page-locked memory", None, None, str(error).splitlines()[0]) from error
        return self._keep(tensor)

    def _keep(self, tensor: Any) -> int:
        base = int(tensor.data_ptr())
        bisect.insort(self._bases, base)
        self._memory[base] = tensor
        return base

    def free(self, address: int) -> None:
        if address not in self._memory:
            raise DeviceError("torch", "free", None, None, f"nothing was allocated at {address:#x}")
        self.synchronize()  # torch would give it out again while another stream still uses it
        del self._memory[address]
        self._bases.remove(address)

    free_host = free

    def tensor_at(self, address: int, nbytes: int) -> Any:
        """Own memory at ``address`` as a uint8 tensor; else host memory at that address."""
        at = bisect.bisect_right(self._bases, address) - 1
        if at >= 0:
            base = self._bases[at]
            tensor = self._memory[base]
            if address + nbytes <= base + tensor.numel():
                return tensor[address - base : address - base + nbytes]
        return self.torch.from_numpy(host_bytes(address, nbytes))

    # -- copies

    def copy(self, dst: int, src: int, nbytes: int, way: Copy, stream: int) -> None:
        with self.tensors.running(stream):
            self.tensor_at(dst, nbytes).copy_(self.tensor_at(src, nbytes), non_blocking=True)

    def copy_2d(
        self, dst: int, dst_pitch: int, src: int, src_pitch: int, width: int, height: int, way: Copy, stream: int
    ) -> None:
        into = self.tensor_at(dst, dst_pitch * (height - 1) + width).as_strided((height, width), (dst_pitch, 1))
        out_of = self.tensor_at(src, src_pitch * (height - 1) + width).as_strided((height, width), (src_pitch, 1))
        with self.tensors.running(stream):
            into.copy_(out_of, non_blocking=True)
