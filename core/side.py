"""Side tables and callbacks: host objects that follow the requests through their slots (rule F5)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from slotline.core.tasks import Request


class SideTable:
    """One host object for each occupied slot; ``table[slot]`` is None for a free one.

    Each object is made by ``factory(request)`` when its request takes a slot, moves with it, and is dropped with it.
    """

    def __init__(self, name: str, factory: Callable[[Request], Any], size: int) -> None:
        self.name, self.factory = name, factory
        self._entries: list[Any] = [None] * size

    def __getitem__(self, slot: int) -> Any:
        return self._entries[slot]

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._entries)

    def put(self, slot: int, entry: Any) -> None:
        self._entries[slot] = entry

    def permute(self, dst: list[int], src: list[int]) -> None:
        moved = [self._entries[s] for s in src]
        for slot, entry in zip(dst, moved, strict=True):
            self._entries[slot] = entry


class Sides:
    """All side tables and callbacks of a batch."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.tables: dict[str, SideTable] = {}
        self.inserted: list[Callable[[str, int, int], None]] = []
        self.moved: list[Callable[[str, int, int], None]] = []
        self.released: list[Callable[[str, int], None]] = []

    def make(self, requests: list[Request]) -> list[list[Any]]:
        """The entries of ``requests`` for every table; made before anything is written, since a factory may raise."""
        return [[table.factory(r) for r in requests] for table in self.tables.values()]

    def put(self, slots: list[int], made: list[list[Any]]) -> None:
        for table, entries in zip(self.tables.values(), made, strict=True):
            for slot, entry in zip(slots, entries, strict=True):
                table.put(slot, entry)

    def drop(self, slots: list[int]) -> None:
        for table in self.tables.values():
            for slot in slots:
                table.put(slot, None)

    def permute(self, dst: list[int], src: list[int]) -> None:
        for table in self.tables.values():
            table.permute(dst, src)
