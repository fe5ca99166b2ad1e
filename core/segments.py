"""Segments: what a packet writes into one field, as whole groups of rows.

Cells of a row are counted in C order of the row's shape, with the slot axis taken out. Three kinds:

- ``Fill``: one value into cells [start, stop) of some rows; carries no payload.
- ``Block``: the same number of cells into each row, from a payload [rows, cells].
- ``Spans``: a run of its own length into each row, out of a payload that several segments may share, and fill behind
  it up to ``tail`` (row tails carry no payload).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.intp]
Ints = NDArray[np.int64]

_SHORT = 24
"""Mean run below which one indexed write over all rows is faster than a slice for each row (measured: NumPy 2.4)."""


@dataclass(frozen=True, slots=True, eq=False)
class Fill:
    field: int
    rows: Rows
    start: int
    stop: int
    value: int | float | bool

    def write(self, cells: NDArray[Any]) -> None:
        if cells.shape[1] == self.stop - self.start:
            cells[self.rows] = self.value
        else:
            cells[self.rows, self.start : self.stop] = self.value

    @property
    def nbytes(self) -> int:
        return 0


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    field: int
    rows: Rows
    start: int
    data: NDArray[Any]
    """[rows, cells], in the field's dtype."""

    def write(self, cells: NDArray[Any]) -> None:
        width = self.data.shape[1]
        if width == 1:
            cells[self.rows, self.start] = self.data[:, 0]
        elif cells.shape[1] == width:
            cells[self.rows] = self.data
        else:
            cells[self.rows, self.start : self.start + width] = self.data

    @property
    def nbytes(self) -> int:
        return self.data.nbytes


@dataclass(frozen=True, slots=True, eq=False)
class Spans:
    field: int
    rows: Rows
    data: NDArray[Any]
    """Payload [n], in the field's dtype; may be shared with other segments."""
    source: Ints
    """Where each row's run begins in ``data``."""
    first: Ints
    """The cell that each run begins at."""
    length: Ints
    tail: Ints
    """The cell behind the last that is filled after the run; the run's end: no tail."""
    fill: int | float | bool

    def write(self, cells: NDArray[Any]) -> None:
        count = len(self.rows)
        stop = self.first + self.length
        if (self.tail > stop).any():
            _fill_tails(cells, self.rows, stop, self.tail, self.fill)
        total = int(self.length.sum())
        if not total:
            return
        if total < _SHORT * count:
            rows = np.repeat(self.rows, self.length)
            run = np.arange(total) - np.repeat(np.cumsum(self.length) - self.length, self.length)
            cells[rows, np.repeat(self.first, self.length) + run] = self.data[np.repeat(self.source, self.length) + run]
            return
        numbers = (self.rows.tolist(), self.source.tolist(), self.first.tolist(), self.length.tolist())
        for row, source, first, length in zip(*numbers, strict=True):
            cells[row, first : first + length] = self.data[source : source + length]

    @property
    def nbytes(self) -> int:
        return int(self.length.sum()) * self.data.itemsize


Segment = Fill | Block | Spans


def _fill_tails(cells: NDArray[Any], rows: Rows, stop: Ints, tail: Ints, fill: Any) -> None:
    for row, first, last in zip(rows.tolist(), stop.tolist(), tail.tolist(), strict=True):
        cells[row, first:last] = fill


def write_rows(segment: Segment, buffer: NDArray[Any], slot_axis: int) -> None:
    """Write ``segment`` into a buffer whose axis ``slot_axis`` counts slots."""
    if slot_axis == 0 and buffer.ndim <= 2:  # nearly every field
        segment.write(buffer if buffer.ndim == 2 else buffer[:, None])
        return
    rows_first = np.moveaxis(buffer, slot_axis, 0)
    size = math.prod(rows_first.shape[1:])
    cells = rows_first.reshape(len(rows_first), size)
    if np.may_share_memory(cells, buffer):
        segment.write(cells)
        return
    # The row's cells cannot be seen as one axis without a copy: change a copy of the rows, then put them back.
    chosen = rows_first[segment.rows].reshape(len(segment.rows), size)
    _relative(segment).write(chosen)
    rows_first[segment.rows] = chosen.reshape(len(segment.rows), *rows_first.shape[1:])


def _relative(segment: Segment) -> Segment:
    """``segment`` for an array that holds only its rows, in its order."""
    rows = np.arange(len(segment.rows))
    if isinstance(segment, Fill):
        return Fill(segment.field, rows, segment.start, segment.stop, segment.value)
    if isinstance(segment, Block):
        return Block(segment.field, rows, segment.start, segment.data)
    s = segment
    return Spans(s.field, rows, s.data, s.source, s.first, s.length, s.tail, s.fill)
