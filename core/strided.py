"""Strided memory as runs of bytes that are dense on both sides."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slotline.core.layout import numpy_dtype

if TYPE_CHECKING:
    from slotline.core.device import TensorInfo
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


class Run(NamedTuple):
    """``height`` runs of ``width`` bytes, on the left and on the right ``pitch`` bytes apart; offsets in bytes."""

    left: int
    left_pitch: int
    right: int
    right_pitch: int
    width: int
    height: int


def runs(shape: tuple[int, ...], left: Strides, right: Strides, itemsize: int) -> Iterator[Run]:
    """As few 2-D copies as possible that cover every cell of ``shape`` once, under both strides."""
    if 0 in shape:
        return
    axes = [axis for axis, size in enumerate(shape) if size > 1]
    width = itemsize
    while axes and left[axes[-1]] == right[axes[-1]] == width:
        width *= shape[axes.pop()]
    if not axes:
        yield Run(0, width, 0, width, width, 1)
        return
    # Axes that follow each other on both sides are one.
    joined: list[tuple[int, int, int]] = []
    for axis in reversed(axes):
        size, a, b = shape[axis], left[axis], right[axis]
        if joined and (a, b) == (joined[-1][1] * joined[-1][0], joined[-1][2] * joined[-1][0]):
            inner = joined.pop()
            joined.append((inner[0] * size, inner[1], inner[2]))
        else:
            joined.append((size, a, b))
    tallest = joined.pop(max(range(len(joined)), key=lambda i: joined[i][0]))
    steps = [[(i * a, i * b) for i in range(size)] for size, a, b in reversed(joined)]
    for combination in itertools.product(*steps):
        yield Run(
            sum(a for a, _ in combination),
            tallest[1],
            sum(b for _, b in combination),
            tallest[2],
            width,
            tallest[0],
        )


def cells_apart(shape: tuple[int, ...], strides: Strides, itemsize: int) -> bool:
    """Whether each step along an axis passes over all that lies within; no two cells are one then."""
    extent = itemsize
    for step, size in sorted((abs(step), size) for step, size in zip(strides, shape, strict=True) if size > 1):
        if step < extent:
            return 0 in shape
        extent += step * (size - 1)
    return True


def shadow(info: TensorInfo) -> NDArray[Any]:
    """An array at the addresses of a tensor, which may lie on a device: to compare, never to be looked into."""

    class Addresses:
        __array_interface__: ClassVar[dict[str, Any]] = {
            "version": 3,
            "shape": info.shape,
            "strides": info.strides,
            "typestr": f"|V{numpy_dtype(info.dtype).itemsize}",
            "data": (info.pointer, True),
        }

    return np.asarray(Addresses()) if info.pointer and 0 not in info.shape else np.empty(info.shape, "V1")


def row_runs(
    layout: BufferLayout, index: int, rows: NDArray[Any], host: NDArray[Any], strides: Strides
) -> Iterator[tuple[tuple[int, int], int]]:
    """Runs ((offset in host, offset in the tensor), cells) that cover the parts of ``rows``; offsets in bytes.

    ``host``: a C-contiguous copy of a field; ``strides``: those of its tensor. Rows that follow each other are one run
    where the memory allows it. ``rows`` are ascending.
    """
    axis = list(layout)[index].slot_axis or 0
    if not rows.size:
        return
    for group in np.split(rows, np.flatnonzero(np.diff(rows) != 1) + 1):
        shape = (*host.shape[:axis], len(group), *host.shape[axis + 1 :])
        first = int(group[0])
        for (left, right), cells in segments(shape, host.strides, host.itemsize, strides):
            yield (left + first * host.strides[axis], right + first * strides[axis]), cells
