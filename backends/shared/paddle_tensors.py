"""paddle's tensors on a device with streams: CUDA (``gpu``), Kunlun (``xpu``), or a custom device of paddle's."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from numpy.typing import NDArray

from slotline.backends.shared.framework_runtime import FrameworkTensors, StreamBook
from slotline.backends.shared.paddle_look import PaddleLook
from slotline.compat import paddle as compat
from slotline.compat.numpy import enable_bfloat16
from slotline.core.device import TensorInfo
from slotline.core.errors import BackendUnavailable
from slotline.core.host_memory import over_memory


class PaddleTensors(FrameworkTensors):
    """``kind`` is what paddle calls the device: ``gpu``, ``xpu``, or the name of a custom device."""

    framework = "paddle"
    lacks = PaddleLook.lacks

    def __init__(self, kind: str, index: int) -> None:
        self.kind, self.index, self.device = kind, index, f"{kind}:{index}"
        self.look = PaddleLook(self.device)
        enable_bfloat16()
        self.paddle, self.versions = self.look.paddle, {"paddle": self.look.version}
        self.streams = StreamBook(("raw_stream", "cuda_stream", "xpu_stream"))  # by version and device

    # -- tensors

    def empty(self, shape: tuple[int, ...], dtype: str) -> Any:
        return self.paddle.empty(list(shape), dtype=dtype)

    def inspect(self, tensor: Any) -> TensorInfo | None:
        return self.look.inspect(tensor)

    def why_not(self, tensor: Any) -> str:
        return self.look.why_not(tensor)

    def why_not_written(self, tensor: Any) -> str:
        return self.look.why_not_written(tensor)

    def host_view(self, tensor: Any) -> NDArray[Any] | None:
        if not isinstance(tensor, self.paddle.Tensor) or not tensor.is_dense() or tensor.dtype not in self.look.names:
            return None
        place = tensor.place
        if not (place.is_cpu_place() or place.is_cuda_pinned_place() or place.is_xpu_pinned_place()):
            return None
        return over_memory(tensor, self.look.info(tensor))

    def host_tensor(self, array: NDArray[Any]) -> Any:
        return compat.from_numpy(array)

    def viewed(self, raw: Any, dtype: str, shape: tuple[int, ...]) -> Any:
        return viewed(raw, dtype, shape)

    def copy(self, dst: Any, src: Any) -> None:
        if src.ndim > dst.ndim:
            src = src.reshape(src.shape[src.ndim - dst.ndim :])
        if src.dtype != dst.dtype:
            src = compat.narrow(src, dst.dtype)
        if list(src.shape) != list(dst.shape):
            src = self.paddle.expand(src, dst.shape)
        if src.place == dst.place:
            src = src.clone()  # W7, and dense
        elif not src.is_contiguous():
            src = src.contiguous()
        dst.copy_(src, False)

    # -- streams

    def current_stream(self) -> int:
        stream = self.paddle.device.current_stream(self.device)
        return self.streams.remember(stream, stream.stream_base)

    def stream_of(self, stream: Any) -> int | None:
        if not hasattr(stream, "stream_base"):
            return None
        place = str(stream.device)
        if place not in (f"Place({self.device})", self.device):
            raise ValueError(f"stream is one of {place}, allowed: streams of {self.device}")
        return self.streams.remember(stream, stream.stream_base)

    def stream_object(self, handle: int) -> Any:
        found = self.streams.get(handle)
        if found is None:
            found = compat.foreign_stream(handle, self.kind, self.device)
            self.streams.remember(found, found.stream_base)
        return found

    @contextmanager
    def running(self, stream: int) -> Iterator[None]:
        device = self.paddle.device
        before = device.get_device()
        if before != self.device:
            device.set_device(self.device)
        try:
            with self.paddle.no_grad():
                if stream == self.current_stream():
                    yield
                else:
                    with device.stream_guard(self.stream_object(stream)):
                        yield
        finally:
            if before != self.device:
                device.set_device(before)

    def namespace(self) -> Any:
        return compat.namespace()


def viewed(raw: Any, dtype: str, shape: tuple[int, ...]) -> Any:
    """The bits of ``raw``, uint8, as cells of ``dtype``, through a copy.

    ``view`` of a slice takes the slice's offset for one of the new dtype (3.3.1), and looks beside it.
    """
    if dtype != "uint8":
        raw = raw.clone().view(dtype)
    return raw.reshape(list(shape))


def require_device(kind: str, index: int) -> None:
    """``BackendUnavailable`` unless this paddle is built for ``kind`` and sees the device."""
    paddle = compat.require()
    count = compat.device_count(kind)
    if count is None:
        hint = {
            "gpu": "it is built without CUDA; install paddlepaddle-gpu",
            "xpu": "it is not built for Kunlun; that build comes from the vendor, no public index has it",
        }.get(kind, "no such device is registered")
        raise BackendUnavailable(f"paddle {paddle.__version__} has no {kind}: {hint}")
    if not count:
        raise BackendUnavailable(f"paddle {paddle.__version__} sees no {kind} device")
    if not 0 <= index < count:
        raise BackendUnavailable(f"device {index} of {count}; choose with SLOTLINE_DEVICE")
