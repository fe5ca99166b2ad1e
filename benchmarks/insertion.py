"""What an insertion costs, beside a plain copy of the bytes that it is responsible for.

    python benchmarks/insertion.py [--repeat 30] [--json]

Timed: from ready int64 arrays through Request, SamplingParams, task and ``insert_tasks``, validation included.
Baseline, in the same process and interleaved: ``np.copyto``, row by row, of the row bytes of every field of the
layout. Ratios of medians count; the times are of this machine at this moment.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np

import slotline as sl

SLOTS, LENGTH, CHUNK, BLOCK, VOCAB = 256, 8192, 2048, 64, 151_936  # the defaults of `slotline replay`
BLOCKS_HELD = 32


def make_batch(spec_method: str) -> sl.SlotBatch:
    config = sl.BatchConfig(
        max_num_seqs=SLOTS,
        max_model_len=LENGTH,
        max_chunk_tokens=CHUNK,
        block_size=BLOCK,
        num_blocks=SLOTS * LENGTH // BLOCK,
        vocab_size=VOCAB,
        eos_token_ids=(2,),
        spec_method=spec_method,
        num_draft_tokens=3,
    )
    layout = sl.target_layout(config)
    if spec_method == "mtp":
        layout = layout | sl.mtp_layout(config)
    return sl.SlotBatch(layout, sl.load_backend("cpu"))


def prefill_tasks(prompts: list[Any], tables: list[Any]) -> list[sl.PrefillTask]:
    params = [sl.SamplingParams(temperature=0.7, top_p=0.9) for _ in prompts]
    requests = [sl.Request(f"r{i:03}", p, sampling=params[i]) for i, p in enumerate(prompts)]
    return [sl.PrefillTask(r, 0, len(p), t) for r, p, t in zip(requests, prompts, tables, strict=True)]


def plain_copy(batch: sl.SlotBatch, count: int) -> Callable[[], None]:
    """A copy of the row bytes of every field for ``count`` rows, into buffers of the same shapes."""
    pairs = [
        (np.zeros(batch.layout.row_shape(f.name), batch[f.name].dtype), np.zeros_like(batch[f.name]))
        for f in batch.layout
    ]

    def run() -> None:
        for row, buffer in pairs:
            for slot in range(count):
                np.copyto(buffer[slot : slot + 1] if row.ndim == 0 else buffer[slot], row)

    return run


def medians(repeat: int, *steps: Callable[[], float]) -> list[list[float]]:
    """Each step's times, the steps interleaved; the first round is warm-up."""
    times: list[list[float]] = [[] for _ in steps]
    for turn in range(repeat + 1):
        for step, found in zip(steps, times, strict=True):
            took = step()
            if turn:
                found.append(took)
    return times


def timed(run: Callable[[], Any]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def measure(spec_method: str, repeat: int) -> dict[str, Any]:
    batch = make_batch(spec_method)
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, VOCAB, 1024) for _ in range(128)]
    tables = [np.arange(i * BLOCKS_HELD, i * BLOCKS_HELD + 16) for i in range(128)]
    rows: dict[str, Any] = {}
    for count in (1, 16, 128):
        ids = [f"r{i:03}" for i in range(count)]
        released: list[float] = []

        def insert(count: int = count, ids: list[str] = ids, released: list[float] = released) -> float:
            took = timed(lambda: sl.insert_tasks(batch, prefill_tasks(prompts[:count], tables[:count])))
            released.append(timed(lambda: batch.release(ids)))
            return took

        copy = plain_copy(batch, count)
        inserted, copied = medians(repeat, insert, lambda copy=copy: timed(copy))  # type: ignore[misc]
        rows[f"prefill {count} x 1024"] = _row(inserted, copied, count)
        rows[f"release {count}"] = _row(released[1:], copied, count)
    sl.insert_tasks(batch, prefill_tasks(prompts, tables))
    copy = plain_copy(batch, 128)
    step = iter(range(10**9))

    def decode() -> float:
        n = next(step) % (BLOCKS_HELD - 16)
        if n == 0:  # tables are full again: as they were, outside the clock
            sl.insert_tasks(batch, [sl.DecodeTask(f"r{i:03}", tables[i]) for i in range(128)])
        run = lambda: sl.insert_tasks(  # noqa: E731
            batch, [sl.DecodeTask(f"r{i:03}", new_blocks=[i * BLOCKS_HELD + 16 + n]) for i in range(128)]
        )
        return timed(run)

    decoded, copied = medians(repeat, decode, lambda: timed(copy))
    rows["decode 128, one new block"] = _row(decoded, copied, 128)
    return {
        "fields": len(batch.layout),
        "row_bytes": _row_bytes(batch),
        "rows": rows,
        "peak_mib": _peak(batch, prompts, tables),
    }


def _row(times: list[float], baseline: list[float], count: int) -> dict[str, float]:
    own, base = statistics.median(times), statistics.median(baseline)
    quartiles = statistics.quantiles(times, n=4)
    return {
        "us_per_request": own / count * 1e6,
        "spread_us": (quartiles[2] - quartiles[0]) / count * 1e6,
        "copy_us_per_request": base / count * 1e6,
        "ratio": own / base,
    }


def _row_bytes(batch: sl.SlotBatch) -> int:
    return sum(batch[f.name].nbytes for f in batch.layout) // SLOTS


def _peak(batch: sl.SlotBatch, prompts: list[Any], tables: list[Any]) -> float:
    """MiB that one insertion takes beyond the buffers at most, requests included."""
    batch.reset()
    tracemalloc.start()
    sl.insert_tasks(batch, prefill_tasks(prompts, tables))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=30, help="rounds of each measurement (30)")
    parser.add_argument("--json", action="store_true", help="one line of JSON")
    options = parser.parse_args()
    if options.repeat < 2:
        parser.error("--repeat needs at least 2 rounds")
    found = {method: measure(method, options.repeat) for method in ("none", "mtp")}
    machine = {"python": platform.python_version(), "numpy": np.__version__, "cpu": platform.machine()}
    if options.json:
        print(json.dumps({"machine": machine, **found}))
        return
    for method, result in found.items():
        print(
            f"{method}: {result['fields']} fields, {result['row_bytes']:,} bytes a row, "
            f"peak {result['peak_mib']:.1f} MiB"
        )
        for name, row in result["rows"].items():
            print(
                f"  {name:28} {row['us_per_request']:8.2f} us a request (+-{row['spread_us']:.2f}), "
                f"copy {row['copy_us_per_request']:7.2f}, ratio {row['ratio']:.2f}"
            )


if __name__ == "__main__":
    main()
