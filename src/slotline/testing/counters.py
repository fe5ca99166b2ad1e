"""Counters as assertions: that a piece of an engine's loop makes the device wait for nobody (rules I4, W6, O)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from slotline.core.stats import Stats

WAITS = ("host_synchronisations", "staging_waits")
"""Counters of what waits on the host for queued work."""


@contextmanager
def assert_no_sync(*counted: Any, device_to_host: bool = False) -> Iterator[None]:
    """What runs inside makes no host synchronisation and waits for no staging memory.

    ``counted``: batches and backends (whatever has ``stats``); a batch counts with its backend. ``device_to_host``: a
    fetch may be started inside; without, that too is an ``AssertionError``, which names the operations.
    """
    stats: list[Stats] = []
    for thing in counted:
        stats.append(thing.stats)
        backend = getattr(thing, "backend", None)
        if backend is not None:
            stats.append(backend.stats)
    if not stats:
        raise TypeError("assert_no_sync() counts nothing; pass the batch, or the backend")
    names = WAITS if device_to_host else (*WAITS, "device_to_host")
    before = [{name: one.by_operation(name) for name in names} for one in stats]
    yield
    found = [
        f"{name} {count - then[name].get(operation, 0)} (by {operation})"
        for one, then in zip(stats, before, strict=True)
        for name in names
        for operation, count in one.by_operation(name).items()
        if count > then[name].get(operation, 0)
    ]
    if found:
        raise AssertionError(f"the host waited for the device: {', '.join(found)}")
