"""Shadow memory: for each byte of an allocation, when one stream read and wrote it last."""

from __future__ import annotations

import mmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slotline.backends.sim.access import Access

SMALL = 1 << 19
"""Bytes of an allocation whose clocks may stay for ever."""
CHUNK = 1 << 16
"""Bytes of a large allocation whose clocks are given back to the system together; whole pages on every system."""


class Clocks:
    """The clock of the last access of one kind that one stream made to each byte; 0: none that matters."""

    __slots__ = ("_bound", "_chunks", "_clocks", "_noted", "_pages", "newest")

    def __init__(self, size: int) -> None:
        self._pages = _pages(8 * size) if size > SMALL else None
        # costs memory only where it is touched
        self._clocks = np.zeros(size, np.int64) if self._pages is None else np.frombuffer(self._pages, np.int64)
        self._chunks = np.zeros(-(-size // CHUNK), np.int64)
        """The newest clock that each chunk may hold; 0: its memory was given back."""
        self._noted, self._bound = 0, SMALL
        self.newest = 0

    def note(self, access: Access, now: int, known: int) -> None:
        """The stream touches these bytes at ``now``; the host, and so all that comes, knows it up to ``known``."""
        self.newest = now
        access.set(self._clocks, now)
        if self._pages is not None:
            low, high = access.bounds
            self._chunks[low // CHUNK : -(-high // CHUNK)] = now
            self._noted += high - low
            if self._noted > self._bound:
                self._let_go(self._pages, known)

    def after(self, access: Access, known: int) -> NDArray[np.int64] | None:
        """The clocks of these bytes, flat, if any of them is newer than ``known``."""
        if self.newest <= known:
            return None
        if self._pages is not None:  # far quicker than to look at each byte
            low, high = access.bounds
            if self._chunks[low // CHUNK : -(-high // CHUNK)].max() <= known:
                return None
        part = access.of(self._clocks)
        return None if part.max() <= known else part.reshape(-1)

    def _let_go(self, pages: mmap.mmap, known: int) -> None:
        """Keep the memory only of what is newer than ``known``: a ring of staging memory would touch all in time.

        What is given back in place reads as 0, or as what it was where a system cannot do it; neither is newer.
        """
        old = (self._chunks > 0) & (self._chunks <= known)
        edges = np.flatnonzero(np.diff(old, prepend=False, append=False)).tolist()
        for first, last in zip(edges[::2], edges[1::2], strict=True):
            start, stop = 8 * CHUNK * first, min(8 * CHUNK * last, len(pages))
            if hasattr(mmap, "MADV_DONTNEED"):
                pages.madvise(mmap.MADV_DONTNEED, start, stop - start)
        self._chunks[old] = 0
        self._noted, self._bound = 0, max(SMALL, CHUNK * int(np.count_nonzero(self._chunks)))


def _pages(nbytes: int) -> mmap.mmap:
    """Zeros; private, since only private memory is given back."""
    private: dict[str, Any] = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
    return mmap.mmap(-1, nbytes, **private)


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
