"""What a step costs, beside a plain loop over slots; and the framework calls that each step function makes.

    python benchmarks/steps.py [--repeat 60] [--json]

Timed: ``prepare_step`` plus ``commit_step`` on NumPy with 256 slots, 3 drafts and 5 stop sequences of 8 tokens in every
slot. Baselines, in the same process, round by round in turn: the same work on the same kind of buffers written by hand,
slot after slot, plainly and tuned (``plain_steps.py``). Before the clock starts all are held against each other, every
array and every buffer. Ratios of medians count; times are CPU times of this process, on this machine at this moment.

Framework calls are counted as ``count_calls.py`` says: what a step function itself asks of the namespace and of arrays;
what the framework calls inside is not counted again.
"""

from __future__ import annotations

import argparse
import functools
import json
import platform
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from count_calls import FRAMEWORKS, count
from plain_steps import PlainEngine, TunedEngine

import slotline as sl

SLOTS, LENGTH, CHUNK, BLOCK, VOCAB, DRAFTS = 256, 4096, 256, 64, 151_936, 3
STOPS, STOP_LEN = 5, 8
PROMPT = 64
EOS = 2


def make_batch(framework: str = "numpy", slots: int = SLOTS) -> sl.SlotBatch:
    config = sl.BatchConfig(
        max_num_seqs=slots,
        max_model_len=LENGTH,
        max_chunk_tokens=CHUNK,
        block_size=BLOCK,
        vocab_size=VOCAB,
        eos_token_ids=(EOS,),
        max_stop_seqs=STOPS,
        stop_seqs_max_len=STOP_LEN,
        spec_method="mtp",
        num_draft_tokens=DRAFTS,
    )
    layout = sl.target_layout(config) | sl.mtp_layout(config)
    return sl.SlotBatch(layout, sl.load_backend("cpu", framework=framework))


def request(name: str, rng: np.random.Generator) -> sl.Request:
    """Five stop sequences of eight tokens; their ends are common tokens, so that each has to be looked at."""
    stops = rng.integers(3, 40, (STOPS, STOP_LEN))
    sampling = sl.SamplingParams(stop_seqs=stops, min_dec_len=1)
    return sl.Request(name, rng.integers(3, VOCAB, PROMPT), sampling=sampling)


