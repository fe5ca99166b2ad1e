"""The apply by a framework's own operations, for devices that have no kernel of ours: a scatter for each segment.

Everything that varies is read from the image on the device; the host knows all shapes, so nothing waits (L2).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from slotline.core.applier import Applier
from slotline.core.codec import SEGMENT
from slotline.core.image import Image
from slotline.core.layout import BufferLayout
from slotline.core.segments import Fill, Spans

_CARRIERS = {"uint16": "int16", "uint32": "int32", "uint64": "int64"}
"""Dtypes for which frameworks lack kernels, moved as signed numbers of the same bits."""


class _Target(NamedTuple):
    """A buffer with its slots first, and how its rows are counted."""

    tensor: Any
    row_shape: tuple[int, ...]
    dtype: str
    fill: Any


class ScatterApplier(Applier):
    """Applies segments with ``index_put_`` of torch or paddle.

    - ``namespace``: the framework's (``core.namespace``), of the device.
    - ``tensor_at(address, nbytes)``: the device's memory as a uint8 tensor.
    - ``viewed(raw, dtype, shape)``: such a tensor as cells of a dtype; ``recast(tensor, dtype)``: a tensor's bits as
      another dtype of the same width. Both without a copy.
    """

    name = "scatter"
    packed = False

    def __init__(
        self,
        namespace: Any,
        tensor_at: Callable[[int, int], Any],
        viewed: Callable[[Any, str, tuple[int, ...]], Any],
        recast: Callable[[Any, str], Any],
    ) -> None:
        self.xp, self._tensor_at, self._viewed, self._recast = namespace, tensor_at, viewed, recast

    def bind(self, layout: BufferLayout, buffers: Sequence[Any]) -> list[_Target | None]:
        return [
            None
            if buffer is None or f.slot_axis is None
            else self._target(buffer, f.slot_axis, layout.row_shape(f.name), f.dtype, f.fill)
            for f, buffer in zip(layout, buffers, strict=True)
        ]

    def _target(self, buffer: Any, axis: int, row_shape: tuple[int, ...], dtype: str, fill: Any) -> _Target:
        carrier = _CARRIERS.get(dtype, dtype)
        if carrier != dtype:
            buffer = self._recast(buffer, carrier)
            bits = 8 * int(carrier[3:])
            fill = int(fill) - (1 << bits) if int(fill) >= 1 << (bits - 1) else int(fill)
        return _Target(self.xp.moveaxis(buffer, axis, 0) if axis else buffer, row_shape, carrier, fill)

    def run(self, image: Image, address: int, bound: list[_Target | None], stream: int) -> int:
        meta, xp = image.meta, self.xp
        raw = self._tensor_at(address, image.nbytes)
        count = (meta.payload_at - meta.numbers_at) // 4
        numbers = xp.astype(self._viewed(raw[meta.numbers_at : meta.payload_at], "int32", (count,)), xp.int64)
        kernels = 0
        for index, s in enumerate(image.packet.segments):
            target = bound[s.field]
            _, _, width, rows, first, a, b, last = SEGMENT.unpack_from(
                image.head, meta.segments_at + index * SEGMENT.size
            )
            if target is None or not rows or not math.prod(target.row_shape):
                continue

            def payload(cells: int, *, at: int = last, wide: int = width, into: _Target = target) -> Any:
                part = raw[meta.payload_at + at : meta.payload_at + at + cells * wide]
                return self._viewed(part, into.dtype, (cells,))

            if isinstance(s, Spans):
                kernels += self._spans(s, numbers, rows, first, payload(a) if a else None, target)
                continue
            wide = b - a if isinstance(s, Fill) else b
            flat = xp.arange(rows * wide, dtype=xp.int64)
            row = xp.take(numbers[first : first + rows], flat // wide, axis=0)
            values = self._full(rows * wide, s.value, target) if isinstance(s, Fill) else payload(rows * wide)
            self._put(target, row, flat % wide + a, values)
            kernels += 1
        return kernels

    def _spans(self, s: Spans, numbers: Any, rows: int, first: int, data: Any, target: _Target) -> int:
        """The runs of all rows as one scatter, their tails as another; the sums are known on the host."""
        xp, kernels = self.xp, 0
        slots, source, begin, length, tail = (numbers[first + k * rows : first + (k + 1) * rows] for k in range(5))
        copied = int(s.length.sum())
        if copied:
            at, j = self._ragged(length, copied)
            values = xp.take(data, xp.take(source, at, axis=0) + j, axis=0)
            self._put(target, xp.take(slots, at, axis=0), xp.take(begin, at, axis=0) + j, values)
            kernels += 1
        filled = int((s.tail - s.first - s.length).sum())
        if filled:
            stop = begin + length
            at, j = self._ragged(tail - stop, filled)
            values = self._full(filled, target.fill, target)
            self._put(target, xp.take(slots, at, axis=0), xp.take(stop, at, axis=0) + j, values)
            kernels += 1
        return kernels

    def _ragged(self, count: Any, total: int) -> tuple[Any, Any]:
        """For each of ``total`` cells of rows of ``count`` cells: the row, and the cell's place in it."""
        xp = self.xp
        ends = xp.cumulative_sum(count, axis=0, dtype=xp.int64)
        flat = xp.arange(total, dtype=xp.int64)
        at = xp.astype(xp.searchsorted(ends, flat, side="right"), xp.int64)
        return at, flat - xp.take(ends - count, at, axis=0)

    def _full(self, cells: int, value: Any, target: _Target) -> Any:
        return self.xp.full((cells,), value, dtype=getattr(self.xp, target.dtype))

    def _put(self, target: _Target, row: Any, cell: Any, values: Any) -> None:
        index, inner = [row], 1
        for size in reversed(target.row_shape):
            index.insert(1, cell // inner % size)
            inner *= size
        target.tensor.index_put_(tuple(index), values)
