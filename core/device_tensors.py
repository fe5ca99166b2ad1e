"""DeviceTensors: the tensors of one framework on one device with streams."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from numpy.typing import NDArray

from slotline.core.device import TensorInfo
from slotline.core.errors import LayoutError


class DeviceTensors(ABC):
    """What ``core.streamed`` must know of a framework. One object for each backend and device."""

    framework: str
    versions: Mapping[str, str]
    lacks: Mapping[str, str] = {}
    """Dtypes of the table that the framework has not, with the one to take instead."""

    def require(self, name: str, dtype: str) -> None:
        """``LayoutError`` if the field ``name`` has a dtype that the framework lacks."""
        if dtype in self.lacks:
            raise LayoutError(f"field {name!r}: {self.framework} has no {dtype}; choose {self.lacks[dtype]}")

    @abstractmethod
    def empty(self, shape: tuple[int, ...], dtype: str) -> Any:
        """A new contiguous tensor on the device; inside ``running`` it belongs to that stream."""

    @abstractmethod
    def inspect(self, tensor: Any) -> TensorInfo | None:
        """What a tensor is; None for whatever is not a dense tensor of the framework on this very device."""

    @abstractmethod
    def why_not(self, tensor: Any) -> str:
        """What keeps an object from being a tensor here, and what to do; empty if nothing is known of it."""

    @abstractmethod
    def why_not_written(self, tensor: Any) -> str:
        """What keeps a tensor from being written (gradients, say), and what to do; empty if nothing does."""

    @abstractmethod
    def host_view(self, tensor: Any) -> NDArray[Any] | None:
        """A CPU tensor of the framework, pinned or not, as an array over its memory; None for anything else."""

    @abstractmethod
    def host_tensor(self, array: NDArray[Any]) -> Any:
        """``array``, contiguous, as the framework's CPU tensor over the same memory."""

    @abstractmethod
    def copy(self, dst: Any, src: Any) -> None:
        """Queue ``dst[...] = src`` on the current stream: converted, broadcast as in NumPy assignment (``src`` may
        have extra leading axes of length 1), any strides, and as if ``src`` had been copied first (W7).

        One of the two may be a tensor that ``host_tensor`` gave; its memory stays as it is until the copy has run, so
        that itself must be read, no copy of it.
        """

    def viewed(self, raw: Any, dtype: str, shape: tuple[int, ...]) -> Any:
        """A uint8 tensor of the device as cells of ``dtype``, to be read. For what ``Runtime.tensor_at`` gives."""
        raise NotImplementedError(f"{type(self).__name__} is used with kernels, which take addresses")

    def recast(self, tensor: Any, dtype: str) -> Any:
        """The bits of a tensor of the device as another dtype of the same width; no copy."""
        raise NotImplementedError(f"{type(self).__name__} is used with kernels, which take addresses")

    @abstractmethod
    def current_stream(self) -> int:
        """The handle of the framework's current stream in this thread."""

    def stream_of(self, stream: Any) -> int | None:
        """The handle of a stream object of the framework; None for anything else."""
        return None

    @abstractmethod
    def running(self, stream: int) -> AbstractContextManager[Any]:
        """Inside, ``stream`` is the framework's current stream and this device its default, and no gradients."""

    def namespace(self) -> Any:
        """The array namespace (``slotline.core.namespace``); used inside ``running`` only, if one is declared (B12)."""
        raise NotImplementedError(f"{type(self).__name__} has no array namespace; step functions run on the host (B11)")
