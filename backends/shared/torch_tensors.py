"""torch's tensors on a device with streams: CUDA, Intel XPU, or whatever registers itself with torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from numpy.typing import NDArray

from slotline.backends.shared.framework_runtime import FrameworkTensors, StreamBook
from slotline.backends.shared.torch_look import TorchLook
from slotline.compat import torch as compat
from slotline.compat.numpy import enable_bfloat16
from slotline.core.device import TensorInfo
from slotline.core.errors import BackendUnavailable
from slotline.core.host_memory import over_memory


class TorchTensors(FrameworkTensors):
    """``kind`` is torch's name of the device: ``cuda``, ``xpu``; ``index`` which of them."""

    framework = "torch"

    def __init__(self, kind: str, index: int) -> None:
        self.look = TorchLook(f"{kind}:{index}")
        enable_bfloat16()
        self.torch, self.device, self.lacks = self.look.torch, self.look.device, self.look.lacks
        self.versions = {"torch": self.look.version}
        self.module = compat.device_module(kind)
        self._host = TorchLook("cpu")
        self._kinds = (self.torch.Stream, self.module.Stream)
        self.streams = StreamBook(("cuda_stream", "sycl_queue", "stream_id"))  # by device

    # -- tensors

    def empty(self, shape: tuple[int, ...], dtype: str) -> Any:
        with self.torch.inference_mode(False):  # what is made in it could not be written outside of it
            return self.torch.empty(shape, dtype=getattr(self.torch, dtype), device=self.device)

    def inspect(self, tensor: Any) -> TensorInfo | None:
        return self.look.inspect(tensor)

    def why_not(self, tensor: Any) -> str:
        return self.look.why_not(tensor)

    def why_not_written(self, tensor: Any) -> str:
        return self.look.why_not_written(tensor)

    def host_view(self, tensor: Any) -> NDArray[Any] | None:
        info = self._host.inspect(tensor)
        return None if info is None else over_memory(tensor, info)

    def host_tensor(self, array: NDArray[Any]) -> Any:
        return compat.from_numpy(array)

    def viewed(self, raw: Any, dtype: str, shape: tuple[int, ...]) -> Any:
        """uint8 tensor ``raw`` as cells of ``dtype``; no copy."""
        return raw.view(getattr(self.torch, dtype)).reshape(shape)

    def recast(self, tensor: Any, dtype: str) -> Any:
        return tensor.view(getattr(self.torch, dtype))

    def copy(self, dst: Any, src: Any) -> None:
        if src.ndim > dst.ndim:
            src = src.reshape(src.shape[src.ndim - dst.ndim :])
        if src.device == dst.device and src.untyped_storage().data_ptr() == dst.untyped_storage().data_ptr():
            src = src.clone()  # W7
        if src.dtype == self.torch.float64 and dst.is_floating_point() and dst.element_size() < 4:
            src = compat.narrow(src, dst.dtype)
        dst.copy_(src, non_blocking=True)

    # -- streams

    def current_stream(self) -> int:
        return self.streams.remember(self.module.current_stream(self.device.index))

    def stream_of(self, stream: Any) -> int | None:
        if not isinstance(stream, self._kinds):
            return None
        if stream.device != self.device:
            raise ValueError(f"stream is one of {stream.device}, allowed: streams of {self.device}")
        return self.streams.remember(stream)

    def stream_object(self, handle: int) -> Any:
        found = self.streams.get(handle)
        if found is not None:
            return found
        if handle == 0 and hasattr(self.module, "default_stream"):
            return self.module.default_stream(self.device.index)
        if hasattr(self.module, "ExternalStream"):
            found = self.module.ExternalStream(handle, device=self.device)
            self.streams.remember(found)
            return found
        raise ValueError(f"stream {handle} is none of torch's on {self.device}; pass torch's own stream object")

    def quiet(self) -> Any:
        """No gradients; and what an engine made in inference mode may be written, as what it made outside."""
        return self.torch.inference_mode()

    @contextmanager
    def running(self, stream: int) -> Iterator[None]:
        index, here = self.device.index, stream == self.current_stream()
        device = nullcontext() if self.module.current_device() == index else self.module.device(index)
        with self.quiet(), device, nullcontext() if here else self.module.stream(self.stream_object(stream)):
            yield

    def namespace(self) -> Any:
        return compat.namespace(self.device)


def require_device(kind: str, index: int) -> None:
    """``BackendUnavailable`` unless this torch is built for ``kind`` and sees the device."""
    torch, module = compat.require(), compat.device_module(kind)
    if not module.is_available():
        name = {"cuda": "CUDA", "xpu": "Intel GPUs"}.get(kind, kind)
        built = getattr(torch.version, kind, None) is not None
        why = f"sees no device of {name}" if built else f"is not built for {name}; install its build for {name}"
        raise BackendUnavailable(f"torch {compat.version()} {why}")
    count = int(module.device_count())
    if not 0 <= index < count:
        raise BackendUnavailable(f"device {index} of {count}; choose with SLOTLINE_DEVICE")
