"""What the pages of ``slotline bench --report`` and ``slotline replay --report`` show."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from slotline.bench.html import Page

AXES = ("requests", "tokens", "source", "slots", "drafts")
MOST_POINTS = 2000
"""Of one line: more are averaged in groups, or the page grows without showing more."""


def bench_page(report: Mapping[str, Any], path: Path) -> None:
    """All cases in tables, and cost by size where a group has sizes."""
    told = report["machine"]
    page = Page(
        f"slotline bench: {report['backend']} ({report['framework']})",
        f"{told['processor']}, {told['cores']} cores, {told['system']}, Python {told['python']}, NumPy "
        f"{told['numpy']}; medians of {report['rounds']} rounds, each case and its baselines in turn. Ratios below 1: "
        "slotline is faster.",
    )
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in report["results"]:
        groups.setdefault(row["group"], []).append(row)
    for group, rows in groups.items():
        page.heading(group)
        for axis in ("tokens", "requests", "slots", "fields", "cells"):
            lines = _by_axis(rows, axis)
            if lines:
                page.plot(f"{group}: cost by {axis}", lines, axis, "microseconds for each", logarithmic=True)
        page.table([{k: v for k, v in row.items() if k not in ("group", "us_quartiles")} for row in rows])
    page.write(path)


def _by_axis(rows: Sequence[Mapping[str, Any]], axis: str) -> dict[str, tuple[list[float], list[float]]]:
    """Lines over ``axis``, one for each combination of the others; only those with at least two points."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        if axis not in row:
            continue
        others = [f"{k} {row[k]}" for k in AXES if k in row and k != axis]
        label = ", ".join(others) or re.sub(r"\d+", "n", row["name"])
        lines.setdefault(label, []).append((row[axis], row["us"]))
    return {
        label: ([x for x, _ in sorted(points)], [y for _, y in sorted(points)])
        for label, points in lines.items()
        if len(points) > 1
    }


def replay_page(report: Mapping[str, Any], series: Mapping[str, Sequence[float]], path: Path) -> None:
    """Slots in use over time, time per insertion, bytes per step."""
    page = Page(
        f"slotline replay of {report['trace']}",
        f"{report['backend']} ({report['framework']}), {report['requests']:,} requests, {report['steps']:,} steps, "
        f"{report['mismatches']} mismatches; digest {report['digest']}",
    )
    numbers = {k: v for k, v in report.items() if isinstance(v, (int, float, str)) and k != "digest"}
    page.table([{"": name, "value": value} for name, value in numbers.items()])
    page.table([{"counter": name, "value": value} for name, value in report["stats"].items() if value])
    page.table([{"part": name, "seconds": value} for name, value in report["seconds"].items()])
    for title, name, unit, cumulative in (
        ("slots in use", "slots", "slots", False),
        ("time per insertion", "insert_us", "microseconds", True),
        ("bytes per step", "bytes", "bytes", True),
    ):
        values = [float(v) for v in series.get(name, ())]
        if cumulative:
            values = [b - a for a, b in pairwise([0.0, *values])]
        xs, ys = _thinned(values)
        page.plot(title, {name: (xs, ys)}, "iteration", unit)
    page.write(path)


def _thinned(values: Sequence[float]) -> tuple[list[float], list[float]]:
    size = -(-len(values) // MOST_POINTS) or 1
    parts = [values[i : i + size] for i in range(0, len(values), size)]
    return [float(i * size) for i in range(len(parts))], [sum(part) / len(part) for part in parts]
