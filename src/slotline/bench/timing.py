"""Timing by rounds: a case and its baselines in turn, so that what disturbs one disturbs all; medians and quartiles."""

from __future__ import annotations

import gc
import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Run = Callable[[], Any]


@dataclass(frozen=True)
class Timed:
    """Something to be timed. ``before`` runs outside the clock, ahead of each round."""

    name: str
    run: Run
    before: Run | None = None


@dataclass(frozen=True)
class Case:
    """One line of the benchmark: slotline's own way, and others for the same work."""

    group: str
    name: str
    count: int
    """Requests, tasks or rows that one run handles; times are told for each of them."""
    own: Timed
    baselines: Sequence[Timed] = ()
    axes: dict[str, Any] = field(default_factory=dict)
    """Where it stands in a plot: ``{"slots": 64}``, say."""


@dataclass(frozen=True)
class Spread:
    """Seconds: the median, and the quartiles around it."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, times: Sequence[float]) -> Spread:
        low, middle, high = np.quantile(np.array(times), (0.25, 0.5, 0.75)).tolist()
        return cls(middle, low, high)


@dataclass(frozen=True)
class Result:
    case: Case
    own: Spread
    baselines: dict[str, Spread]

    def as_dict(self) -> dict[str, Any]:
        """Times in microseconds for each of ``count``; ratios of medians, own over baseline."""
        scale = 1e6 / self.case.count
        out: dict[str, Any] = {
            "group": self.case.group,
            "name": self.case.name,
            "count": self.case.count,
            **self.case.axes,
            "us": round(self.own.median * scale, 3),
            "us_quartiles": [round(self.own.low * scale, 3), round(self.own.high * scale, 3)],
        }
        for name, spread in self.baselines.items():
            out[f"us {name}"] = round(spread.median * scale, 3)
            out[f"ratio to {name}"] = round(self.own.median / spread.median, 4)
        return out


def measure(case: Case, rounds: int) -> Result:
    """``rounds`` rounds of all, in turn, after one that warms up. The garbage collector waits outside the clock."""
    everything = [case.own, *case.baselines]
    times: list[list[float]] = [[] for _ in everything]
    enabled = gc.isenabled()
    gc.disable()
    try:
        for turn in range(rounds + 1):
            for timed, found in zip(everything, times, strict=True):
                if timed.before is not None:
                    timed.before()
                start = time.perf_counter()
                timed.run()
                took = time.perf_counter() - start
                if turn:
                    found.append(took)
            gc.collect(0)
    finally:
        if enabled:
            gc.enable()
    own, *others = [Spread.of(found) for found in times]
    return Result(case, own, {b.name: s for b, s in zip(case.baselines, others, strict=True)})


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    return {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": os.cpu_count() or 0,
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or "unknown"
