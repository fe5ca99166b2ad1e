"""The pool of KV-cache blocks."""

from __future__ import annotations


class BlockPool:
    """Hands out the blocks ``0 .. count - 1``; the ones given back last go out first, so ids are soon mixed.

    Memory follows the blocks that were ever in use, not ``count``.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._fresh = 0  # blocks from here on were never handed out
        self._back: list[int] = []

    @property
    def num_free(self) -> int:
        return self.count - self._fresh + len(self._back)

    def take(self, count: int) -> list[int]:
        """``count`` blocks. ``ValueError`` if there are fewer; ask ``num_free`` first."""
        if count > self.num_free:
            raise ValueError(f"{count} blocks asked for, {self.num_free} free of {self.count}")
        return [self._one() for _ in range(count)]

    def _one(self) -> int:
        if self._back:
            return self._back.pop()
        self._fresh += 1
        return self._fresh - 1

    def give(self, blocks: list[int]) -> None:
        self._back.extend(blocks)
