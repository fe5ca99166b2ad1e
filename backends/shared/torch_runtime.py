"""TorchRuntime: the runtime interface through torch alone, where no bindings of the device's own are installed."""

from __future__ import annotations

from typing import Any

from slotline.backends.shared.framework_runtime import FrameworkRuntime
from slotline.backends.shared.torch_tensors import TorchTensors
from slotline.core.errors import DeviceError
from slotline.core.host_memory import host_bytes


class TorchRuntime(FrameworkRuntime):
    """Streams, events and memory of ``tensors``' device."""

    framework = "torch"

    def __init__(self, tensors: TorchTensors) -> None:
        super().__init__(tensors)
        self.torch, self.module, self.device = tensors.torch, tensors.module, tensors.device

    def create_stream(self) -> int:
        return self.tensors.streams.remember(self.module.Stream(self.device))

    def is_capturing(self, stream: int) -> bool:
        ask = getattr(self.module, "is_current_stream_capturing", None)
        if ask is None:
            return False
        with self.tensors.running(stream):
            return bool(ask())

    def synchronize(self) -> None:
        self.module.synchronize(self.device)

    def _event(self) -> Any:
        return self.module.Event()

    def _bytes(self, nbytes: int) -> Any:
        return self.torch.empty(nbytes, dtype=self.torch.uint8, device=self.device)

    def allocate_host(self, nbytes: int) -> int:
        try:
            return self._keep(self.torch.empty(nbytes, dtype=self.torch.uint8, pin_memory=True))
        except (RuntimeError, NotImplementedError) as error:
            raise DeviceError("torch", "page-locked memory", None, None, str(error).splitlines()[0]) from error

    def _host(self, address: int, nbytes: int) -> Any:
        return self.torch.from_numpy(host_bytes(address, nbytes))

    def _copy(self, dst: Any, src: Any) -> None:
        dst.copy_(src, non_blocking=True)
