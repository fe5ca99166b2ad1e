"""Memory of the simulated device: real host memory at real addresses, and whose it is."""

from __future__ import annotations

import bisect
import threading
import weakref
from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

ALIGNMENT = 256
POISON = 0xA5
"""What lies in memory that nobody may look at; as a token id it is far outside of any vocabulary."""

LONGEST_POISON = 1 << 20
"""Bytes of new memory that are poisoned; staging memory may have much more, and is poisoned when it is released."""


class Allocation:
    """One piece of memory, alive as long as something holds it."""

    def __init__(self, nbytes: int, kind: str, name: str) -> None:
        size = max(1, -(-nbytes // 8)) * 8
        whole = np.empty(size + ALIGNMENT, np.uint8)
        skip = -whole.ctypes.data % ALIGNMENT
        self.bytes: NDArray[np.uint8] = whole[skip : skip + size]
        self.base, self.nbytes, self.kind = self.bytes.ctypes.data, nbytes, kind
        self._names = [(0, name, 0)]
        """What begins at which byte, and how many bytes its rows have (0: it has none), for reports."""
        self.shadow: dict[int, Any] = {}
        """What the detector knows, by thread."""
        self.freed = False

    def array(self, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        """Its memory as an array."""
        found: NDArray[Any] = self.bytes[: self.nbytes].view(dtype).reshape(shape)
        return found

    def poison(self, offset: int = 0, nbytes: int | None = None) -> None:
        self.bytes[offset : None if nbytes is None else offset + nbytes] = POISON

    def call(self, offset: int, name: str, row_nbytes: int = 0) -> None:
        """What begins at ``offset`` is called ``name``."""
        self._names = sorted([n for n in self._names if n[0] != offset] + [(offset, name, max(0, row_nbytes))])

    @property
    def name(self) -> str:
        return self._names[0][1]

    def where(self, offsets: NDArray[np.int64]) -> str:
        """What these bytes are called: of all that has a name, the first that they touch, and which of its rows."""
        first = int(offsets.min())
        at = max(0, bisect.bisect_right(self._names, first, key=lambda n: n[0]) - 1)
        start, name, row_nbytes = self._names[at]
        end = self._names[at + 1][0] if at + 1 < len(self._names) else len(self.bytes)
        inside = np.unique(offsets[(offsets >= start) & (offsets < end)]) - start
        if not row_nbytes:
            return f"{name}, {_listed('byte', inside.tolist())}"
        return f"{name}, {_listed('row', np.unique(inside // row_nbytes).tolist())}"


def _listed(word: str, numbers: list[int]) -> str:
    """``row 3``, ``rows 3 to 7``, ``rows 1, 4, 9 and 12 more``."""
    if len(numbers) == 1:
        return f"{word} {numbers[0]}"
    if numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"{word}s {numbers[0]} to {numbers[-1]}"
    more = f" and {len(numbers) - 8} more" if len(numbers) > 8 else ""
    return f"{word}s {', '.join(map(str, numbers[:8]))}{more}"


class Memory:
    """Every allocation that is alive, by address."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._bases: list[int] = []
        self._by_base: dict[int, weakref.ref[Allocation]] = {}
        self._held: dict[int, Allocation] = {}
        self._gone: deque[int] = deque()
        """Bases of dead allocations. They die anywhere, where the collector runs too, so that is only noted here."""

    def allocate(self, nbytes: int, kind: str, name: str, *, held: bool = False) -> Allocation:
        """New, poisoned memory. ``held``: until ``free``; else as long as the caller holds it."""
        found = Allocation(nbytes, kind, name)
        found.poison(0, LONGEST_POISON)
        base = found.base
        with self._lock:
            self._sweep()  # above all of one that lay here before
            bisect.insort(self._bases, base)
            self._by_base[base] = weakref.ref(found, lambda _: self._gone.append(base))
            if held:
                self._held[base] = found
        return found

    def free(self, address: int) -> None:
        """Give held memory back; ``KeyError`` if there is none at ``address``."""
        with self._lock:
            found = self._held.pop(address)
        found.freed = True
        found.poison()

    def find(self, address: int) -> Allocation | None:
        """The allocation that holds ``address``; None: it is somebody's pageable memory."""
        with self._lock:
            self._sweep()
            at = bisect.bisect_right(self._bases, address) - 1
            if at < 0:
                return None
            found = self._by_base[self._bases[at]]()
        return found if found is not None and address < found.base + len(found.bytes) else None

    def __len__(self) -> int:
        with self._lock:
            self._sweep()
            return len(self._bases)

    def _sweep(self) -> None:
        while self._gone:
            base = self._gone.popleft()
            del self._by_base[base]
            del self._bases[bisect.bisect_left(self._bases, base)]
