"""paddle tensors in host memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from numpy.typing import NDArray

from slotline.backends.cpu.tensors import Tensors
from slotline.compat import paddle as compat
from slotline.core.device import TensorInfo
from slotline.core.field import DTYPES

_UNSIGNED = ("uint16", "uint32", "uint64")
"""paddle has the names in DLPack, but no kernel that fills, copies or computes with them."""


class PaddleTensors(Tensors):
    """Dense CPU tensors and views, eager mode."""

    framework = "paddle"
    lacks = dict.fromkeys(_UNSIGNED, "int32 or int64")

    def __init__(self) -> None:
        self._paddle = compat.require()
        self.versions = {"paddle": compat.version()}
        self._names = {getattr(self._paddle, name): name for name in DTYPES if name not in self.lacks}

    def wrap(self, array: NDArray[Any]) -> Any:
        return compat.from_numpy(array)

    def inspect(self, tensor: Any) -> TensorInfo | None:
        if not isinstance(tensor, self._paddle.Tensor) or self.why_not(tensor):
            return None
        size = tensor.element_size()
        return TensorInfo(
            shape=tuple(tensor.shape),
            strides=tuple(step * size for step in tensor.strides),
            dtype=self._names[tensor.dtype],
            place="cpu",
            pointer=tensor.data_ptr(),
        )

    def why_not(self, tensor: Any) -> str:
        if not isinstance(tensor, self._paddle.Tensor):
            return ""
        if not tensor.is_dense() or (tensor.size and not tensor._is_initialized()):
            return "a sparse tensor, or one without memory; needed: a dense one"
        if not tensor.place.is_cpu_place():
            return f"a tensor on {tensor.place}; needed: one on the cpu, tensor.cpu() gives it"
        if tensor.dtype not in self._names:
            return f"a tensor of {tensor.dtype}; allowed: {', '.join(self._names.values())}"
        return ""

    def why_not_written(self, tensor: Any) -> str:
        # A write past autograd would give wrong gradients in silence.
        return "" if tensor.stop_gradient else "a tensor that has gradients; write into tensor.detach()"

    @contextmanager
    def running(self) -> Iterator[None]:
        device = self._paddle.get_device()
        if device == "cpu":
            yield
            return
        self._paddle.set_device("cpu")
        try:
            yield
        finally:
            self._paddle.set_device(device)

    def namespace(self) -> Any:
        return compat.namespace()
