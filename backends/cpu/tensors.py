"""Host memory seen by a framework: what each of the frameworks must tell, and a NumPy view of any tensor."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from numpy.typing import NDArray

from slotline.core.device import TensorInfo
from slotline.core.errors import LayoutError
from slotline.core.host_memory import over_memory


class Tensors(ABC):
    """The tensors of one framework in host memory. One object for each backend."""

    framework: str
    versions: Mapping[str, str]
    lacks: Mapping[str, str] = {}
    """Dtypes of the table that the framework has not, with the one to take instead."""

    def require(self, name: str, dtype: str) -> None:
        """``LayoutError`` if the field ``name`` has a dtype that the framework lacks."""
        if dtype in self.lacks:
            raise LayoutError(f"field {name!r}: {self.framework} has no {dtype}; choose {self.lacks[dtype]}")

    @abstractmethod
    def wrap(self, array: NDArray[Any]) -> Any:
        """``array``, contiguous, as a tensor over the same memory."""

    @abstractmethod
    def inspect(self, tensor: Any) -> TensorInfo | None:
        """What a tensor is; None for whatever is not one of the framework's with readable host memory."""

    def view(self, tensor: Any, info: TensorInfo) -> NDArray[Any]:
        """The tensor's memory as a NumPy array of its shape and strides, without a copy."""
        return over_memory(tensor, info)

    @abstractmethod
    def why_not(self, tensor: Any) -> str:
        """What keeps an object from being a tensor here, and what to do; empty if nothing is known of it."""

    @abstractmethod
    def why_not_written(self, tensor: Any) -> str:
        """What keeps a tensor from being written, and what to do; empty if nothing does."""

    def running(self) -> AbstractContextManager[Any]:
        """Around a step function: the engine's own defaults (device, gradients) do not reach it."""
        return nullcontext()

    @abstractmethod
    def namespace(self) -> Any:
        """The array namespace (``slotline.core.namespace``)."""


def foreign(tensor: Any) -> str:
    """The framework that an object of another framework belongs to; empty for any other object. Imports nothing."""
    kind = type(tensor)
    top = kind.__module__.split(".")[0]
    return top if top in ("numpy", "torch", "paddle") and hasattr(tensor, "shape") else ""
