"""Segments: what a packet writes into one field, as whole groups of rows.

Cells of a row are counted in C order of the row's shape, with the slot axis taken out. Three kinds:

- ``Fill``: one value into cells [start, stop) of some rows; carries no payload.
- ``Block``: the same number of cells into each row, from a payload [rows, cells].
- ``Spans``: a run of its own length into each row, out of a payload that several segments may share, and fill behind
  it up to ``tail`` (row tails carry no payload).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.intp]
Ints = NDArray[np.int64]

_SHORT = 200
"""Mean run below which one indexed write over all rows is faster than a slice for each row (measured: NumPy 2.4)."""
_FEW = 4
"""Rows up to which each is written by itself."""


@dataclass(slots=True, eq=False)
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


@dataclass(slots=True, eq=False)
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


@dataclass(slots=True, eq=False)
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
    known: dict[Any, Any] = dataclasses.field(default_factory=dict)
    """What was worked out of the rows and runs, for segments that have the same."""

    def write(self, cells: NDArray[Any]) -> None:
        if len(self.rows) <= _FEW:
            self._write_each(cells)
            return
        known = self.known
        if "stop" not in known:
            known["stop"] = stop = self.first + self.length
            known["total"] = int(self.length.sum())
            known["tails"] = bool((self.tail > stop).any())
        if known["tails"]:
            _fill_tails(cells, self.rows, known["stop"], self.tail, self.fill)
        total = known["total"]
        if not total:
            return
        if total < _SHORT * len(self.rows):
            self._scatter(cells)
            return
        numbers = (self.rows.tolist(), self.source.tolist(), self.first.tolist(), self.length.tolist())
        for row, source, first, length in zip(*numbers, strict=True):
            cells[row, first : first + length] = self.data[source : source + length]

    def _write_each(self, cells: NDArray[Any]) -> None:
        """Row after row; a few are done before an array's function has begun."""
        numbers = (self.source.tolist(), self.first.tolist(), self.length.tolist(), self.tail.tolist())
        for row, source, first, length, tail in zip(self.rows.tolist(), *numbers, strict=True):
            stop = first + length
            if length:
                cells[row, first:stop] = self.data[source : source + length]
            if tail > stop:
                cells[row, stop:tail] = self.fill

    def _scatter(self, cells: NDArray[Any]) -> None:
        """All runs by one indexed write."""
        if self._is_even():
            first, width = int(self.first[0]), int(self.length[0])
            cells[self.rows, first : first + width] = self.data.reshape(len(self.rows), width)
            return
        taken = self._repeated("taken", lambda: self.source)
        values = self.data if taken is None else self.data[taken]
        if cells.flags.c_contiguous:
            width = cells.shape[1]
            into = self._repeated(width, lambda: self.rows * width + self.first)
            cells.reshape(-1)[into] = values
        else:
            rows = np.repeat(self.rows, self.length)
            cells[rows, self._repeated("cells", lambda: self.first)] = values

    def _is_even(self) -> bool:
        """The runs are of one length, begin at one cell, and follow each other in the data."""
        if "even" not in self.known:
            width = int(self.length[0])
            self.known["even"] = bool(
                width > 1
                and len(self.data) == width * len(self.rows)
                and (self.length == width).all()
                and (self.first == self.first[0]).all()
                and (self.source[1:] - self.source[:-1] == width).all()
            )
        found: bool = self.known["even"]
        return found

    def _repeated(self, key: Any, start: Callable[[], Ints]) -> Ints | None:
        """The numbers of each run, which begins at ``start``, one after another; None: 0, 1, 2, ... all through."""
        if key not in self.known:
            before = np.cumsum(self.length) - self.length
            begin = start()
            if key == "taken" and len(self.data) == self.known["total"] and np.array_equal(begin, before):
                self.known[key] = None
            else:
                numbers = np.repeat(begin - before, self.length)
                numbers += counted(len(numbers))
                self.known[key] = numbers
        found: Ints | None = self.known[key]
        return found

    def again(self, field: int, data: NDArray[Any], fill: int | float | bool) -> Spans:
        """The same runs and tails into another field whose rows have as many cells."""
        runs = (self.source, self.first, self.length, self.tail)
        return Spans(field, self.rows, data, *runs, fill, self.known)

    @property
    def nbytes(self) -> int:
        return int(self.length.sum()) * self.data.itemsize


Segment = Fill | Block | Spans

_counted: Ints = np.arange(1024, dtype=np.int64)


def counted(count: int) -> Ints:
    """0, 1, 2, ... [count]; read it only, it is used again."""
    global _counted
    if count > len(_counted):
        _counted = np.arange(2 * count, dtype=np.int64)
    return _counted[:count]


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
