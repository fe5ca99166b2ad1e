"""The targets that this package holds itself to, each measured as a ratio within one run.

    python benchmarks/targets.py [--repeat 15] [--only NAME ...] [--trace FILE] [--json]

The CPU backend with NumPy, validation included. Contestants take turns in one process; the table shows the ratio of
the medians, the quartiles of the rounds' own ratios, and the limit. Times are CPU times of this process: they cannot be
compared between machines, ratios can. Targets against torch and paddle need them installed, the replay needs a trace.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import platform
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import target_costs as costs
import target_runs as runs

COPY = 10.7
"""Microseconds of the plain copy in the figures that the targets for decode tasks were derived from."""


class Target(NamedTuple):
    name: str
    what: str
    limit: float
    measure: Callable[[int], runs.Found]
    needs: str = ""
    """A package that has to be installed."""


def targets(trace: str | None) -> list[Target]:
    tensors = "through a tensor per write"
    found = [
        Target("arrays", "128 x 1024 from arrays / plain copy", 0.7, runs.from_arrays),
        Target("release", "the same and the release of all / plain copy", 1.2, runs.with_release),
        Target("lists", "128 x 1024 from lists / plain copy", 2.8, runs.from_lists),
        Target("torch", f"128 x 1024 / loop over fields in torch, {tensors}", 1 / 40, runs.beside_torch, "torch"),
        Target("torch-direct", "128 x 1024 / loop in torch, plain numbers", 1 / 40, runs.beside_torch_direct, "torch"),
        Target("paddle", f"128 x 1024 / loop in paddle, {tensors}", 1 / 150, runs.beside_paddle, "paddle"),
        Target("one", "1 x 1024 / loop in NumPy, through an array per write", 1 / 4, runs.one_beside_numpy),
        Target("one-direct", "1 x 1024 / loop in NumPy, plain numbers", 1 / 4, runs.one_beside_numpy_direct),
        Target("one-torch", f"1 x 1024 / loop in torch, {tensors}", 1 / 8, runs.one_beside_torch, "torch"),
        Target("one-decode", "1 decode task / 1 prefill task of 1024", 1 / 3, runs.one_decode),
        Target("decode", "256 decode tasks, one new block / plain copy", 1.5 / COPY, runs.decode_appends),
        Target("tables", "256 decode tasks, tables of 128 int32 / plain copy", 3 / COPY, runs.decode_tables),
        Target("fields", "200 unrelated scalars / 100", 1.3, runs.more_fields),
        Target("slots", "the same 16 tasks in 4096 slots / in 64", 1.2, runs.more_slots),
        Target("peak", "bytes at peak, 128 x 1024 / (16 KiB + 256 a task)", 1.0, costs.peak_prefill),
        Target("peak-one", "bytes at peak, 1 x 1024 / (16 KiB + 256 a task)", 1.0, costs.peak_one),
        Target("peak-decode", "bytes at peak, 256 decode tasks / (16 KiB + 256 a task)", 1.0, costs.peak_decode),
        Target("packet", "bytes a decode task beside its ids / 64", 1.0, costs.packet),
        Target("steps", "prepare and commit, decode rows / loop over slots", 1 / 8, runs.steps_decode),
        Target("steps-mixed", "prepare and commit, mixed rows / loop over slots", 1 / 8, runs.steps_mixed),
    ]
    if trace is not None:
        import target_replay

        parts = target_replay.Replays(trace)
        found += [
            Target("replay-share", "insert, prepare, commit / the replay as a whole", 1 / 2, parts.share),
            Target("replay", "the replay / with loops over fields and slots in their place", 1 / 5, parts.whole),
        ]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=15, help="rounds of each measurement (15)")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="only these targets")
    parser.add_argument("--trace", help="a trace in Azure's CSV, for the replay")
    parser.add_argument("--json", action="store_true", help="one line of JSON")
    options = parser.parse_args()
    if options.repeat < 2:
        parser.error("--repeat needs at least 2 rounds")
    chosen = targets(options.trace)
    unknown = sorted(set(options.only or ()) - {t.name for t in chosen})
    if unknown:
        parser.error(f"unknown targets {', '.join(unknown)}; known: {', '.join(t.name for t in chosen)}")
    rows = []
    for target in chosen:
        if options.only and target.name not in options.only:
            continue
        if target.needs and importlib.util.find_spec(target.needs) is None:
            rows.append({"name": target.name, "what": target.what, "limit": target.limit, "needs": target.needs})
        else:
            found = target.measure(options.repeat)
            met = found.ratio <= target.limit
            rows.append(
                {"name": target.name, "what": target.what, "limit": target.limit, "met": met, **found._asdict()}
            )
        if not options.json:
            show(rows[-1])
    if options.json:
        machine = {"python": platform.python_version(), "numpy": np.__version__, "cpu": platform.machine()}
        print(json.dumps({"machine": machine, "targets": rows}))


def show(row: dict) -> None:  # type: ignore[type-arg]
    line = f"{row['name']:13} {row['what']:66}"
    if "ratio" not in row:
        print(f"{line} needs {row['needs']}")
        return
    spread = f"({row['low']:.3f} to {row['high']:.3f})" if row["high"] > row["low"] else ""
    print(f"{line} {row['ratio']:7.3f} {spread:18} limit {row['limit']:.4f}  {'met' if row['met'] else 'NOT MET'}")
    print(f"{'':13}   {row['detail']}", flush=True)


if __name__ == "__main__":
    main()
