"""What ``targets.py`` measures. Each function takes a number of rounds and gives one ratio with its spread."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import plain_insertion
import steps
from plain_insertion import Frame, Plain, PlainInserter

import slotline as sl

SLOTS, LENGTH, CHUNK, BLOCK, VOCAB = 256, 8192, 1024, 64, 151_936  # 75 KB a row
COUNT, TOKENS, HELD = 128, 1024, 32
SAMPLING = {"temperature": 0.7, "top_p": 0.9}
Run = Callable[[], float]


class Found(NamedTuple):
    ratio: float
    low: float
    high: float
    """Quartiles of the rounds' ratios."""
    detail: str


def clocked(run: Callable[[], Any]) -> float:
    start = time.process_time()  # of this process alone: other load on the machine counts less
    run()
    return time.process_time() - start


def compare(ours: Run, base: Run, repeat: int, each: tuple[int, int] = (1, 1), scale: float = 1e6) -> Found:
    """Rounds of both in turn, the first is warm-up; ``each``: how many things one run of them does."""
    pairs = []
    gc.collect()
    for turn in range(repeat + 1):
        pair = (ours(), base()) if turn % 2 else (base(), ours())[::-1]
        if turn:
            pairs.append((pair[0] / each[0] * scale, pair[1] / each[1] * scale))
    low, _, high = statistics.quantiles([a / b for a, b in pairs], n=4)
    mine, theirs = (statistics.median(column) for column in zip(*pairs, strict=True))
    return Found(mine / theirs, low, high, f"{mine:.2f} us beside {theirs:.2f} us")


def config(**changes: Any) -> sl.BatchConfig:
    sizes: dict[str, Any] = {
        "max_num_seqs": SLOTS, "max_model_len": LENGTH, "max_chunk_tokens": CHUNK, "block_size": BLOCK,
        "num_blocks": SLOTS * LENGTH // BLOCK, "vocab_size": VOCAB, "eos_token_ids": (2,),
    }  # fmt: skip
    return sl.BatchConfig(**(sizes | changes))


def make_batch(layout: sl.BufferLayout | None = None) -> sl.SlotBatch:
    return sl.SlotBatch(layout or sl.target_layout(config()), sl.load_backend("cpu"))


