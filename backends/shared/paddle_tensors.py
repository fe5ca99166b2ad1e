"""paddle's tensors on a device with streams: CUDA (``gpu``), Kunlun (``xpu``), or a custom device of paddle's."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from numpy.typing import NDArray

from slotline.compat import paddle as compat
from slotline.compat.numpy import enable_bfloat16
from slotline.core.device import TensorInfo
from slotline.core.device_tensors import DeviceTensors
from slotline.core.errors import BackendUnavailable
from slotline.core.field import DTYPES
from slotline.core.host_memory import over_memory

_UNSIGNED = ("uint16", "uint32", "uint64")
"""paddle has the names in DLPack, but no kernel that fills, copies or computes with them."""
_HANDLES = ("raw_stream", "cuda_stream", "xpu_stream")
"""Where the native handle of a stream of paddle stands, by version and device."""


class PaddleTensors(DeviceTensors):
    """``kind`` is what paddle calls the device: ``gpu``, ``xpu``, or the name of a custom device."""

    framework = "paddle"
    lacks = dict.fromkeys(_UNSIGNED, "int32 or int64")

    def __init__(self, kind: str, index: int) -> None:
        self.paddle = compat.require()
        enable_bfloat16()
        self.kind, self.index, self.device = kind, index, f"{kind}:{index}"
        self.versions = {"paddle": compat.version()}
        self._names = {getattr(self.paddle, name): name for name in DTYPES if name not in self.lacks}
        self._seen = threading.local()

    # -- tensors

    def empty(self, shape: tuple[int, ...], dtype: str) -> Any:
        return self.paddle.empty(list(shape), dtype=dtype)

    def inspect(self, tensor: Any) -> TensorInfo | None:
        if not isinstance(tensor, self.paddle.Tensor) or self.why_not(tensor):
            return None
        return self._info(tensor)

    def _info(self, tensor: Any) -> TensorInfo:
        size = tensor.element_size()
        return TensorInfo(
            shape=tuple(tensor.shape),
            strides=tuple(step * size for step in tensor.strides),
            dtype=self._names[tensor.dtype],
            place=self.device,
            pointer=tensor.data_ptr() if tensor.size else 0,
        )

    def why_not(self, tensor: Any) -> str:
        if not isinstance(tensor, self.paddle.Tensor):
            return ""
        if not tensor.is_dense() or (tensor.size and not tensor._is_initialized()):
            return "a sparse tensor, or one without memory; needed: a dense one"
        if str(tensor.place) != f"Place({self.device})":
            return f"a tensor on {tensor.place}; needed: one on {self.device}, tensor.to({self.device!r}) gives it"
        if tensor.dtype not in self._names:
            return f"a tensor of {tensor.dtype}; allowed: {', '.join(self._names.values())}"
        return ""

    def why_not_written(self, tensor: Any) -> str:
        # A write past autograd would give wrong gradients in silence.
        return "" if tensor.stop_gradient else "a tensor that has gradients; write into tensor.detach()"

    def host_view(self, tensor: Any) -> NDArray[Any] | None:
        if not isinstance(tensor, self.paddle.Tensor) or not tensor.is_dense() or tensor.dtype not in self._names:
            return None
        place = tensor.place
        if not (place.is_cpu_place() or place.is_cuda_pinned_place() or place.is_xpu_pinned_place()):
            return None
        return over_memory(tensor, self._info(tensor))

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
        """The handle of paddle's current stream in this thread."""
        return self._remember(self.paddle.device.current_stream(self.device))

    def stream_of(self, stream: Any) -> int | None:
        if not hasattr(stream, "stream_base"):
            return None
        place = str(stream.device)
        if place not in (f"Place({self.device})", self.device):
            raise ValueError(f"stream is one of {place}, allowed: streams of {self.device}")
        return self._remember(stream)

    def _remember(self, stream: Any) -> int:
        base = stream.stream_base
        handle = next(int(getattr(base, name)) for name in _HANDLES if hasattr(base, name))
        self._streams()[handle] = stream
        return handle

    def _streams(self) -> dict[int, Any]:
        found: dict[int, Any] | None = getattr(self._seen, "streams", None)
        if found is None:
            found = self._seen.streams = {}
        return found

    def stream_object(self, handle: int) -> Any:
        """paddle's object for a native handle; ``ValueError`` where paddle cannot make one of a foreign handle."""
        found = self._streams().get(handle)
        if found is None:
            found = self._streams()[handle] = compat.foreign_stream(handle, self.kind, self.device)
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
