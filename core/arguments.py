"""Checks of what a backend is made and asked with."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from slotline.core.errors import ConfigError

DEFAULT_STAGING_BYTES = 64 << 20
MOST_STAGING_BYTES = 1 << 53


def shape(name: str, given: Sequence[int]) -> tuple[int, ...]:
    """``given`` as a tuple of whole numbers; ``TypeError``, and ``ValueError`` for one below 0, naming ``name``."""
    try:
        found = tuple(operator.index(n) for n in given)
    except TypeError:
        raise TypeError(f"{name!r} has shape {given!r}, allowed: a tuple of whole numbers") from None
    if min(found, default=0) < 0:
        raise ValueError(f"{name!r} has shape {list(found)}, allowed: whole numbers of at least 0")
    return found


def staging_bytes(value: Any) -> int:
    """The bound of a ring; ``ConfigError`` for anything else than a whole number that memory can have."""
    try:
        found = 0 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        found = 0
    if not 1 <= found <= MOST_STAGING_BYTES:
        raise ConfigError(f"staging_bytes is {value!r}, allowed: a whole number from 1 to 2**53, such as 64 << 20")
    return found
