"""Memory that is kept between calls, so that looking at many ids takes no new memory each time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from slotline.core.ids import EMPTY, Ids

_AT_ONCE = 1 << 15
"""Ids that are looked at together: what a processor's cache holds."""


_FEW = 64
"""Ids up to which Python's own numbers are quicker than an array's functions."""


class Scratch:
    """Buffers of one batch; what one call gives is good until the next call of the same name."""

    def __init__(self) -> None:
        self._ids: Ids = np.empty(_AT_ONCE, np.int64)

    def joined(self, arrays: Sequence[Ids]) -> Ids:
        """``arrays`` one after another, in memory that is used again."""
        if len(arrays) == 1:
            return arrays[0]
        if not arrays:
            return EMPTY
        total = sum(map(len, arrays))
        if total > len(self._ids):
            self._ids = np.empty(max(total, 2 * len(self._ids)), np.int64)
        return np.concatenate(arrays, out=self._ids[:total])

    def all_below(self, arrays: Sequence[Ids], limit: int) -> bool:
        """Whether all ids of ``arrays`` lie in [0, limit)."""
        part: list[Ids] = []
        size = 0
        for array in arrays:
            if part and size + len(array) > _AT_ONCE:
                if not below(self.joined(part), limit):
                    return False
                part, size = [], 0
            part.append(array)
            size += len(array)
        return below(self.joined(part), limit)


def below(ids: Ids, limit: int) -> bool:
    """All of ``ids`` lie in [0, limit)."""
    if len(ids) <= _FEW:
        few = ids.tolist()
        return not few or (min(few) >= 0 and max(few) < limit)
    return bool(np.maximum.reduce(ids.view(np.uint64)) < limit)


def each_once(ids: Ids, lens: Sequence[int], tables: Sequence[Ids], but: int | None) -> bool:
    """No id stands twice in one of ``tables``, whose ids one after another are ``ids``; ``but`` may."""
    if len(ids) <= _FEW:
        for table in tables:
            found = table.tolist() if but is None else [n for n in table.tolist() if n != but]
            if len(set(found)) < len(found):
                return False
        return True
    width = lens[0]
    if lens.count(width) == len(lens) and but is None:
        rows = ids.reshape(len(lens), width).astype(np.int32)
        rows.sort(axis=1)
        return not bool((rows[:, 1:] == rows[:, :-1]).any())
    keys: NDArray[np.int64] = np.repeat(np.arange(len(tables), dtype=np.int64) << 32, lens)
    keys |= ids
    if but is not None:
        keys = keys[ids != but]
    keys.sort()
    return not bool((keys[1:] == keys[:-1]).any())
