"""Image: a packet as a device sees it: its bytes with a list of work behind them (``docs/packet.md``)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slotline.core.codec import BLOCK, FILL, HEADER, SEGMENT, encode
from slotline.core.device import TensorInfo
from slotline.core.errors import LayoutError
from slotline.core.layout import BufferLayout, numpy_dtype
from slotline.core.packet import Packet
from slotline.core.segments import Block, Fill, Segment, Spans

CELLS = 1024
"""Cells that one program of the apply kernel looks at."""
MOST_CELLS = 2**31 - CELLS
"""Of one segment: a kernel counts them in 32 bits."""
TARGET = 8
"""Numbers in a row of the destination table."""

Memory = Callable[[int, int], tuple[NDArray[Any], int]]
"""``cells(address, width)``: the memory around an address as unsigned cells of that width, and the index of it."""


class Meta(NamedTuple):
    """Where the parts of an image begin, in bytes, and how many programs apply it."""

    segments_at: int
    numbers_at: int
    payload_at: int
    work_at: int
    programs: int


class Image:
    """What one copy carries. ``nbytes`` is a multiple of 8."""

    def __init__(self, packet: Packet) -> None:
        packet = Packet(packet.layout, [p for s in packet.segments for p in _countable(s)], packet.operation)
        self.packet = packet
        self._bytes = encode(packet)
        work = [_work(index, s) for index, s in enumerate(packet.segments)]
        self._work = np.concatenate(work) if work else np.empty((0, 4), np.int32)
        count = int(HEADER.unpack_from(self._bytes)[5])
        numbers_at = HEADER.size + len(packet) * SEGMENT.size
        payload_at = numbers_at + 4 * count
        self.meta = Meta(HEADER.size, numbers_at, payload_at, -(-len(self._bytes) // 8) * 8, len(self._work))
        self.nbytes = self.meta.work_at + self._work.nbytes

    @property
    def programs(self) -> int:
        return self.meta.programs

    @property
    def head(self) -> bytes:
        """The packet's bytes, for who applies it from the host's side."""
        return self._bytes

    def write_into(self, buffer: NDArray[np.uint8]) -> None:
        """The image's bytes into ``buffer`` [nbytes]."""
        buffer[: len(self._bytes)] = np.frombuffer(self._bytes, np.uint8)
        buffer[len(self._bytes) : self.meta.work_at] = 0
        buffer[self.meta.work_at : self.nbytes] = self._work.reshape(-1).view(np.uint8)

    def to_bytes(self) -> NDArray[np.uint8]:
        """The image in memory of its own."""
        buffer = np.empty(self.nbytes, np.uint8)
        self.write_into(buffer)
        return buffer

    def accesses(self, table: NDArray[np.int64]) -> Iterator[tuple[NDArray[np.int64], int]]:
        """For each segment the addresses of the cells that it writes, and their width in bytes."""
        for s in self.packet.segments:
            rows, cells = cells_of(s)
            yield addresses(table[s.field], rows, cells), list(self.packet.layout)[s.field].itemsize


def extent(s: Segment) -> int:
    """The most cells that a row of the segment covers."""
    if isinstance(s, Fill):
        return s.stop - s.start
    if isinstance(s, Block):
        return int(s.data.shape[1])
    return int((s.tail - s.first).max()) if len(s.rows) else 0


