"""Strided memory as runs of bytes that are dense on both sides."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from slotline.core.layout import BufferLayout

Strides = tuple[int, ...]


def bytes_of(array: NDArray[Any]) -> NDArray[np.uint8]:
    """The bytes of a C-contiguous array as one axis, without a copy."""
    if not array.flags.c_contiguous:
        raise ValueError("bytes_of needs a C-contiguous array")
    return array.reshape(-1).view(np.uint8)


def segments(
    shape: tuple[int, ...], left: Strides, itemsize: int, right: Strides
) -> Iterator[tuple[tuple[int, int], int]]:
    """Runs that are dense under both strides, as ((left offset, right offset), cells); offsets in bytes.

    Together they cover every cell of ``shape`` once. Axes of length 1 count for nothing; a shape without cells gives
    no run.
    """
    if 0 in shape:
        return
    axes = [axis for axis, size in enumerate(shape) if size > 1]
    cells = 1
    while axes and left[axes[-1]] == right[axes[-1]] == cells * itemsize:
        cells *= shape[axes.pop()]
    steps = [[(i * left[a], i * right[a]) for i in range(shape[a])] for a in axes]
    for combination in itertools.product(*steps):
        yield (sum(a for a, _ in combination), sum(b for _, b in combination)), cells


def row_segments(layout: BufferLayout, index: int, rows: NDArray[Any], host: NDArray[Any]) -> Iterator[tuple[int, int]]:
    """Runs (offset in bytes, cells) that cover the parts of ``rows`` in ``host``, a C-contiguous copy of a field."""
    field = list(layout)[index]
    axis = field.slot_axis or 0
    inner = math.prod(host.shape[axis + 1 :])
    outer = math.prod(host.shape[:axis])
    if not inner * outer:
        return
    for o in range(outer):
        for row in rows.tolist():
            yield (o * host.shape[axis] + row) * inner * host.itemsize, inner
