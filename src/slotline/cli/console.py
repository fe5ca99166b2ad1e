"""Where text goes: results to stdout, everything else to stderr; with ``--json`` one line is all that stdout gets."""

from __future__ import annotations

import json
import sys
from typing import Any

from rich.console import Console

WIDTH = 120
"""Columns where no terminal says how many there are."""


def out() -> Console:
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=WIDTH)


def err() -> Console:
    return Console(stderr=True, highlight=False)


def print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, allow_nan=False) + "\n")


def complain(text: str, kind: str = "error") -> None:
    """One line on stderr."""
    line = " ".join(str(text).split())
    sys.stderr.write(f"slotline: {kind}: {line}\n".encode(errors="replace").decode(errors="replace"))


def bar(share: float, width: int, console: Console) -> str:
    """A bar of ``share`` (0 to 1) of ``width`` columns; something that is not nothing has one column at least."""
    full = "█" if (console.encoding or "").lower().startswith("utf") else "#"
    return full * max(round(share * width), int(share > 0))


def human_bytes(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024 or unit == "GiB":
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError
