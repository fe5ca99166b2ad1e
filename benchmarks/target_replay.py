"""The targets of a replay: what insertion, prepare and commit take of it, and what loops in their place would take.

One replay is run with a clock around the three. Beside each call, on its own clock, runs what a hand-written engine
does for the same tasks (``plain_insertion.py``) and for the same step (``plain_steps.py``, plainly). The loops' buffers
are brought up to the batch's rows outside the clocks. The replay with loops in their place is the replay's own time,
less what slotline took, plus what the loops took.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from plain_insertion import Plain, PlainInserter, numpy_direct
from plain_steps import PlainEngine
from target_runs import Found

import slotline as sl
from slotline.replay import side
from slotline.replay.driver import ReplayOptions, replay
from slotline.replay.traces import read_trace

ROWS = 300
CONFIG = sl.BatchConfig(
    max_num_seqs=256, max_model_len=8192, max_chunk_tokens=2048, block_size=64, num_blocks=256 * 128,
    vocab_size=151_936, eos_token_ids=(2,),
)  # fmt: skip
"""The defaults of ``slotline replay``."""


class Clocks:
    """CPU seconds of slotline's calls and of the loops', and of what only serves the comparison."""

    def __init__(self) -> None:
        self.ours: dict[str, float] = {"insert": 0.0, "prepare": 0.0, "commit": 0.0}
        self.loops: dict[str, float] = dict(self.ours)
        self.aside = 0.0
        self.whole = 0.0

    @contextmanager
    def on(self, clock: dict[str, float], name: str) -> Any:
        start = time.process_time()
        yield
        clock[name] += time.process_time() - start


class Loops:
    """A hand-written engine that lives beside a batch."""

    def __init__(self, batch: sl.SlotBatch) -> None:
        self.batch = batch
        self.steps = PlainEngine(batch)
        self.inserts = PlainInserter(batch, numpy_direct())
        self.fills = {f.name: f.fill for f in batch.layout}

    def written(self, tasks: Sequence[Any]) -> list[Callable[[], None]]:
        """The writes of each task; looked up before the insertion changes who owns what, run after it."""
        writes: list[Callable[[], None]] = []
        for task in tasks:
            owned = self.batch.slot_of(task.request_id) if task.request_id in self.batch else None
            if isinstance(task, sl.PrefillTask):
                writes.append(lambda t=task, o=owned: self._prefill(t, o))  # type: ignore[misc]
            elif isinstance(task, sl.DecodeTask):
                first, blocks = 0, task.block_table
                if blocks is None:
                    first, blocks = int(self.batch.host_array("encoder_block_lens")[owned]), task.new_blocks
                writes.append(lambda s=owned, f=first, b=blocks: self.inserts.blocks(s, f, b))  # type: ignore[misc]
            else:
                writes.append(lambda s=owned: self.inserts.clear(s, self.fills))  # type: ignore[misc]
        return writes

    def _prefill(self, task: sl.PrefillTask, owned: int | None) -> None:
        request = task.request
        if owned is None:
            slot = self.batch.slot_of(task.request_id)
            sampling = {"infer_seed": request.sampling.infer_seed, "temperature": request.sampling.temperature}
            self.inserts.insert(slot, Plain(request.history[task.start : task.end], task.block_table, sampling))
        else:
            last = task.end == len(request.history)
            self.inserts.chunk(owned, request.history[task.start : task.end], task.start, last, task.block_table)


def measured(trace: str) -> Clocks:
    """One replay."""
    clocks, known = Clocks(), {}
    insert, prepare, commit = side.insert_tasks, side.prepare_step, side.commit_step

    def loops_of(batch: sl.SlotBatch) -> Loops:
        if id(batch) not in known:
            known[id(batch)] = Loops(batch)
        return known[id(batch)]  # type: ignore[no-any-return]

    @contextmanager
    def aside() -> Any:
        start = time.process_time()
        yield
        clocks.aside += time.process_time() - start

    def inserted(batch: sl.SlotBatch, tasks: Sequence[Any]) -> Any:
        with aside():
            loops = loops_of(batch)
            touched = [batch.slot_of(t.request_id) for t in tasks if t.request_id in batch]
            writes = loops.written(tasks)
        with clocks.on(clocks.ours, "insert"):
            receipt = insert(batch, tasks)
        with aside():
            with clocks.on(clocks.loops, "insert"):
                for write in writes:
                    write()
            loops.steps.copy_rows(batch, {*touched, *receipt.slots.values()})
        return receipt

    def prepared(batch: sl.SlotBatch) -> Any:
        with clocks.on(clocks.ours, "prepare"):
            step = prepare(batch)
        with aside(), clocks.on(clocks.loops, "prepare"):
            loops_of(batch).steps.prepare(step.num_tokens)
        return step

    def committed(batch: sl.SlotBatch, step: Any, tokens: Any, number: Any) -> None:
        with aside():
            loops = loops_of(batch)
            live = [s for s, o in batch.slots if o.ticket is step]
            loops.steps.copy_rows(batch, live)
            lengths = loops.steps.arrays["seq_lens_this_time"]
            lengths[np.setdiff1d(np.arange(len(lengths)), live)] = 0
            with clocks.on(clocks.loops, "commit"):
                loops.steps.commit(np.asarray(tokens), np.asarray(number))
        with clocks.on(clocks.ours, "commit"):
            commit(batch, step, tokens, number)
        with aside():
            loops.steps.copy_rows(batch, live)

    side.insert_tasks, side.prepare_step, side.commit_step = inserted, prepared, committed  # type: ignore[assignment]
    try:
        start = time.process_time()
        result = replay(islice(read_trace(Path(trace)), ROWS), CONFIG, sl.load_backend("cpu"), ReplayOptions())
        clocks.whole = time.process_time() - start - clocks.aside
    finally:
        side.insert_tasks, side.prepare_step, side.commit_step = insert, prepare, commit
    assert result.mismatch is None, result.mismatch
    return clocks


class Replays:
    """The replays of one run; both targets look at the same ones."""

    def __init__(self, trace: str) -> None:
        self.trace = trace
        self._runs: list[Clocks] = []

    def _some(self, repeat: int) -> list[Clocks]:
        while len(self._runs) < max(3, repeat // 5):
            self._runs.append(measured(self.trace))
        return self._runs

    def share(self, repeat: int) -> Found:
        found = [sum(c.ours.values()) / c.whole for c in self._some(repeat)]
        last = self._runs[-1]
        parts = ", ".join(f"{name} {took / last.whole:.2f}" for name, took in last.ours.items())
        return Found(float(np.median(found)), min(found), max(found), f"{parts} of {last.whole:.2f} s")

    def whole(self, repeat: int) -> Found:
        runs = self._some(repeat)
        found = [c.whole / (c.whole - sum(c.ours.values()) + sum(c.loops.values())) for c in runs]
        last = runs[-1]
        parts = ", ".join(f"{name} {took / last.ours[name]:.2f}" for name, took in last.loops.items())
        return Found(float(np.median(found)), min(found), max(found), f"the loops' time in slotline's: {parts}")
