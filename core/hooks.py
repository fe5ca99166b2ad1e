"""Hooks: what a device writes, and what can be built from the small part of it.

Everything is built from ``_allocate``, ``_inspect``, ``_write`` and ``_read``; a device overrides more to be fast.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from slotline.core import strided
from slotline.core.device import DONE, Download, Event, Probe, TensorInfo
from slotline.core.layout import numpy_dtype
from slotline.core.namespace import NUMPY
from slotline.core.stats import Stats

if TYPE_CHECKING:
    from slotline.core.packet import Packet


class Hooks(ABC):
    """The part of a backend that its device writes; ``Backend`` checks and counts around it."""

    @abstractmethod
    def inspect(self, tensor: Any) -> TensorInfo:
        """``Backend.inspect``."""

    @abstractmethod
    def read(self, tensor: Any, operation: str = "read", stats: Stats | None = None) -> NDArray[Any]:
        """``Backend.read``."""

    # -- a device writes these

    @classmethod
    @abstractmethod
    def _probe(cls, *, framework: str | None, vendor: str | None, device: int) -> Probe: ...

    @abstractmethod
    def _allocate(self, specs: Sequence[tuple[str, tuple[int, ...], str]]) -> list[Any]:
        """One tensor for each (name, shape, dtype)."""

    @abstractmethod
    def _inspect(self, tensor: Any) -> TensorInfo | None:
        """None if ``tensor`` is not a tensor on this very device and of this framework."""

    @abstractmethod
    def _write(self, tensor: Any, offset: int, data: memoryview) -> None:
        """Write ``data`` at ``offset`` bytes from the tensor's first cell; ``data`` may change after the return."""

    @abstractmethod
    def _read(self, tensor: Any, offset: int, nbytes: int) -> bytes:
        """The bytes at ``offset`` from the tensor's first cell, after all queued work."""

    # -- and more of these, to say more and to be fast

    def _why_not(self, tensor: Any) -> str:
        """What keeps an object from being a tensor here, and what to do; empty if nothing is known of it."""
        return ""

    def _why_not_written(self, tensor: Any) -> str:
        """What keeps a tensor from being written, and what to do; empty if nothing does."""
        return ""

    def _require_dtype(self, name: str, dtype: str) -> None:  # noqa: B027  (nothing is lacking)
        """``LayoutError`` if the field ``name`` has a dtype that the framework lacks."""

    def _host_tensor(self, array: NDArray[Any]) -> Any:
        """A host array as the framework's own CPU tensor over the same memory (F2)."""
        return array

    def _host_source(self, src: Any) -> Any:
        """A host tensor of the framework as a NumPy array; anything else unchanged."""
        return src

    def _set(self, dst: Any, info: TensorInfo, block: NDArray[Any], stream: Any) -> Event:
        raw = strided.bytes_of(block)
        for offset, cells in strided.segments(info.shape, info.strides, block.itemsize, block.strides):
            self._write(dst, offset[0], raw[offset[1] : offset[1] + cells * block.itemsize].data)
        return DONE

    def _apply(self, packet: Packet, buffers: Sequence[Any], stream: Any) -> Event:
        for index, rows in packet.rows_by_field().items():
            tensor = buffers[index]
            host = self.read(tensor, packet.operation)
            packet.apply_field(index, host)
            raw, strides = strided.bytes_of(host), self.inspect(tensor).strides
            for (left, right), cells in strided.row_runs(packet.layout, index, rows, host, strides):
                self._write(tensor, right, raw[left : left + cells * host.itemsize].data)
        return DONE

    def _namespace(self) -> Any:
        return NUMPY

    def _upload(self, array: NDArray[Any]) -> Any:
        """A host array as a tensor of its own."""
        (tensor,) = self._allocate([("", array.shape, array.dtype.name)])
        self._set(tensor, self.inspect(tensor), np.ascontiguousarray(array), None)
        return tensor

    def _download(self, tensor: Any, operation: str, stats: Stats) -> Download:
        return Download(self.read(tensor, operation, stats))

    def _launch(
        self,
        fn: Callable[..., None],
        reads: Mapping[str, Any],
        writes: Mapping[str, Any],
        stream: Any,
        stats: Stats,
        fills: Collection[str],
    ) -> Event:
        host_reads = {k: self._fetched(t, stats) for k, t in reads.items()}
        host_writes = {k: self._blank(t) if k in fills else self.read(t, "launch", stats) for k, t in writes.items()}
        fn(host_reads, host_writes)
        for key, array in host_writes.items():
            self._set(writes[key], self.inspect(writes[key]), np.ascontiguousarray(array), stream)
            stats.add("transfers", "launch")
            stats.add("bytes", "launch", array.nbytes)
        return DONE

    def _fetched(self, array: Any, stats: Stats) -> NDArray[Any]:
        return array if isinstance(array, np.ndarray) else self.read(array, "launch", stats)

    def _blank(self, tensor: Any) -> NDArray[Any]:
        info = self.inspect(tensor)
        return np.empty(info.shape, numpy_dtype(info.dtype))

    def _synchronize(self) -> None:  # noqa: B027  (a device without streams has nothing to wait for)
        """Nothing is queued on a device without streams."""
