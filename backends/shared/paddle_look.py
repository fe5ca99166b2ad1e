"""Looking at paddle's tensors: what one is, and what keeps it from being a tensor of a device."""

from __future__ import annotations

from typing import Any

from slotline.compat import paddle as compat
from slotline.core.device import TensorInfo
from slotline.core.field import DTYPES

UNSIGNED = ("uint16", "uint32", "uint64")
"""paddle has the names in DLPack, but no kernel that fills, copies or computes with them."""


class PaddleLook:
    """Dense tensors and views in eager mode on one device: ``cpu``, ``gpu:0``, ``xpu:0`` and the like."""

    lacks = dict.fromkeys(UNSIGNED, "int32 or int64")

    def __init__(self, device: str) -> None:
        self.paddle = compat.require()
        self.device, self.version = device, compat.version()
        self.names = {getattr(self.paddle, name): name for name in DTYPES if name not in self.lacks}

    def inspect(self, tensor: Any) -> TensorInfo | None:
        """What a tensor is; None for what ``why_not`` has something to say of."""
        if not isinstance(tensor, self.paddle.Tensor) or self.why_not(tensor):
            return None
        return self.info(tensor)

    def info(self, tensor: Any) -> TensorInfo:
        """Shape, strides and address of a dense tensor, wherever it is."""
        size = tensor.element_size()
        return TensorInfo(
            shape=tuple(tensor.shape),
            strides=tuple(step * size for step in tensor.strides),
            dtype=self.names[tensor.dtype],
            place=self.device,
            pointer=tensor.data_ptr() if tensor.size else 0,
        )

    def why_not(self, tensor: Any) -> str:
        """What keeps an object from being a tensor here, and what to do; empty if nothing is known of it."""
        if not isinstance(tensor, self.paddle.Tensor):
            return ""
        if not tensor.is_dense() or (tensor.size and not tensor._is_initialized()):
            return "a sparse tensor, or one without memory; needed: a dense one"
        if str(tensor.place) != f"Place({self.device})":
            move = "tensor.cpu() gives it" if self.device == "cpu" else f"tensor.to({self.device!r}) gives it"
            return f"a tensor on {tensor.place}; needed: one on {_the(self.device)}, {move}"
        if tensor.dtype not in self.names:
            return f"a tensor of {tensor.dtype}; allowed: {', '.join(self.names.values())}"
        return ""

    def why_not_written(self, tensor: Any) -> str:
        """What keeps a tensor from being written, and what to do; empty if nothing does."""
        # A write past autograd would give wrong gradients in silence.
        return "" if tensor.stop_gradient else "a tensor that has gradients; write into tensor.detach()"


def _the(device: str) -> str:
    return f"the {device}" if device == "cpu" else device
