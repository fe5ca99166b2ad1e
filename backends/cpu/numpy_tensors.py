"""NumPy arrays in host memory."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from slotline.backends.cpu.tensors import Tensors
from slotline.core.device import TensorInfo
from slotline.core.field import DTYPES
from slotline.core.namespace import NUMPY


class NumpyTensors(Tensors):
    """Arrays of a table's dtypes in the machine's byte order."""

    framework = "numpy"
    versions = {}  # noqa: RUF012  (the backend tells NumPy's version whatever the framework)

    def wrap(self, array: NDArray[Any]) -> NDArray[Any]:
        return array

    def inspect(self, tensor: Any) -> TensorInfo | None:
        if not isinstance(tensor, np.ndarray) or tensor.dtype.name not in DTYPES or not tensor.dtype.isnative:
            return None
        return TensorInfo(
            shape=tensor.shape,
            strides=tensor.strides,
            dtype=tensor.dtype.name,
            place="cpu",
            pointer=tensor.__array_interface__["data"][0],
        )

    def view(self, tensor: NDArray[Any], info: TensorInfo) -> NDArray[Any]:
        return tensor

    def why_not(self, tensor: Any) -> str:
        if isinstance(tensor, np.ndarray):
            return f"an array of {tensor.dtype.str}; allowed: {', '.join(DTYPES)} in the machine's byte order"
        return ""

    def why_not_written(self, tensor: NDArray[Any]) -> str:
        if tensor.flags.writeable:
            return ""
        return "a read-only array; needed: one that can be written, the buffer itself or a view of it"

    def namespace(self) -> Any:
        return NUMPY
