"""Runs: long runs of token ids into the rows of one field, straight from the arrays that requests hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slotline.core.ids import EMPTY
from slotline.core.segments import Ints, Rows, Spans

_ROWS = 16
"""Rows whose numbers become Python's own at once."""


class Source:
    """Arrays of ids that several segments take from; joined, once for each dtype, only where a device asks for it."""

    __slots__ = ("_joined", "pieces")

    def __init__(self, pieces: Sequence[NDArray[Any]]) -> None:
        self.pieces = pieces
        self._joined: dict[Any, NDArray[Any]] = {}

    @property
    def starts(self) -> NDArray[np.int64]:
        """Where each piece begins in what is joined."""
        lens = np.array([len(p) for p in self.pieces], np.int64)
        return np.cumsum(lens) - lens

    @property
    def size(self) -> int:
        return sum(map(len, self.pieces))

    def joined(self, dtype: np.dtype[Any]) -> NDArray[Any]:
        found = self._joined.get(dtype)
        if found is None:
            flat = np.concatenate(self.pieces) if self.pieces else EMPTY
            found = self._joined[dtype] = flat.astype(dtype, copy=False)
        return found


class Runs:
    """``pieces[i][low[i] : low[i] + length[i]]`` into the first cells of row ``rows[i]``, then fill up to ``tail[i]``.

    All are arrays [n], in the order of the pieces.
    """

    __slots__ = ("dtype", "field", "fill", "length", "low", "rows", "source", "tail")

    def __init__(
        self,
        field: int,
        rows: Rows,
        source: Source,
        low: Ints,
        length: Ints,
        tail: Ints,
        fill: int | float | bool,
        dtype: np.dtype[Any],
    ) -> None:
        self.field, self.rows, self.source, self.fill, self.dtype = field, rows, source, fill, dtype
        self.low, self.length, self.tail = low, length, tail

    def write(self, cells: NDArray[Any]) -> None:
        fill = self.fill
        for at in range(0, len(self.rows), _ROWS):
            part = slice(at, at + _ROWS)
            rows, low, lengths = (numbers[part].tolist() for numbers in (self.rows, self.low, self.length))
            for row, piece, begin, length in zip(rows, self.source.pieces[part], low, lengths, strict=True):
                cells[row, :length] = piece if length == len(piece) else piece[begin : begin + length]
            if self.tail is not self.length:
                for row, length, tail in zip(rows, lengths, self.tail[part].tolist(), strict=True):
                    if tail > length:
                        cells[row, length:tail] = fill

    def spans(self) -> Spans:
        """As a packet on the wire has them."""
        source = self.source.starts + self.low
        data, first = self.source.joined(self.dtype), np.zeros_like(self.length)
        return Spans(self.field, self.rows, data, source, first, self.length, self.tail, self.fill)