class Load:
    """Prefill tasks of ``count`` requests into a batch, made anew each time."""

    def __init__(
        self, count: int = COUNT, tokens: int = TOKENS, lists: bool = False, batch: sl.SlotBatch | None = None
    ) -> None:
        rng = np.random.default_rng(0)
        self.batch = batch or make_batch()
        self.ids = [f"r{i:04}" for i in range(count)]
        self.prompts: list[Any] = [rng.integers(0, VOCAB, tokens) for _ in self.ids]
        blocks = -(-tokens // BLOCK)
        self.tables: list[Any] = [np.arange(i * HELD, i * HELD + blocks) for i in range(count)]
        if lists:
            self.prompts = [p.tolist() for p in self.prompts]
            self.tables = [t.tolist() for t in self.tables]

    def insert(self) -> None:
        tasks = []
        for request_id, prompt, table in zip(self.ids, self.prompts, self.tables, strict=True):
            request = sl.Request(request_id, prompt, sampling=sl.SamplingParams(**SAMPLING))
            tasks.append(sl.PrefillTask(request, 0, len(prompt), table))
        sl.insert_tasks(self.batch, tasks)

    def release(self) -> None:
        self.batch.release(self.ids)

    def timed(self) -> float:
        """Seconds of one insertion; the release is outside the clock."""
        took = clocked(self.insert)
        self.release()
        return took

    def timed_with_release(self) -> float:
        return clocked(self.insert) + clocked(self.release)

    def copy(self, count: int = COUNT) -> Run:
        """``np.copyto``, row by row, of the row bytes of every field."""
        layout = self.batch.layout
        pairs = [(np.zeros(layout.row_shape(f.name), f.dtype), np.zeros(layout.shape(f.name), f.dtype)) for f in layout]

        def run() -> None:
            for row, buffer in pairs:
                for slot in range(count):
                    np.copyto(buffer[slot : slot + 1] if row.ndim == 0 else buffer[slot], row)

        return lambda: clocked(run)

    def loop(self, frame: Frame, times: int = 1) -> Run:
        """The same by a loop over requests and fields; held against the batch first."""
        self.insert()
        loop = PlainInserter(self.batch, frame)
        rows = [Plain(p, t, SAMPLING) for p, t in zip(self.prompts, self.tables, strict=True)]

        def run() -> None:
            for _ in range(times):
                for slot, row in enumerate(rows):
                    loop.insert(slot, row)

        run()
        loop.check(self.batch, range(len(rows)))
        self.release()
        return lambda: clocked(run)


def from_arrays(repeat: int) -> Found:
    load = Load()
    return compare(load.timed, load.copy(), repeat, (COUNT, COUNT))


def with_release(repeat: int) -> Found:
    load = Load()
    return compare(load.timed_with_release, load.copy(), repeat, (COUNT, COUNT))


def from_lists(repeat: int) -> Found:
    load = Load(lists=True)
    return compare(load.timed, load.copy(), repeat, (COUNT, COUNT))


def _beside(frame: Callable[[], Frame], repeat: int) -> Found:
    load = Load()
    return compare(load.timed, load.loop(frame()), repeat, (COUNT, COUNT))


def beside_torch(repeat: int) -> Found:
    return _beside(plain_insertion.torch_tensors, repeat)


def beside_torch_direct(repeat: int) -> Found:
    return _beside(plain_insertion.torch_direct, repeat)


def beside_paddle(repeat: int) -> Found:
    return _beside(plain_insertion.paddle_tensors, repeat)


TIMES = 20
"""Single tasks in a round."""


def _one(frame: Callable[[], Frame], repeat: int) -> Found:
    load = Load(count=1)
    return compare(lambda: sum(load.timed() for _ in range(TIMES)), load.loop(frame(), TIMES), repeat, (TIMES, TIMES))


def one_beside_numpy(repeat: int) -> Found:
    return _one(plain_insertion.numpy_arrays, repeat)


def one_beside_numpy_direct(repeat: int) -> Found:
    return _one(plain_insertion.numpy_direct, repeat)


def one_beside_torch(repeat: int) -> Found:
    return _one(plain_insertion.torch_tensors, repeat)


def one_decode(repeat: int) -> Found:
    held, load = Load(count=1), Load(count=1)
    held.insert()
    table = held.tables[0]

    def decodes() -> float:
        sl.insert_tasks(held.batch, [sl.DecodeTask(held.ids[0], table)])
        return sum(
            clocked(lambda b=block: sl.insert_tasks(held.batch, [sl.DecodeTask(held.ids[0], new_blocks=[b])]))  # type: ignore[misc]
            for block in range(1000, 1000 + TIMES)
        )

    return compare(decodes, lambda: sum(load.timed() for _ in range(TIMES)), repeat, (TIMES, TIMES))


def decoding(held: int) -> Load:
    """256 requests of 64 tokens with ``held`` blocks each."""
    load = Load(count=SLOTS, tokens=BLOCK)
    load.tables = [np.arange(i * 128, i * 128 + held) for i in range(SLOTS)]
    load.insert()
    return load


def decode_appends(repeat: int) -> Found:
    load = decoding(32)

    def decodes() -> float:
        took = clocked(
            lambda: sl.insert_tasks(
                load.batch, [sl.DecodeTask(r, new_blocks=[i * 128 + 32]) for i, r in enumerate(load.ids)]
            )
        )
        sl.insert_tasks(load.batch, [sl.DecodeTask(r, t) for r, t in zip(load.ids, load.tables, strict=True)])
        return took

    return compare(decodes, load.copy(), repeat, (SLOTS, COUNT))


def decode_tables(repeat: int) -> Found:
    load = decoding(32)
    tables = [np.arange(i * 128, i * 128 + 128, dtype=np.int32) for i in range(SLOTS)]

    def decodes() -> float:
        return clocked(
            lambda: sl.insert_tasks(load.batch, [sl.DecodeTask(r, t) for r, t in zip(load.ids, tables, strict=True)])
        )

    return compare(decodes, load.copy(), repeat, (SLOTS, COUNT))


def more_fields(repeat: int) -> Found:
    loads = []
    for number in (200, 100):
        extra = [
            sl.Field(f"own{i}", ("max_num_seqs",), "int32", on={"prefill": sl.column("prompt_len")})
            for i in range(number)
        ]
        loads.append(Load(batch=make_batch(sl.target_layout(config()).extend(*extra))))
    return compare(loads[0].timed, loads[1].timed, repeat, (COUNT, COUNT))


def more_slots(repeat: int) -> Found:
    loads = []
    for slots in (4096, 64):
        layout = sl.target_layout(config(max_num_seqs=slots, max_model_len=2048, num_blocks=10**6))
        loads.append(Load(16, 512, batch=make_batch(layout)))
    return compare(loads[0].timed, loads[1].timed, repeat, (16, 16))


def _steps(mixed: bool, repeat: int) -> Found:
    found = steps.measure(mixed, max(2, 2 * repeat))["plain loop"]
    return Found(found["ratio"], *found["quartiles"], f"{found['prepare_ms'] + found['commit_ms']:.3f} ms in the loop")


def steps_decode(repeat: int) -> Found:
    return _steps(False, repeat)


def steps_mixed(repeat: int) -> Found:
    return _steps(True, repeat)
