"""What is said of a race: the cells, both operations, and where each was queued."""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
from pathlib import Path
from types import CodeType, FrameType
from typing import NamedTuple

from slotline.core.errors import SlotlineError

_HERE = str(Path(__file__).parent) + os.sep
_PACKAGE = str(Path(__file__).parents[2]) + os.sep
_OUTSIDE = tuple(str(Path(*parts)) for parts in (("slotline", "testing", "simulate.py"), ("_pytest", "python.py")))
"""What calls a user's loop; who calls that tells nothing."""
_DEPTH = 24
"""Frames that are kept of a stack."""

Stack = tuple[tuple[CodeType, int], ...]


def stack() -> Stack:
    """The callers, innermost first, without this folder's own; cheap, since nothing is read or formatted yet."""
    found: list[tuple[CodeType, int]] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and len(found) < _DEPTH:
        file = frame.f_code.co_filename
        if file.endswith(_OUTSIDE):
            break
        if not file.startswith(_HERE) and file != contextlib.__file__:
            found.append((frame.f_code, frame.f_lineno))
        frame = frame.f_back
    return tuple(found)


class Operation(NamedTuple):
    """Something that was queued, or that the host did."""

    name: str
    thread: str
    """``stream 3`` or ``the host``."""
    stack: Stack

    def text(self, frames: int = 8) -> str:
        """What it was and who asked for it, innermost first; what slotline did on the way is one line."""
        did = "done" if self.thread == "the host" else "queued"
        lines = [f"    {self.name}, on {self.thread}, {did} at"]
        for own, group in itertools.groupby(self.stack, lambda frame: frame[0].co_filename.startswith(_PACKAGE)):
            calls = list(group)
            if own:
                lines.append(f"      inside slotline: {' > '.join(code.co_name for code, _ in reversed(calls))}")
            else:
                lines += [f"      {_short(code.co_filename)}:{line} in {code.co_qualname}" for code, line in calls]
        return "\n".join(lines[: frames + 1])


def _short(file: str) -> str:
    """``file`` from the working folder on, else its last two parts."""
    path = Path(file)
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else Path(*path.parts[-2:]))


class Race(SlotlineError):
    """Two accesses to the same cells, at least one of them a write, that nothing orders."""

    def __init__(self, where: str, before: Operation, did: str, after: Operation, doing: str) -> None:
        self.where, self.before, self.after = where, before, after
        super().__init__(
            f"race on {where}: no stream order, event or synchronisation lies between\n"
            f"  this, which {did} it:\n{before.text()}\n  and this, which {doing} it:\n{after.text()}"
        )

    def __reduce__(self) -> tuple[object, ...]:
        return _told, (str(self), self.where)  # stacks stay in their process


def _told(text: str, where: str) -> Race:
    race = Race.__new__(Race, text)
    race.where = where
    return race
