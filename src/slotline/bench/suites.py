"""The cases: insertion, decoding, moves, single writes, steps, scaling. Each group makes its own batches when its turn
comes, and drops them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from slotline.bench import workload
from slotline.bench.baselines import Writes, plain_copy
from slotline.bench.timing import Case, Timed
from slotline.bench.workload import Prompts, batch_of, empty
from slotline.core.backend import Backend
from slotline.core.batch import SlotBatch
from slotline.core.commit import commit_step
from slotline.core.insert import insert_tasks
from slotline.core.sampling import SamplingParams
from slotline.core.step import prepare_step
from slotline.core.tasks import AbortTask, DecodeTask, PreemptTask, PrefillTask, Request, Task

Group = Callable[[Backend], Iterator[Case]]


def insertion(backend: Backend) -> Iterator[Case]:
    """Prefill tasks from ready arrays or lists through SamplingParams, Request, task and ``insert_tasks``."""
    batch = batch_of(workload.layout(), backend)
    for tokens in (512, 1024, 4096):
        for count in (1, 16, 128):
            prompts = Prompts(count, tokens)
            batch.reset()
            insert_tasks(batch, prompts.tasks())
            writes = Writes(batch, list(range(count)))
            loops = [Timed(f"loop over fields ({backend.framework})", writes.loop(backend.framework))]
            if backend.framework != "numpy":
                loops.append(Timed("loop over fields (numpy)", writes.loop("numpy")))
            if backend.framework == "paddle":
                loops.append(Timed("temporary tensors (paddle)", writes.loop("paddle", temporary=True)))
            copy = Timed("plain copy", plain_copy(batch.layout, count))
            for kind in ("arrays", "lists"):
                yield Case(
                    "insertion",
                    f"{count} x {tokens} tokens from {kind}",
                    count,
                    Timed("insert_tasks", _inserting(batch, prompts, kind), partial(empty, batch)),
                    [copy, *(loops if kind == "arrays" else [])],
                    {"tokens": tokens, "requests": count, "source": kind},
                )


def _inserting(batch: SlotBatch, prompts: Prompts, kind: str) -> Callable[[], Any]:
    return lambda: insert_tasks(batch, prompts.tasks(kind))


def decoding(backend: Backend) -> Iterator[Case]:
    """Decode tasks: one new block each, or whole tables of 128 blocks."""
    batch = batch_of(workload.layout(), backend)
    for count in (1, 16, 128, 256):
        prompts = Prompts(count, 1024, held=128)
        copy = Timed("plain copy", plain_copy(batch.layout, count))

        def ready(prompts: Prompts = prompts, count: int = count) -> None:
            batch.reset()
            insert_tasks(batch, prompts.tasks())
            insert_tasks(
                batch, [DecodeTask(f"r{i:04}", block_table=np.arange(i * 128, i * 128 + 32)) for i in range(count)]
            )

        def grow(count: int = count) -> Any:
            return insert_tasks(batch, [DecodeTask(f"r{i:04}", new_blocks=[i * 128 + 32]) for i in range(count)])

        tables = [np.arange(i * 128, i * 128 + 128, dtype=np.int32) for i in range(count)]

        def whole(tables: list[Any] = tables) -> Any:
            return insert_tasks(batch, [DecodeTask(f"r{i:04}", block_table=t) for i, t in enumerate(tables)])

        axes = {"requests": count}
        yield Case("decoding", f"{count} tasks, one new block", count, Timed("insert_tasks", grow, ready), [copy], axes)
        yield Case(
            "decoding", f"{count} tasks, tables of 128 blocks", count, Timed("insert_tasks", whole, ready), [copy], axes
        )


def mixed(backend: Backend) -> Iterator[Case]:
    """Calls that hold several kinds of task, and what takes slots away."""
    batch = batch_of(workload.layout(), backend)
    old, new = Prompts(128, 1024, held=128), Prompts(16, 1024)
    new.ids = [f"n{i}" for i in range(16)]

    def ready() -> None:
        batch.reset()
        insert_tasks(batch, old.tasks())

    def serve() -> Any:
        tasks: list[Task] = [DecodeTask(name, new_blocks=[i * 128 + 20]) for i, name in enumerate(old.ids[:96])]
        tasks += [PreemptTask(name) for name in old.ids[96:104]] + [AbortTask(name) for name in old.ids[104:112]]
        return insert_tasks(batch, [*tasks, *new.tasks()])

    copy = Timed("plain copy", plain_copy(batch.layout, 16))
    yield Case("mixed", "96 decode, 8 preempt, 8 abort, 16 prefill", 128, Timed("insert_tasks", serve, ready), [copy])
    for kind in (PreemptTask, AbortTask):
        for count in (1, 16, 128):
            own = Timed("insert_tasks", partial(_taking, batch, kind, old.ids[:count]), ready)
            copy = Timed("plain copy", plain_copy(batch.layout, count))
            yield Case("mixed", f"{count} x {kind.__name__}", count, own, [copy], {"requests": count})


def _taking(batch: SlotBatch, kind: type[PreemptTask | AbortTask], names: Sequence[str]) -> Any:
    return insert_tasks(batch, [kind(name) for name in names])


def moves(backend: Backend) -> Iterator[Case]:
    """Swap, condense and reset of a batch with every second slot taken."""
    batch = batch_of(workload.layout(), backend)
    prompts = Prompts(256, 512)

    def ready() -> None:
        batch.reset()
        insert_tasks(batch, prompts.tasks())
        batch.release(prompts.ids[::2])

    copy = Timed("plain copy", plain_copy(batch.layout, 1))
    yield Case("moves", "swap", 1, Timed("swap", lambda: batch.swap(1, 128), ready), [copy])
    half = Timed("plain copy", plain_copy(batch.layout, 64))
    yield Case("moves", "condense, 64 moves", 64, Timed("condense", batch.condense, ready), [half])
    whole = Timed("plain copy", plain_copy(batch.layout, 256))
    yield Case("moves", "reset", 256, Timed("reset", batch.reset, ready), [whole])


def writes(backend: Backend) -> Iterator[Case]:
    """``async_set_value`` by size and by shape of the view, beside NumPy's assignment."""
    for cells in (1, 64, 4096, 262_144):
        target = backend.empty([("t", (cells,), "int64")])["t"]
        yield _write(backend, f"{cells} cells", target, np.zeros(cells, np.int64), (slice(None),), {"cells": cells})
    shape = (256, 64, 8)
    target, plain = backend.empty([("t", shape, "int64")])["t"], np.zeros(shape, np.int64)
    views: dict[str, tuple[Any, ...]] = {
        "one row": (slice(3, 4),),
        "every second row": (slice(0, 256, 2),),
        "a column": (slice(None), slice(5, 6)),
        "inner block": (slice(None), slice(8, 40), slice(0, 4)),
        "strided in each axis": (slice(0, 256, 3), slice(0, 64, 2), slice(0, 8, 2)),
    }
    for name, key in views.items():
        yield _write(backend, f"{name}, {plain[key].size} cells", target, plain, key, {})