class Pair:
    """A batch and a plain engine that live through the same steps."""

    def __init__(self, mixed: bool) -> None:
        self.rng = np.random.default_rng(0)
        self.batch = make_batch()
        self.mixed = mixed
        self.turn = 0
        self.chunks: list[sl.PrefillTask] = []
        """Chunks of the running step that are not the last of their prompt."""
        table = np.arange(LENGTH // BLOCK)
        self.table = table
        tasks = [sl.PrefillTask(request(f"r{i:03}", self.rng), 0, PROMPT, table) for i in range(SLOTS)]
        sl.insert_tasks(self.batch, tasks)
        self.loops = [PlainEngine(self.batch), TunedEngine(self.batch)]
        step = sl.prepare_step(self.batch)
        sl.commit_step(self.batch, step, *self.tokens())
        self.drafts(step)
        for loop in self.loops:
            loop.copy_rows(self.batch, range(SLOTS))

    def tokens(self) -> tuple[Any, Any]:
        """What a sampler gives: for decode rows 1 to all of their tokens, with ids that end many stop sequences."""
        tokens = self.rng.integers(3, 40, (SLOTS, DRAFTS + 1))
        prefill = np.asarray(self.batch["seq_lens_encoder"]) > 0
        lengths = np.asarray(self.batch["seq_lens_this_time"])
        most = np.where(prefill, 1, np.maximum(lengths, 1))
        return tokens, self.rng.integers(1, most + 1).astype(np.int32)

    def drafts(self, step: sl.Step) -> None:
        sl.commit_drafts(self.batch, step, self.rng.integers(3, VOCAB, (SLOTS, DRAFTS)))

    def between(self, step: sl.Step) -> None:
        """Outside the clock: drafts, requests that ended, new ones; then both hold the same again."""
        self.drafts(step)
        ended = [self.batch.owner(int(s)) or "" for s in np.flatnonzero(self.batch["stop_flags"])]
        if self.mixed:  # every eighth row is a prefill: half of them chunks that are not the last
            ended = sorted({*ended, *(self.batch.owner(s) or "" for s in range(self.turn % 8, SLOTS, 8))})
        self.turn += 1
        slots = [self.batch.slot_of(r) for r in ended]
        tasks: list[Any] = [sl.AbortTask(r) for r in ended]
        for chunk in self.chunks:
            if chunk.request_id not in ended:
                tasks.append(sl.PrefillTask(chunk.request, chunk.end, PROMPT, self.table))
        continued = [self.batch.slot_of(t.request_id) for t in tasks if isinstance(t, sl.PrefillTask)]
        new = []
        for i, slot in enumerate(slots):
            end = PROMPT // 2 if self.mixed and i % 2 else PROMPT
            name = f"t{self.turn}-{slot:03}"
            new.append(sl.PrefillTask(request(name, self.rng), 0, end, self.table, slot))
        self.chunks = [task for task in new if task.end < PROMPT]
        sl.insert_tasks(self.batch, [*tasks, *new])
        for loop in self.loops:
            loop.copy_rows(self.batch, slots + continued)
            loop.copy_drafts(self.batch)

    def check(self) -> None:
        """All do one step; every array and every buffer must be equal."""
        step = sl.prepare_step(self.batch)
        tokens, counts = self.tokens()
        packed = [loop.prepare(step.num_tokens) for loop in self.loops]
        sl.commit_step(self.batch, step, tokens, counts)
        for loop, arrays in zip(self.loops, packed, strict=True):
            loop.commit(tokens, counts)
            for name, wanted in arrays.items():
                assert np.array_equal(np.asarray(getattr(step, name)), wanted), name
            for name, array in loop.arrays.items():
                assert np.array_equal(np.asarray(self.batch[name]), array), name
        self.between(step)

    def timed(self) -> list[list[float]]:
        """Seconds of (prepare, commit), of slotline and of each loop; which goes first changes each round."""
        state: dict[str, Any] = {}
        tokens, counts = self.tokens()
        num_tokens = 1 << (self.batch.launch_tokens - 1).bit_length()

        def prepare() -> None:
            state["step"] = sl.prepare_step(self.batch)

        runs: list[tuple[Callable[[], Any], Callable[[], Any]]] = [
            (prepare, lambda: sl.commit_step(self.batch, state["step"], tokens, counts))
        ]
        for loop in self.loops:
            runs.append((functools.partial(loop.prepare, num_tokens), functools.partial(loop.commit, tokens, counts)))
        order = sorted(range(len(runs)), key=lambda i: (i + self.turn) % len(runs))
        took = {i: [clocked(run) for run in runs[i]] for i in order}
        self.between(state["step"])
        return [took[i] for i in range(len(runs))]


def clocked(run: Callable[[], Any]) -> float:
    start = time.process_time()  # of this process alone: other load on the machine does not count
    run()
    return time.process_time() - start


def measure(mixed: bool, repeat: int) -> dict[str, Any]:
    pair = Pair(mixed)
    for _ in range(5):
        pair.check()
    for _ in range(3):
        pair.timed()
    rounds = np.array([pair.timed() for _ in range(repeat)]) * 1e3  # [repeat, contestants, 2] ms
    pair.check()
    whole = rounds.sum(axis=2)
    found: dict[str, Any] = {}
    for i, name in enumerate(("slotline", "plain loop", "tuned loop")):
        prepare, commit = np.median(rounds[:, i], axis=0).tolist()
        found[name] = {"prepare_ms": prepare, "commit_ms": commit}
        if i:
            low, _, high = statistics.quantiles((whole[:, 0] / whole[:, i]).tolist(), n=4)
            ratio = float(np.median(whole[:, 0]) / np.median(whole[:, i]))
            found[name] |= {"ratio": ratio, "quartiles": [low, high]}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=60, help="rounds of each measurement (60)")
    parser.add_argument("--json", action="store_true", help="one line of JSON")
    options = parser.parse_args()
    if options.repeat < 2:
        parser.error("--repeat needs at least 2 rounds")
    found = {name: measure(name == "mixed", options.repeat) for name in ("decode", "mixed")}
    rng, table = np.random.default_rng(0), np.arange(LENGTH // BLOCK)
    calls = {
        f: count(make_batch, f, lambda name: sl.PrefillTask(request(name, rng), 0, PROMPT, table)) for f in FRAMEWORKS
    }
    machine = {"python": platform.python_version(), "numpy": np.__version__, "cpu": platform.machine()}
    if options.json:
        print(json.dumps({"machine": machine, "times": found, "calls": calls}))
        return
    print(f"{SLOTS} slots, {DRAFTS} drafts, {STOPS} stop sequences of {STOP_LEN} tokens in every slot")
    for kind, contestants in found.items():
        for name, row in contestants.items():
            line = f"  {kind:7} {name:11} prepare {row['prepare_ms']:7.3f} ms, commit {row['commit_ms']:7.3f} ms"
            if "ratio" in row:
                low, high = row["quartiles"]
                line += f", slotline is {row['ratio']:.3f} of it (quartiles {low:.3f} to {high:.3f})"
            print(line)
    print("framework calls (+ tensors uploaded or made): functions of the namespace, operators, indexing, methods;")
    print(f"  {'':28} " + " ".join(f"{framework:>12}" for framework in calls))
    for name in calls["numpy"]:
        cells = [f"{row[name]['calls']} (+{row[name]['tensors']})" for row in calls.values()]
        print(f"  {name:28} " + " ".join(f"{cell:>12}" for cell in cells))


if __name__ == "__main__":
    main()
