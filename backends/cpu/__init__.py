"""The default device: host memory as NumPy, torch or paddle tensors. No streams: every call is done when it returns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slotline.backends.cpu.tensors import Tensors, foreign
from slotline.compat import numpy as compat
from slotline.core import values
from slotline.core.backend import DONE, Abilities, Backend, Event, Probe, TensorInfo
from slotline.core.host_buffers import HostBuffers, side_by_side
from slotline.core.layout import BufferLayout, numpy_dtype
from slotline.core.packet import Packet
from slotline.core.stats import Stats


class CpuBackend(Backend):
    """Host memory, handed out as tensors of one framework without a copy. A tensor is device tensor and host source."""

    name = "cpu"
    frameworks = ("numpy", "torch", "paddle")
    device_count = 1
    abilities = Abilities(packed_apply=True, array_namespace=True)

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        compat.enable_bfloat16()
        self._tensors = _tensors(self.framework)

    @classmethod
    def _probe(cls, *, framework: str | None, vendor: str | None, device: int) -> Probe:
        versions = {"numpy": compat.version(), "slotline": _own_version()}
        return Probe(usable=True, versions={**versions, **_tensors(framework).versions})

    def _allocate(self, specs: Sequence[tuple[str, tuple[int, ...], str]]) -> list[Any]:
        for name, _, dtype in specs:
            self._tensors.require(name, dtype)
        return [self._tensors.wrap(a) for a in side_by_side([(shape, numpy_dtype(dtype)) for _, shape, dtype in specs])]

    def _inspect(self, tensor: Any) -> TensorInfo | None:
        return self._tensors.inspect(tensor)

    def _why_not(self, tensor: Any) -> str:
        return self._tensors.why_not(tensor)

    def _why_not_written(self, tensor: Any) -> str:
        return self._tensors.why_not_written(tensor)

    def _require_dtype(self, name: str, dtype: str) -> None:
        self._tensors.require(name, dtype)

    def async_set_value(self, dst: Any, src: Any, *, stream: Any = None) -> Event:
        info = self._destination(dst)
        self.stream(stream)
        # A tensor is a host source here, so its values count, not its dtype alone (W3). The block is a copy, so a
        # source that overlaps the destination is as if copied first (W7).
        block = values.from_host(self._host_source(src), info.dtype, info.shape)
        self.stats.add("transfers", "async_set_value")
        self.stats.add("bytes", "async_set_value", block.nbytes)
        return self._set(dst, info, block, stream)

    def _host_tensor(self, array: NDArray[Any]) -> Any:
        self._tensors.require("", array.dtype.name)
        return self._tensors.wrap(array)

    def _host_source(self, src: Any) -> Any:
        info = self._inspect(src)
        if info is not None:
            return self._tensors.view(src, info)
        if foreign(src) not in ("", "numpy"):
            raise TypeError(
                f"a source is {self._named(src)}, allowed: numbers, lists, arrays, {self.framework} tensors"
            )
        return src

    def _set(self, dst: Any, info: TensorInfo, block: NDArray[Any], stream: Any) -> Event:
        self._tensors.view(dst, info)[...] = block
        return DONE

    def _write(self, tensor: Any, offset: int, data: memoryview) -> None:
        _flat_bytes(self._view(tensor))[offset : offset + len(data)] = np.frombuffer(data, np.uint8)

    def _read(self, tensor: Any, offset: int, nbytes: int) -> bytes:
        return _flat_bytes(self._view(tensor))[offset : offset + nbytes].tobytes()

    def read(self, tensor: Any, operation: str = "read", stats: Stats | None = None) -> NDArray[Any]:
        return np.array(self._view(tensor), order="C", copy=True)

    def _view(self, tensor: Any) -> NDArray[Any]:
        return self._tensors.view(tensor, self.inspect(tensor))

    def bind(self, layout: BufferLayout, buffers: Sequence[Any]) -> HostBuffers:
        """The buffers' memory as arrays, found once: a tensor keeps its memory (W8)."""
        return HostBuffers(layout, [None if b is None else self._view(b) for b in buffers])

    def _apply(self, packet: Packet, buffers: Any, stream: Any) -> Event:
        bound = buffers if isinstance(buffers, HostBuffers) else self.bind(packet.layout, buffers)
        bound.apply(packet)
        return DONE

    def _namespace(self) -> Any:
        return self._tensors.namespace()

    def _upload(self, array: NDArray[Any]) -> Any:
        return self._host_tensor(np.array(array, order="C", copy=True))

    def _launch(
        self,
        fn: Callable[..., None],
        reads: Mapping[str, Any],
        writes: Mapping[str, Any],
        stream: Any,
        stats: Stats,
        fills: Collection[str] = (),
    ) -> Event:
        with self._tensors.running():
            fn(reads, writes)
        return DONE


def _tensors(framework: str | None) -> Tensors:
    """The tensors of ``framework``, imported only now. ``BackendUnavailable`` if it is missing or too old."""
    if framework == "torch":
        from slotline.backends.cpu.torch_tensors import TorchTensors

        return TorchTensors()
    if framework == "paddle":
        from slotline.backends.cpu.paddle_tensors import PaddleTensors

        return PaddleTensors()
    from slotline.backends.cpu.numpy_tensors import NumpyTensors

    return NumpyTensors()


def _own_version() -> str:
    try:
        return version("slotline")
    except PackageNotFoundError:  # a source tree that was never installed
        return "unknown"


def _flat_bytes(array: NDArray[Any]) -> NDArray[np.uint8]:
    """The memory from the array's first cell to its last, as bytes; no copy, however the array is strided."""
    last = sum((n - 1) * s for n, s in zip(array.shape, array.strides, strict=True)) + array.itemsize
    first = np.lib.stride_tricks.as_strided(array, (1,), (array.itemsize,))
    return np.lib.stride_tricks.as_strided(first.view(np.uint8), (last,), (1,))
