"""What a command prints: with ``--json`` one line on stdout, everything else on stderr."""

from __future__ import annotations

import sys
from typing import Any

import msgspec
from rich.console import Console

stdout = Console()
stderr = Console(stderr=True)


def print_json(value: Any) -> None:
    """``value`` as exactly one line on stdout."""
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")
    sys.stdout.flush()


def complain(message: str) -> None:
    """One line about an error on stderr."""
    print(f"slotline: {' '.join(message.split())}", file=sys.stderr)
