"""Plain ways of doing what slotline does, over the same layout: what its ratios are told against."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slotline.core.batch import SlotBatch
from slotline.core.field import KEEP
from slotline.core.layout import BufferLayout


def plain_copy(layout: BufferLayout, count: int) -> Callable[[], None]:
    """``np.copyto``, row by row, of the row bytes of every field, into ``count`` rows of buffers of the same shapes."""
    pairs = []
    for f in layout:
        if f.slot_axis is None:
            continue
        shape = layout.shape(f.name)
        buffer = np.zeros((shape[f.slot_axis], *layout.row_shape(f.name)), f.dtype)
        pairs.append((np.zeros(layout.row_shape(f.name), f.dtype), buffer))

    def run() -> None:
        for row, buffer in pairs:
            for slot in range(count):
                np.copyto(buffer[slot : slot + 1] if row.ndim == 0 else buffer[slot], row)

    return run


class Writes:
    """What a prefill writes into each row of each field: taken from a batch that holds the requests already."""

    def __init__(self, batch: SlotBatch, slots: list[int]) -> None:
        self.layout, self.slots = batch.layout, slots
        self.rows: list[tuple[str, Any, list[Any]]] = []
        """(field, fill, for each slot a number or the payload of a row with its fill left out)"""
        for f in batch.layout:
            if f.slot_axis != 0 or f.rule("prefill") is KEEP or len(batch.layout.shape(f.name)) > 2:
                continue
            cells = batch.host_array(f.name)
            values: list[Any] = []
            for slot in slots:
                row = cells[slot]
                if row.ndim:
                    used = np.flatnonzero(row != np.asarray(f.fill, row.dtype))
                    values.append(row[: used[-1] + 1 if len(used) else 0].copy())
                else:
                    values.append(row.item())
            self.rows.append((f.name, f.fill, values))

    @property
    def fields(self) -> int:
        return len(self.rows)

    def loop(self, framework: str, *, temporary: bool = False) -> Callable[[], None]:
        """A loop over requests and fields with one or two slice assignments each: the usual way.

        ``temporary``: a new tensor for each write, as engines make from lists.
        """
        made = {name: self._buffer(framework, name) for name, _, _ in self.rows}
        wrap = _wrap(framework, temporary=temporary)
        work = [
            (made[name], fill, [v if isinstance(v, (int, float, bool)) else (len(v), wrap(v)) for v in values], values)
            for name, fill, values in self.rows
        ]

        def run() -> None:
            for position, slot in enumerate(self.slots):
                for buffer, fill, ready, plain in work:
                    value = ready[position]
                    if isinstance(value, tuple):
                        length, row = value
                        buffer[slot, :length] = wrap(plain[position]) if temporary else row
                        buffer[slot, length:] = fill
                    elif temporary:
                        buffer[slot : slot + 1] = wrap([value])
                    else:
                        buffer[slot : slot + 1] = value

        return run

    def _buffer(self, framework: str, name: str) -> Any:
        array: NDArray[Any] = np.zeros(self.layout.shape(name), self.layout[name].dtype)
        return _wrap(framework)(array)


def _wrap(framework: str, *, temporary: bool = False) -> Callable[[Any], Any]:
    if framework == "numpy":
        return np.array if temporary else lambda array: array
    module = importlib.import_module(framework)
    if framework == "torch":
        return module.tensor if temporary else module.from_numpy  # type: ignore[no-any-return]
    return module.to_tensor  # type: ignore[no-any-return]
