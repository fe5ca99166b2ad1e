"""Collecting faults while tasks are checked: nothing is raised before everything was looked at (I1)."""

from __future__ import annotations

from typing import Any

from slotline.core.errors import Fault


class Faults:
    """The faults of one call, each with a hint of what to do."""

    def __init__(self) -> None:
        self._found: list[tuple[Fault, str]] = []

    def add(self, request_id: str, field: str, value: Any, bound: Any, hint: str = "") -> None:
        self._found.append((Fault(request_id, field, value, bound), hint))

    def __len__(self) -> int:
        return len(self._found)

    def sorted(self) -> tuple[tuple[Fault, ...], tuple[str, ...]]:
        """Faults and hints, ascending by request id."""
        ordered = sorted(self._found, key=lambda pair: pair[0].request_id)
        return tuple(f for f, _ in ordered), tuple(h for _, h in ordered)
