"""What is said of a race: the cells, both operations, and where each was queued."""

from __future__ import annotations

import sys
from pathlib import Path
from types import CodeType
from typing import NamedTuple

from slotline.core.errors import SlotlineError

_HERE = str(Path(__file__).parent)
_DEPTH = 24
"""Frames that are kept of a stack."""

Stack = tuple[tuple[CodeType, int], ...]


def stack() -> Stack:
    """The callers, innermost first, without this folder's own; cheap, since nothing is read or formatted yet."""
    frame, found = sys._getframe(1), []
    while frame is not None and len(found) < _DEPTH:
        if not frame.f_code.co_filename.startswith(_HERE):
            found.append((frame.f_code, frame.f_lineno))
        frame = frame.f_back  # type: ignore[assignment]
    return tuple(found)


class Operation(NamedTuple):
    """Something that was queued, or that the host did."""

    name: str
    thread: str
    """``stream 3`` or ``host``."""
    stack: Stack

    def text(self, frames: int = 8) -> str:
        lines = [
            f"      {Path(code.co_filename).name}:{line} in {code.co_qualname}" for code, line in self.stack[:frames]
        ]
        return "\n".join([f"    {self.name}, on {self.thread}, queued at", *lines])


class Race(SlotlineError):
    """Two accesses to the same cells, at least one of them a write, that nothing orders."""

    def __init__(self, buffer: str, where: str, before: Operation, writes: str, after: Operation, doing: str) -> None:
        self.buffer, self.where, self.before, self.after = buffer, where, before, after
        self.did, self.doing = writes, doing
        super().__init__(
            f"race on {buffer}, {where}: no stream order, event or synchronisation lies between\n"
            f"  this, which {writes} it:\n{before.text()}\n  and this, which {doing} it:\n{after.text()}"
        )

    def __reduce__(self) -> tuple[object, ...]:
        return SlotlineError, (str(self),)