def _countable(s: Segment) -> Iterator[Segment]:
    """``s`` in parts whose cells can be counted in 32 bits."""
    most = max(1, MOST_CELLS // max(1, extent(s)))
    if len(s.rows) <= most:
        yield s
        return
    for first in range(0, len(s.rows), most):
        part = slice(first, first + most)
        if isinstance(s, Fill):
            yield Fill(s.field, s.rows[part], s.start, s.stop, s.value)
        elif isinstance(s, Block):
            yield Block(s.field, s.rows[part], s.start, s.data[part])
        else:
            spans = (s.source[part], s.first[part], s.length[part], s.tail[part])
            yield Spans(s.field, s.rows[part], s.data, *spans, s.fill)


def _work(index: int, s: Segment) -> NDArray[np.int32]:
    wide = extent(s)
    blocks = -(-len(s.rows) * wide // CELLS)
    work = np.empty((blocks, 4), np.int32)
    work[:] = (index, 0, wide, 0)
    work[:, 1] = np.arange(blocks)
    return work


def cells_of(s: Segment) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Row and cell of each cell that ``s`` writes, as two vectors."""
    if isinstance(s, Spans):
        count = s.tail - s.first
        rows = np.repeat(s.rows.astype(np.int64), count)
        run = np.arange(int(count.sum())) - np.repeat(np.cumsum(count) - count, count)
        return rows, np.repeat(s.first, count) + run
    start = s.start
    cells = np.arange(start, start + extent(s), dtype=np.int64)
    return np.repeat(s.rows.astype(np.int64), len(cells)), np.tile(cells, len(s.rows))


def addresses(target: NDArray[np.int64], rows: NDArray[np.int64], cells: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where cells of rows lie, by a row of the destination table."""
    base, row_stride, s0, n1, s1, n2, s2, _ = (int(n) for n in target)
    found: NDArray[np.int64] = (
        base + rows * row_stride + cells // (n1 * n2) * s0 + cells // n2 % n1 * s1 + cells % n2 * s2
    )
    return found


def targets(layout: BufferLayout, infos: Sequence[TensorInfo | None]) -> NDArray[np.int64]:
    """The destination table int64 [fields, 8]: address, row stride, stride 0, size 1, stride 1, size 2, stride 2, fill.

    Strides in bytes; the fill as the bits of a cell. Fields without a tensor, or not per slot, have zeros.
    ``LayoutError`` naming a field whose rows need more than three strided axes.
    """
    table = np.zeros((len(layout), TARGET), np.int64)
    for index, (f, info) in enumerate(zip(layout, infos, strict=True)):
        if info is None or f.slot_axis is None:
            continue
        axes = [(n, s) for axis, (n, s) in enumerate(zip(info.shape, info.strides, strict=True)) if axis != f.slot_axis]
        joined = _joined([a for a in axes if a[0] != 1])
        if len(joined) > 3:
            raise LayoutError(
                f"field {f.name!r}: rows of shape {tuple(n for n, _ in axes)} with strides {tuple(s for _, s in axes)} "
                f"have {len(joined)} axes that cannot be joined, allowed: 3; adopt a tensor that is dense within a row"
            )
        (_, s0), (n1, s1), (n2, s2) = [(1, 0)] * (3 - len(joined)) + joined
        fill = np.zeros(8, np.uint8)
        bits = np.array(f.fill, numpy_dtype(f.dtype)).reshape(1).view(np.uint8)
        fill[: bits.size] = bits
        table[index] = (info.pointer, info.strides[f.slot_axis], s0, n1, s1, n2, s2, fill.view("<i8")[0])
    return table


def _joined(axes: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Axes (size, stride), outer first, with those that follow each other in memory made one."""
    out: list[tuple[int, int]] = []
    for size, stride in reversed(axes):
        if out and stride == out[0][0] * out[0][1]:
            out[0] = (out[0][0] * size, out[0][1])
        else:
            out.insert(0, (size, stride))
    return out


def run(image: NDArray[np.uint8], meta: Meta, table: NDArray[np.int64], cells: Memory) -> None:
    """Apply an image from its raw bytes alone, as the kernels do."""
    segments = image[meta.segments_at : meta.numbers_at].tobytes()
    numbers = image[meta.numbers_at : meta.payload_at].view("<u4")
    payload = image[meta.payload_at : meta.work_at]
    work = image[meta.work_at : meta.work_at + 16 * meta.programs].view("<i4").reshape(-1, 4)
    for index in np.unique(work[:, 0]).tolist():
        field, kind, width, count, first, a, b, last = SEGMENT.unpack_from(segments, index * SEGMENT.size)
        rows = numbers[first : first + count].astype(np.int64)
        unsigned = np.dtype(f"<u{width}")
        fill = int(table[field][7])
        if kind == FILL:
            fill, row, cell = last, *_grid(rows, a, b)
            values: Any = np.full(len(row), fill & ((1 << 8 * width) - 1), unsigned)
        elif kind == BLOCK:
            row, cell = _grid(rows, a, a + b)
            values = payload[last : last + len(row) * width].view(unsigned)
        else:
            source, begin, length, tail = (
                numbers[first + k * count : first + (k + 1) * count].astype(np.int64) for k in range(1, 5)
            )
            covered = tail - begin
            row = np.repeat(rows, covered)
            j = np.arange(int(covered.sum())) - np.repeat(np.cumsum(covered) - covered, covered)
            cell = np.repeat(begin, covered) + j
            inside = j < np.repeat(length, covered)
            data = payload[last : last + a * width].view(unsigned)
            values = np.full(len(row), fill & ((1 << 8 * width) - 1), unsigned)
            values[inside] = data[(np.repeat(source, covered) + j)[inside]]
        if len(row):
            at = addresses(table[field], row, cell)
            memory, here = cells(int(at[0]), width)
            memory[here + (at - at[0]) // width] = values


def _grid(rows: NDArray[np.int64], start: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    cells = np.arange(start, stop, dtype=np.int64)
    return np.repeat(rows, len(cells)), np.tile(cells, len(rows))
