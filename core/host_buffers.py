"""Packets into NumPy arrays: the buffers of a layout as matrices [rows, cells], seen once (rules B8, B10)."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slotline.core.layout import BufferLayout
from slotline.core.packet import Packet
from slotline.core.runs import Runs
from slotline.core.scalars import ScalarGroup, Scalars
from slotline.core.segments import write_rows

Vectors = list[tuple[int, NDArray[Any]]]


class HostBuffers:
    """``arrays``: one for each field of the layout in order; None: not written here. They never move."""

    def __init__(self, layout: BufferLayout, arrays: Sequence[NDArray[Any] | None]) -> None:
        self.arrays = list(arrays)
        self._axes = [f.slot_axis or 0 for f in layout]
        self._cells = [None if a is None else _cells(a, axis) for a, axis in zip(self.arrays, self._axes, strict=True)]
        self._vectors: dict[ScalarGroup, tuple[slice, NDArray[Any]] | Vectors] = {}

    def apply(self, packet: Packet) -> None:
        """Write a packet; what concerns other fields is left out."""
        for part in packet.parts:
            if isinstance(part, Scalars):
                self._scalars(part)
                continue
            cells = self._cells[part.field]
            if cells is not None:
                part.write(cells)
            elif (buffer := self.arrays[part.field]) is not None:
                segment = part.spans() if isinstance(part, Runs) else part
                write_rows(segment, buffer, self._axes[part.field])

    def _scalars(self, part: Scalars) -> None:
        vectors = self._vectors.get(part.group)
        if vectors is None:
            vectors = self._vectors[part.group] = self._find(part.group)
        rows, data = part.rows, part.data
        if isinstance(vectors, list):
            for k, vector in vectors:
                vector[rows] = data[:, k]
            return
        columns, matrix = vectors
        if len(rows) == 1:
            matrix[:, rows[0]] = data[0, columns]
        elif rows[-1] - rows[0] == len(rows) - 1:
            matrix[:, rows[0] : rows[-1] + 1] = data[:, columns].T
        else:
            matrix[:, rows] = data[:, columns].T

    def _find(self, group: ScalarGroup) -> tuple[slice, NDArray[Any]] | Vectors:
        """The group's vectors that are here: as rows of one matrix, or one by one."""
        found: Vectors = []
        for k, index in enumerate(group.fields):
            cells, array = self._cells[index], self.arrays[index]
            if array is not None:  # a row has one cell, so its cells are always seen without a copy
                assert cells is not None
                found.append((k, cells[:, 0]))
        first, last = (found[0][0], found[-1][0] + 1) if found else (0, 0)
        if not found or last - first != len(found):
            return found
        matrix = _matrix([vector for _, vector in found])
        return found if matrix is None else (slice(first, last), matrix)


def _cells(buffer: NDArray[Any], slot_axis: int) -> NDArray[Any] | None:
    """The buffer as [rows, cells] over its own memory; None where that takes a copy."""
    if buffer.ndim == 0:
        return None
    rows_first = np.moveaxis(buffer, slot_axis, 0)
    cells = rows_first.reshape(len(rows_first), math.prod(rows_first.shape[1:]))
    return cells if np.may_share_memory(cells, buffer) or not cells.size else None


def _matrix(vectors: Sequence[NDArray[Any]]) -> NDArray[Any] | None:
    """Vectors that follow each other in memory as one matrix over it; None: they do not."""
    at = [v.__array_interface__["data"][0] for v in vectors]
    size, itemsize = len(vectors[0]), vectors[0].itemsize
    step = size * itemsize
    if any(v.strides != (itemsize,) for v in vectors) or any(a != at[0] + k * step for k, a in enumerate(at)):
        return None
    # The memory of each belongs to its own array, all of which live as long as the batch.
    shape, strides = (len(vectors), size), (step, itemsize)
    return np.lib.stride_tricks.as_strided(vectors[0], shape, strides)


def side_by_side(specs: Sequence[tuple[tuple[int, ...], np.dtype[Any]]]) -> list[NDArray[Any]]:
    """A new array for each (shape, dtype); vectors of one length and dtype lie one behind the other in memory."""
    alike = Counter(spec for spec in specs if _is_vector(spec[0]))
    stores = {(shape, dtype): iter(np.empty((n, *shape), dtype)) for (shape, dtype), n in alike.items()}
    return [next(stores[spec]) if spec in stores else np.empty(*spec) for spec in specs]


def _is_vector(shape: tuple[int, ...]) -> bool:
    return len(shape) > 0 and math.prod(shape) == shape[0] > 0
