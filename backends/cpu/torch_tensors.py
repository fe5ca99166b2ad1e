"""torch tensors in host memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slotline.backends.cpu.tensors import Tensors
from slotline.compat import torch as compat
from slotline.core.device import TensorInfo
from slotline.core.field import DTYPES

_CARRIERS = {"bfloat16": np.int16, "uint16": np.int16, "uint32": np.int32, "uint64": np.int64}
"""What brings a dtype over that not every release takes from NumPy."""


class TorchTensors(Tensors):
    """Strided CPU tensors, views and parameters too."""

    framework = "torch"

    def __init__(self) -> None:
        self._torch = torch = compat.require()
        self.versions = {"torch": compat.version()}
        self.lacks = {name: "int32 or int64" for name in DTYPES if not hasattr(torch, name)}
        self._names = {getattr(torch, name): name for name in DTYPES if hasattr(torch, name)}

    def wrap(self, array: NDArray[Any]) -> Any:
        name = array.dtype.name
        with self._torch.inference_mode(False):  # a tensor made in it could not be written outside of it
            if name in _CARRIERS:
                return self._torch.from_numpy(array.view(_CARRIERS[name])).view(getattr(self._torch, name))
            return self._torch.from_numpy(array)

    def inspect(self, tensor: Any) -> TensorInfo | None:
        if not isinstance(tensor, self._torch.Tensor) or self.why_not(tensor):
            return None
        try:
            pointer = tensor.data_ptr()
        except RuntimeError:  # inside vmap or a trace a tensor has no memory
            return None
        size = tensor.element_size()
        return TensorInfo(
            shape=tuple(tensor.shape),
            strides=tuple(step * size for step in tensor.stride()),
            dtype=self._names[tensor.dtype],
            place="cpu",
            pointer=pointer,
        )

    def why_not(self, tensor: Any) -> str:
        torch = self._torch
        if not isinstance(tensor, torch.Tensor):
            return ""
        if type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
            return f"a {type(tensor).__name__}, which has no memory of its own; needed: a plain tensor"
        if tensor.device.type != "cpu":
            return f"a tensor on {tensor.device}; needed: one on the cpu, tensor.cpu() gives it"
        if tensor.layout is not torch.strided or tensor.is_nested:
            return "a sparse or nested tensor; needed: a dense one"
        if tensor.dtype not in self._names:
            return f"a tensor of {tensor.dtype}; allowed: {', '.join(self._names.values())}"
        if tensor.is_neg():
            return "a tensor whose memory holds the negative of its values; tensor.resolve_neg() gives a plain one"
        return ""

    def why_not_written(self, tensor: Any) -> str:
        # A write past autograd would give wrong gradients in silence.
        return "a tensor that requires grad; write into tensor.detach()" if tensor.requires_grad else ""

    @contextmanager
    def running(self) -> Iterator[None]:
        torch = self._torch
        with torch.inference_mode():  # which may write what an engine made in it, and what it did not
            if torch.get_default_device().type == "cpu":
                yield
            else:
                with torch.device("cpu"):
                    yield

    def namespace(self) -> Any:
        return compat.namespace()
