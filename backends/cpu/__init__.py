"""The default device: host memory, NumPy arrays. It has no streams, so every call has happened when it returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slotline.compat import numpy as compat
from slotline.core import values
from slotline.core.backend import DONE, Abilities, Backend, Event, Probe, TensorInfo
from slotline.core.errors import LayoutError
from slotline.core.field import DTYPES
from slotline.core.layout import BufferLayout, numpy_dtype
from slotline.core.packet import Packet
from slotline.core.stats import Stats


class CpuBackend(Backend):
    """Host memory on NumPy. A NumPy array is both its device tensor and a host source."""

    name = "cpu"
    abilities = Abilities(packed_apply=True, array_namespace=True)

    @classmethod
    def _probe(cls, *, framework: str | None, vendor: str | None, device: int) -> Probe:
        return Probe(usable=True, versions={"numpy": compat.version(), "slotline": _own_version()})

    def _allocate(self, specs: Sequence[tuple[str, tuple[int, ...], str]]) -> list[NDArray[Any]]:
        if any(dtype == "bfloat16" for _, _, dtype in specs):
            compat.enable_bfloat16()
        return [np.empty(shape, numpy_dtype(dtype)) for _, shape, dtype in specs]

    def _inspect(self, tensor: Any) -> TensorInfo | None:
        if not isinstance(tensor, np.ndarray) or tensor.dtype.name not in DTYPES or not tensor.dtype.isnative:
            return None
        return TensorInfo(
            shape=tensor.shape,
            strides=tensor.strides,
            dtype=tensor.dtype.name,
            place="cpu",
            pointer=tensor.__array_interface__["data"][0],
        )

    def check(self, layout: BufferLayout, name: str, tensor: Any) -> None:
        super().check(layout, name, tensor)
        if not tensor.flags.writeable:
            raise LayoutError(f"field {name!r}: the array is read-only, needed: one that can be written")

    def async_set_value(self, dst: Any, src: Any, *, stream: Any = None) -> Event:
        info = self.inspect(dst)
        if not dst.flags.writeable:
            raise ValueError("the destination is a read-only array; write into the buffer itself or a view of it")
        # An array is a host source here, so its values count, not its dtype alone (W3). The block is a copy, so a
        # source that overlaps the destination is as if copied first (W7).
        block = values.from_host(src, info.dtype, info.shape)
        self.stats.add("transfers", "async_set_value")
        self.stats.add("bytes", "async_set_value", block.nbytes)
        dst[...] = block
        return DONE

    def _write(self, tensor: NDArray[Any], offset: int, data: memoryview) -> None:
        _flat_bytes(tensor)[offset : offset + len(data)] = np.frombuffer(data, np.uint8)

    def _read(self, tensor: NDArray[Any], offset: int, nbytes: int) -> bytes:
        return _flat_bytes(tensor)[offset : offset + nbytes].tobytes()

    def read(self, tensor: Any, operation: str = "read", stats: Stats | None = None) -> NDArray[Any]:
        self.inspect(tensor)
        return np.array(tensor, order="C", copy=True)

    def _apply(self, packet: Packet, buffers: Sequence[Any], stream: Any) -> Event:
        packet.apply(buffers)
        return DONE

    def _launch(
        self, fn: Callable[..., None], reads: Mapping[str, Any], writes: Mapping[str, Any], stream: Any, stats: Stats
    ) -> Event:
        fn(reads, writes)
        return DONE


def _own_version() -> str:
    try:
        return version("slotline")
    except PackageNotFoundError:  # a source tree that was never installed
        return "unknown"


def _flat_bytes(tensor: NDArray[Any]) -> NDArray[np.uint8]:
    """The memory from the tensor's first cell to its last, as bytes; no copy, however the tensor is strided."""
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.strides, strict=True)) + tensor.itemsize
    first = np.lib.stride_tricks.as_strided(tensor, (1,), (tensor.itemsize,))
    return np.lib.stride_tricks.as_strided(first.view(np.uint8), (last,), (1,))
