"""Looking at torch tensors: what one is, and what keeps it from being a tensor of a device."""

from __future__ import annotations

from typing import Any

from slotline.compat import torch as compat
from slotline.core.device import TensorInfo
from slotline.core.field import DTYPES


class TorchLook:
    """Strided tensors, views and parameters too, on one device: ``cpu``, ``cuda:0`` and the like."""

    def __init__(self, device: str) -> None:
        self.torch = torch = compat.require()
        self.device = torch.device(device)
        self.version = compat.version()
        self.lacks = {name: "int32 or int64" for name in DTYPES if not hasattr(torch, name)}
        self._names = {getattr(torch, name): name for name in DTYPES if hasattr(torch, name)}

    def inspect(self, tensor: Any) -> TensorInfo | None:
        """What a tensor is; None for what ``why_not`` has something to say of."""
        if not isinstance(tensor, self.torch.Tensor) or self.why_not(tensor):
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
            place=str(self.device),
            pointer=pointer,
        )

    def why_not(self, tensor: Any) -> str:
        """What keeps an object from being a tensor here, and what to do; empty if nothing is known of it."""
        torch = self.torch
        if not isinstance(tensor, torch.Tensor):
            return ""
        if type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
            return f"a {type(tensor).__name__}, which has no memory of its own; needed: a plain tensor"
        if tensor.device != self.device:
            move = "tensor.cpu() gives it" if self.device.type == "cpu" else f"tensor.to({str(self.device)!r}) gives it"
            return f"a tensor on {tensor.device}; needed: one on the {self.device}, {move}"
        if tensor.layout is not torch.strided or tensor.is_nested:
            return "a sparse or nested tensor; needed: a dense one"
        if tensor.dtype not in self._names:
            return f"a tensor of {tensor.dtype}; allowed: {', '.join(self._names.values())}"
        if tensor.is_neg():
            return "a tensor whose memory holds the negative of its values; tensor.resolve_neg() gives a plain one"
        return ""

    def why_not_written(self, tensor: Any) -> str:
        """What keeps a tensor from being written, and what to do; empty if nothing does."""
        # A write past autograd would give wrong gradients in silence.
        return "a tensor that requires grad; write into tensor.detach()" if tensor.requires_grad else ""