def _write(backend: Backend, name: str, target: Any, plain: Any, key: tuple[Any, ...], axes: dict[str, Any]) -> Case:
    source = np.ones_like(plain[key])
    own = Timed("async_set_value", partial(backend.async_set_value, target[key], source), backend.synchronize)
    return Case("writes", name, 1, own, [Timed("numpy assignment", partial(plain.__setitem__, key, source))], axes)


def steps(backend: Backend) -> Iterator[Case]:
    """``prepare_step`` and ``commit_step`` by slots and drafts; five stop sequences of eight tokens in every slot."""
    for slots in (16, 64, 256):
        for drafts in (0, 3):
            method = "mtp" if drafts else "none"
            made = workload.layout(
                method, max_num_seqs=slots, max_model_len=2048, max_chunk_tokens=256, num_draft_tokens=max(1, drafts)
            )
            stepping = _Stepping(batch_of(made, backend), slots, drafts)
            yield Case(
                "steps",
                f"{slots} slots, {drafts} drafts",
                slots,
                Timed("prepare_step + commit_step", stepping.step, stepping.ready),
                [],
                {"slots": slots, "drafts": drafts},
            )


class _Stepping:
    def __init__(self, batch: SlotBatch, slots: int, drafts: int) -> None:
        self.batch, self.slots, self.left = batch, slots, 0
        self.tokens = np.full((slots, drafts + 1), 7)
        self.number = np.ones(slots, np.int64)
        self.prompts = Prompts(slots, 64, held=32)
        self.stops = np.arange(40).reshape(5, 8) + 3

    def ready(self) -> None:
        """New requests before the old ones come to the model's length."""
        if self.left:
            self.left -= 1
            return
        self.batch.reset()
        sampling = SamplingParams(stop_seqs=self.stops)
        tasks = [
            PrefillTask(Request(n, p, sampling=sampling), 0, len(p), np.arange(32) + 32 * i)
            for i, (n, p) in enumerate(zip(self.prompts.ids, self.prompts.arrays, strict=True))
        ]
        insert_tasks(self.batch, tasks)
        self.step()
        self.left = 1000

    def step(self) -> None:
        step = prepare_step(self.batch)
        commit_step(self.batch, step, self.tokens, self.number)


def scaling(backend: Backend) -> Iterator[Case]:
    """Cost must follow bytes and tasks, not slots or fields."""
    prompts = Prompts(64, 128)
    for slots in (64, 256, 1024, 4096):
        batch = batch_of(workload.layout(max_num_seqs=slots, max_model_len=1024, max_chunk_tokens=256), backend)
        yield _scaled(batch, prompts, f"{slots} slots", {"slots": slots})
    for fields in (20, 50, 100, 200):
        made = workload.layout(max_model_len=1024, max_chunk_tokens=256).extend(*workload.scalars(fields))
        yield _scaled(batch_of(made, backend), prompts, f"{fields} more fields", {"fields": fields})
    for tokens in (128, 1024, 8192, 32_768, 131_072):
        made = workload.layout(max_num_seqs=4, max_model_len=1 << 18, max_chunk_tokens=1 << 17)
        one = Prompts(1, tokens)
        yield _scaled(batch_of(made, backend), one, f"one request of {tokens} tokens", {"tokens": tokens})


def _scaled(batch: SlotBatch, prompts: Prompts, name: str, axes: dict[str, Any]) -> Case:
    count = len(prompts.ids)
    rows = sum(math.prod(batch.layout.row_shape(f.name)) * f.itemsize for f in batch.layout if f.slot_axis is not None)
    return Case(
        "scaling",
        name,
        count,
        Timed("insert_tasks", _inserting(batch, prompts, "arrays"), partial(empty, batch)),
        [Timed("plain copy", plain_copy(batch.layout, count))],
        {**axes, "row_bytes": rows},
    )


GROUPS: dict[str, Group] = {
    "insertion": insertion,
    "decoding": decoding,
    "mixed": mixed,
    "moves": moves,
    "writes": writes,
    "steps": steps,
    "scaling": scaling,
}
