"""The reference's arrays: one NumPy array for each field, written one row at a time."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slotline.core.layout import BufferLayout, numpy_dtype


class RefArrays:
    """Fields by their key (the name that the contract uses); a key that the layout lacks is skipped."""

    def __init__(self, layout: BufferLayout) -> None:
        self.layout = layout
        self.by_name: dict[str, NDArray[Any]] = {}
        self._rows: dict[str, NDArray[Any]] = {}  # by key, slots first
        self._fills: dict[str, Any] = {}
        self._keys: list[str] = []
        for f in layout:
            array = np.full(layout.shape(f.name), f.fill, numpy_dtype(f.dtype))
            self.by_name[f.name] = array
            if f.slot_axis is not None:
                self._rows[f.key] = np.moveaxis(array, f.slot_axis, 0)
                self._fills[f.key] = f.fill
        self._whole = [(self.by_name[f.name], f.fill) for f in layout]

    def fill_all(self) -> None:
        for array, fill in self._whole:
            array[...] = fill

    def clear(self, slot: int) -> None:
        for key, rows in self._rows.items():
            rows[slot] = self._fills[key]

    def set(self, key: str, slot: int, values: Any) -> None:
        """A number goes into every cell of the row; a list or an array into its first cells, the rest is fill."""
        rows = self._rows.get(key)
        if rows is None:
            return
        if isinstance(values, (bool, int, float)) or np.ndim(values) == 0:
            rows[slot] = values
            return
        cells = np.full(math.prod(rows.shape[1:]), self._fills[key], rows.dtype)
        cells[: len(values)] = values
        rows[slot] = cells.reshape(rows.shape[1:])

    def set_both(self, key: str, slot: int, values: Any) -> None:
        """A field of the target and its twin in the drafter (M6)."""
        self.set(key, slot, values)
        self.set(f"mtp.{key}", slot, values)

    def put(self, key: str, slot: int, at: int, values: Any) -> None:
        """Cells from ``at`` on, nothing else of the row."""
        rows = self._rows.get(key)
        if rows is None:
            return
        if rows.ndim == 2:  # the row itself, however long it is
            rows[slot, at : at + len(values)] = values
            return
        cells = rows[slot].reshape(-1).copy()
        cells[at : at + len(values)] = values
        rows[slot] = cells.reshape(rows.shape[1:])

    def set_block(self, key: str, slot: int, block: NDArray[Any]) -> None:
        """An array of the row's rank into its leading corner, the rest is fill."""
        rows = self._rows[key]
        rows[slot] = self._fills[key]
        rows[slot][tuple(slice(n) for n in block.shape)] = block

    def swap(self, i: int, j: int) -> None:
        for rows in self._rows.values():
            kept = rows[i].copy()
            rows[i] = rows[j]
            rows[j] = kept


def bits(array: NDArray[Any]) -> NDArray[Any]:
    """The cells as whole numbers: NaN equals itself, -0.0 does not equal 0.0."""
    return np.ascontiguousarray(array).view(f"u{array.itemsize}")
