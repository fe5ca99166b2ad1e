"""Shadow memory: for each byte of an allocation, when one stream read and wrote it last."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from slotline.backends.sim.access import Access

SMALL = 1 << 19
"""Bytes of an allocation whose clocks may stay for ever."""


class Clocks:
    """The clock of the last access of one kind that one stream made to each byte; 0: none that matters."""

    __slots__ = ("_bound", "_clocks", "_noted", "_ranges", "newest")

    def __init__(self, size: int) -> None:
        self._clocks = np.zeros(size, np.int64)  # costs memory only where it is touched
        self._ranges: dict[tuple[int, int], int] = {}
        self._noted, self._bound = 0, SMALL
        self.newest = 0

    def note(self, access: Access, now: int, known: int) -> None:
        """The stream touches these bytes at ``now``; the host, and so all that comes, knows it up to ``known``."""
        self.newest = now
        access.set(self._clocks, now)
        if len(self._clocks) > SMALL:
            bounds = access.bounds
            self._ranges.pop(bounds, None)
            self._ranges[bounds] = now
            self._noted += bounds[1] - bounds[0]
            if self._noted > self._bound:
                self._let_go(known)

    def after(self, access: Access, known: int) -> NDArray[np.int64] | None:
        """The clocks of these bytes, flat, if any of them is newer than ``known``."""
        if self.newest <= known:
            return None
        part = access.of(self._clocks)
        return None if part.max() <= known else part.reshape(-1)

    def _let_go(self, known: int) -> None:
        """Keep only what is newer than ``known``: a ring of staging memory would touch all of it in time."""
        kept = {bounds: clock for bounds, clock in self._ranges.items() if clock > known}
        fresh = np.zeros(len(self._clocks), np.int64)
        for low, high in kept:
            fresh[low:high] = self._clocks[low:high]
        self._clocks, self._ranges = fresh, kept
        self._noted = sum(high - low for low, high in kept)
        self._bound = max(SMALL, 2 * self._noted)


class Shadow:
    """Reads and writes of one stream; each kind takes memory once it happens."""

    __slots__ = ("_size", "reads", "writes")

    def __init__(self, size: int) -> None:
        self._size = size
        self.reads: Clocks | None = None
        self.writes: Clocks | None = None

    def note(self, access: Access, now: int, known: int, *, writing: bool) -> None:
        if writing:
            if self.writes is None:
                self.writes = Clocks(self._size)
            self.writes.note(access, now, known)
        else:
            if self.reads is None:
                self.reads = Clocks(self._size)
            self.reads.note(access, now, known)
