"""The pool of KV-cache blocks."""

from __future__ import annotations


class BlockPool:
    """Hands out the blocks ``0 .. count - 1``; the ones given back last go out first, so ids are soon mixed."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._free = list(range(count - 1, -1, -1))

    @property
    def num_free(self) -> int:
        return len(self._free)

    def take(self, count: int) -> list[int]:
        """``count`` blocks. ``ValueError`` if there are fewer; ask ``num_free`` first."""
        if count > len(self._free):
            raise ValueError(f"{count} blocks asked for, {len(self._free)} free of {self.count}")
        return [self._free.pop() for _ in range(count)]

    def give(self, blocks: list[int]) -> None:
        self._free.extend(blocks)
