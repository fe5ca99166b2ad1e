"""Counters (rules O): what was moved, launched and waited for, by operation. Tests of I4 and W6 assert them."""

from __future__ import annotations

from collections import Counter

COUNTERS = (
    "transfers",  # host-to-device copies
    "bytes",  # moved by them
    "kernels",  # apply kernels, or their per-field stand-ins
    "host_synchronisations",
    "device_to_host",  # copies the other way
    "staging_waits",  # for the oldest write, when the staging memory is used up
    "splits",  # transfers beyond the first of what is larger than the staging memory
    "stale_results",
)


class Stats:
    """Counts by (counter, operation). ``stats["transfers"]`` is the sum over operations."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()

    def add(self, counter: str, operation: str, amount: int = 1) -> None:
        if counter not in COUNTERS:
            raise KeyError(counter)
        self._counts[counter, operation] += amount

    def __getitem__(self, counter: str) -> int:
        if counter not in COUNTERS:
            raise KeyError(f"no counter {counter!r}; known: {', '.join(COUNTERS)}")
        return sum(n for (c, _), n in self._counts.items() if c == counter)

    def by_operation(self, counter: str) -> dict[str, int]:
        return {op: n for (c, op), n in sorted(self._counts.items()) if c == counter}

    def as_dict(self) -> dict[str, int]:
        """Every counter with its sum over operations."""
        return {counter: self[counter] for counter in COUNTERS}

    def clear(self) -> None:
        self._counts.clear()
