"""Memory of the simulated device: real host memory at real addresses, and whose it is."""

from __future__ import annotations

import bisect
import weakref
from collections.abc import Callable
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

    def __init__(self, nbytes: int, kind: str, name: str, gone: Callable[[int], None]) -> None:
        size = max(1, -(-nbytes // 8)) * 8
        whole = np.empty(size + ALIGNMENT, np.uint8)
        skip = -whole.ctypes.data % ALIGNMENT
        self.bytes: NDArray[np.uint8] = whole[skip : skip + size]
        self.base, self.nbytes, self.kind, self.name = self.bytes.ctypes.data, nbytes, kind, name
        self.shape: tuple[int, ...] = (nbytes,)
        self.row_nbytes = 0
        """Bytes of a row, for reports; 0: it has none."""
        self.shadow: dict[int, Any] = {}
        """What the detector knows, by thread."""
        self.freed = False
        self._gone = gone

    def array(self, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        """Its memory as an array."""
        found: NDArray[Any] = self.bytes[: self.nbytes].view(dtype).reshape(shape)
        return found

    def poison(self, offset: int = 0, nbytes: int | None = None) -> None:
        self.bytes[offset : None if nbytes is None else offset + nbytes] = POISON

    def where(self, offset: int) -> str:
        """What a byte is called in a report."""
        if self.row_nbytes:
            return f"row {offset // self.row_nbytes}"
        return f"byte {offset}"

    def __del__(self) -> None:
        self._gone(self.base)


class Memory:
    """Every allocation that is alive, by address."""

    def __init__(self) -> None:
        self._bases: list[int] = []
        self._by_base: dict[int, weakref.ref[Allocation]] = {}
        self._held: dict[int, Allocation] = {}

    def allocate(self, nbytes: int, kind: str, name: str, *, held: bool = False) -> Allocation:
        """New, poisoned memory. ``held``: until ``free``; else as long as the caller holds it."""
        found = Allocation(nbytes, kind, name, self._forget)
        found.poison(0, LONGEST_POISON)
        bisect.insort(self._bases, found.base)
        self._by_base[found.base] = weakref.ref(found)
        if held:
            self._held[found.base] = found
        return found

    def free(self, address: int) -> None:
        """Give held memory back; ``KeyError`` if there is none at ``address``."""
        found = self._held.pop(address)
        found.freed = True
        found.poison()

    def find(self, address: int) -> Allocation | None:
        """The allocation that holds ``address``; None: it is somebody's pageable memory."""
        at = bisect.bisect_right(self._bases, address) - 1
        if at < 0:
            return None
        found = self._by_base[self._bases[at]]()
        return found if found is not None and address < found.base + len(found.bytes) else None

    def _forget(self, base: int) -> None:
        self._by_base.pop(base, None)
        at = bisect.bisect_left(self._bases, base)
        if at < len(self._bases) and self._bases[at] == base:
            del self._bases[at]

    def __len__(self) -> int:
        return len(self._bases)
