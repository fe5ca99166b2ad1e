"""Scalars: one number for each of several fields, into the same rows, as one segment.

A field with one cell a row is a vector over the slots. Fields of one dtype whose vectors lie one behind the other in
memory are rows of one matrix, and one write serves them all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slotline.core.field import Field
from slotline.core.segments import Block, Fill, Rows, Segment


@dataclass(frozen=True, slots=True)
class Member:
    """A field of a group."""

    index: int
    """In the layout."""
    field: Field
    source: int
    """The word that its value comes from."""
    whole: bool
    """Others write it too, so that it is written whatever it should hold already (P2)."""


class ScalarGroup:
    """Fields of one dtype with one cell a row: device alone, then mirrored, then host alone, each in layout order.

    ``sources`` and ``whole``: of each field, see ``Member``.
    """

    def __init__(self, members: Sequence[Member], dtype: np.dtype[Any]) -> None:
        ordered = sorted(members, key=lambda m: (place(m.field), m.index))
        self.fields = tuple(m.index for m in ordered)
        self.sources = [m.source for m in ordered]
        self.whole: NDArray[np.bool_] = np.array([m.whole for m in ordered], bool)
        self.dtype = dtype
        self.fills: NDArray[Any] = np.array([m.field.fill for m in ordered], dtype)
        self.device = slice(0, sum(m.field.on_device for m in ordered))


def place(f: Field) -> int:
    """Device fields first, then mirrored ones, then those of the host: what either side has lies together."""
    return f.on_host + (not f.on_device)


class Scalars:
    """``data[i, k]`` into row ``rows[i]`` of the group's k-th field; ``data`` [1, k]: the same into all rows.

    ``dirty``: rows may hold something else than the fill, so that cells that become the fill have to be written.
    """

    __slots__ = ("columns", "data", "dirty", "group", "rows")

    def __init__(
        self, group: ScalarGroup, rows: Rows, data: NDArray[Any], dirty: bool, columns: slice = slice(None)
    ) -> None:
        self.group, self.rows, self.data, self.dirty, self.columns = group, rows, data, dirty, columns

    def of(self, columns: slice) -> Scalars:
        """The part for some of the group's fields."""
        return Scalars(self.group, self.rows, self.data, self.dirty, columns)

    @property
    def nbytes(self) -> int:
        return len(self.data) * len(range(*self.columns.indices(len(self.group.fields)))) * self.group.dtype.itemsize

    def segments(self) -> Iterator[Segment]:
        """Field by field, as a packet on the wire has them; fields that hold the fill already are left out."""
        fields, data, fills = (
            self.group.fields[self.columns],
            self.data[:, self.columns],
            self.group.fills[self.columns],
        )
        differs = (_bits(data) != _bits(fills)).any(axis=0) | self.group.whole[self.columns] | self.dirty
        for k in np.flatnonzero(differs).tolist():
            if len(data) == 1 and (len(self.rows) > 1 or data[0, k] == fills[k]):
                yield Fill(fields[k], self.rows, 0, 1, data[0, k].item())
            else:
                yield Block(fields[k], self.rows, 0, data[:, k : k + 1])


def _bits(values: NDArray[Any]) -> NDArray[Any]:
    """As whole numbers, so that -0.0 is not 0.0."""
    return np.ascontiguousarray(values).view(f"u{values.itemsize}")
