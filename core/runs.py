"""Runs: long runs of token ids into the rows of one field, straight from the arrays that requests hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slotline.core.ids import EMPTY
from slotline.core.segments import Spans


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

    def joined(self, dtype: np.dtype[Any]) -> NDArray[Any]:
        found = self._joined.get(dtype)
        if found is None:
            flat = np.concatenate(self.pieces) if self.pieces else EMPTY
            found = self._joined[dtype] = flat.astype(dtype, copy=False)
        return found


class Runs:
    """``pieces[i][lows[i] : lows[i] + lengths[i]]`` into the first cells of row ``rows[i]``, then fill up to
    ``tails[i]``. All are lists, in the order of the rows."""

    __slots__ = ("dtype", "field", "fill", "lengths", "lows", "rows", "source", "tails")

    def __init__(
        self,
        field: int,
        rows: list[int],
        source: Source,
        lows: list[int],
        lengths: list[int],
        tails: list[int],
        fill: int | float | bool,
        dtype: np.dtype[Any],
    ) -> None:
        self.field, self.rows, self.source, self.fill, self.dtype = field, rows, source, fill, dtype
        self.lows, self.lengths, self.tails = lows, lengths, tails

    def write(self, cells: NDArray[Any]) -> None:
        fill = self.fill
        for row, piece, low, length, tail in zip(
            self.rows, self.source.pieces, self.lows, self.lengths, self.tails, strict=True
        ):
            cells[row, :length] = piece if length == len(piece) else piece[low : low + length]
            if tail > length:
                cells[row, length:tail] = fill

    @property
    def nbytes(self) -> int:
        return sum(self.lengths) * self.dtype.itemsize

    def spans(self) -> Spans:
        """As a packet on the wire has them."""
        lengths = np.array(self.lengths, np.int64)
        return Spans(
            self.field,
            np.array(self.rows, np.intp),
            self.source.joined(self.dtype),
            self.source.starts + np.array(self.lows, np.int64),
            np.zeros_like(lengths),
            lengths,
            np.array(self.tails, np.int64),
            self.fill,
        )
