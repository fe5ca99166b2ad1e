"""Simulated devices for tests: a new one for each seed."""

from __future__ import annotations

from typing import Any

from slotline.core.discovery import discover
from slotline.core.loading import load_backend_class


def simulated(seed: int = 0, mode: str = "late", **options: Any) -> Any:
    """A simulated device of its own that executes in the order of ``seed``; a race raises where it is made."""
    return load_backend_class(discover().plugins["sim"])(seed=seed, mode=mode, **options)  # type: ignore[call-arg]
