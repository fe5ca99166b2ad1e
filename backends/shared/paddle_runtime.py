"""PaddleRuntime: the runtime interface through paddle alone, where no bindings of the device's own are installed."""

from __future__ import annotations

from typing import Any

from slotline.backends.shared.framework_runtime import FrameworkRuntime
from slotline.backends.shared.paddle_tensors import PaddleTensors
from slotline.compat import paddle as compat
from slotline.core.errors import DeviceError
from slotline.core.host_memory import host_bytes


class PaddleRuntime(FrameworkRuntime):
    """Streams, events and memory of ``tensors``' device."""

    framework = "paddle"

    def __init__(self, tensors: PaddleTensors) -> None:
        super().__init__(tensors)
        self.paddle, self.device = tensors.paddle, tensors.device

    def create_stream(self) -> int:
        stream = self.paddle.device.Stream(self.device)
        return self.tensors.streams.remember(stream, stream.stream_base)

    def is_capturing(self, stream: int) -> bool:
        return False

    def synchronize(self) -> None:
        self.paddle.device.synchronize(self.device)

    def _event(self) -> Any:
        with self.tensors.running(self.current_stream()):  # it belongs to the current device
            return compat.make_event(self.device)

    def _bytes(self, nbytes: int) -> Any:
        with self.tensors.running(self.current_stream()):
            return self.tensors.empty((nbytes,), "uint8")

    def allocate_host(self, nbytes: int) -> int:
        # A pinned tensor of paddle's can turn into one of the device by a copy into it, so none is made here.
        raise DeviceError("paddle", "page-locked memory", None, None, "paddle hands out none that stays on the host")

    def _host(self, address: int, nbytes: int) -> Any:
        return compat.from_numpy(host_bytes(address, nbytes))

    def _copy(self, dst: Any, src: Any) -> None:
        dst.copy_(src, False)
