"""Access: exact cells of one allocation, as an operation touches them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from slotline.backends.sim.memory import Allocation


class Access(NamedTuple):
    """A strided region, or cells by their offsets. Cells in between are not touched."""

    allocation: Allocation
    offset: int
    """Of the first byte."""
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    itemsize: int = 1
    cells: NDArray[np.int64] | None = None
    """Byte offsets of cells, instead of shape and strides."""

    @property
    def is_empty(self) -> bool:
        return 0 in self.shape if self.cells is None else not self.cells.size

    @property
    def bounds(self) -> tuple[int, int]:
        """The first byte, and the one behind the last."""
        if self.cells is not None:
            return int(self.cells.min()), int(self.cells.max()) + self.itemsize
        steps = [(n - 1) * s for n, s in zip(self.shape, self.strides, strict=True)]
        low, high = sum(s for s in steps if s < 0), sum(s for s in steps if s > 0)
        return self.offset + low, self.offset + high + self.itemsize

    def of(self, shadow: NDArray[np.int64]) -> NDArray[np.int64]:
        """The touched entries of ``shadow``, which has one for each byte; a view where cells are a region."""
        if self.cells is None:
            if len(self.shape) == 1 and self.strides[0] == self.itemsize:
                return shadow[self.offset : self.offset + self.shape[0] * self.itemsize]
            return self._region(shadow)
        return self._rows(shadow)[self.cells // self.itemsize] if self._aligned else shadow[self._bytes()]

    def set(self, shadow: NDArray[np.int64], value: int) -> None:
        """Write ``value`` into the touched entries of ``shadow``."""
        if self.cells is None:
            self.of(shadow)[...] = value
        elif self._aligned:
            self._rows(shadow)[self.cells // self.itemsize] = value
        else:
            shadow[self._bytes()] = value

    def touched(self) -> NDArray[np.int64]:
        """The offset of each touched byte, in the order of ``of``, flat."""
        if self.cells is not None:
            return self._bytes().reshape(-1)
        offsets = np.full((*self.shape, self.itemsize), self.offset, np.int64) + np.arange(self.itemsize)
        for axis, (size, stride) in enumerate(zip(self.shape, self.strides, strict=True)):
            offsets += (np.arange(size) * stride).reshape(-1, *(1,) * (len(self.shape) - axis))
        return offsets.reshape(-1)

    def _region(self, shadow: NDArray[np.int64]) -> NDArray[np.int64]:
        width = shadow.itemsize
        strides = (*(s * width for s in self.strides), width)
        return np.ndarray((*self.shape, self.itemsize), np.int64, shadow, self.offset * width, strides)

    @property
    def _aligned(self) -> bool:
        return self.itemsize == 1 or not (self.cells is None or (self.cells % self.itemsize).any())

    def _rows(self, shadow: NDArray[np.int64]) -> NDArray[np.int64]:
        return shadow.reshape(-1, self.itemsize)  # an allocation is a multiple of eight bytes

    def _bytes(self) -> NDArray[np.int64]:
        assert self.cells is not None
        found: NDArray[np.int64] = self.cells[:, None] + np.arange(self.itemsize)
        return found


def region(
    allocation: Allocation, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int
) -> Access:
    """Strided cells; axes that follow each other in memory are one, since that is quicker."""
    axes: list[tuple[int, int]] = []
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size == 1:
            continue
        if axes and stride == axes[-1][0] * axes[-1][1]:
            axes[-1] = (axes[-1][0] * size, axes[-1][1])
        else:
            axes.append((size, stride))
    axes.reverse()
    if not axes:
        axes = [(1, itemsize)]
    return Access(allocation, offset, tuple(n for n, _ in axes), tuple(s for _, s in axes), itemsize)


def scattered(allocation: Allocation, offsets: NDArray[np.int64], itemsize: int) -> Access:
    """Cells that begin at ``offsets``; a run of neighbours is a region, since that is quicker."""
    first = int(offsets[0])
    if len(offsets) == 1 or (
        int(offsets[-1]) - first == (len(offsets) - 1) * itemsize and bool((np.diff(offsets) == itemsize).all())
    ):
        return Access(allocation, first, (len(offsets),), (itemsize,), itemsize)
    return Access(allocation, 0, itemsize=itemsize, cells=offsets)
