"""The replay's loop: tasks in, steps run, results one step late, as in an engine that overlaps the two.

Each iteration of a side: plan and insert while the former step is still open; condense now and then; commit the former
step and start its fetch; insert the chunks that had to wait for that; prepare the next step and run the model; take the
committed step's result. So releases, preemptions and moves meet open steps all the time, and epochs decide.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from slotline.core.backend import Backend
from slotline.core.config import BatchConfig
from slotline.core.errors import ConfigError
from slotline.core.fetch import Output
from slotline.core.handover import export_handover
from slotline.core.layout import BufferLayout
from slotline.core.peer import Peer, check_peer
from slotline.core.quantities import Ended
from slotline.core.recording import record_batch
from slotline.core.sampling import SCALAR_NAMES, SamplingParams
from slotline.core.standard import mtp_layout, target_layout
from slotline.core.stop import FinishReason
from slotline.core.tasks import Request
from slotline.replay.formats import TraceRow
from slotline.replay.model import StandIn, generated_by
from slotline.replay.plain import generate
from slotline.replay.scheduler import Scheduler
from slotline.replay.side import Difference, Side, Step
from slotline.replay.workload import Sequence, Workload
from slotline.testing.reference import Mismatch

STUCK_AFTER = 10_000
"""Iterations without a task or a step after which the scheduler must have lost something."""


@dataclass(frozen=True, kw_only=True)
class ReplayOptions:
    abort_rate: float = 0.0
    condense_every: int = 0
    """Steps between two calls of condense; 0: never."""
    acceptance: float = 0.7
    split: bool = False
    """A prefill batch and a decode batch, instead of one mixed."""
    verify: bool = False
    order_seed: int | None = None
    seed: int = 0
    series: bool = False
    """Note slots in use, times and bytes of each iteration, for plots."""
    record: Path | None = None
    """Write a recording there; one batch only."""
    redact: bool = True

    def __post_init__(self) -> None:
        for name in ("abort_rate", "acceptance"):
            if not 0 <= getattr(self, name) <= 1:
                raise ConfigError(f"{name} is {getattr(self, name)}, allowed: 0 to 1")
        for name in ("condense_every", "seed"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name} is {getattr(self, name)}, allowed: 0 and more")


@dataclass(frozen=True, kw_only=True)
class ReplayResult:
    requests: int
    refused: int
    aborted: int
    steps: int
    tasks: dict[str, int]
    mismatches: int
    mismatch: Mismatch | None
    """The first difference; expected is what the reference, or plain generation, says."""
    insert_us: dict[str, float]
    stats: dict[str, int]
    digest: str
    seconds: dict[str, float]
    """Of the whole run, and of it what slotline's own calls took."""
    series: dict[str, list[float]]
    """By iteration, with ``ReplayOptions.series``: slots in use, microseconds of insertion, bytes sent."""


def replay_layout(config: BatchConfig) -> BufferLayout:
    """The standard fields that the method of ``config`` needs."""
    layout = target_layout(config)
    return layout | mtp_layout(config) if config.spec_method == "mtp" else layout


def replay(
    rows: Iterator[TraceRow],
    config: BatchConfig,
    backend: Backend,
    options: ReplayOptions,
    progress: Callable[[int], None] | None = None,
) -> ReplayResult:
    """Run a trace to its end, or to the first difference. ``progress`` is told how many requests are through.

    ``config.role`` is set here. Raises ``ConfigError`` if the blocks cannot hold one request of the model's length,
    and what reading the trace raises.
    """
    if config.num_blocks is None or config.num_blocks < config.max_blocks_per_seq:
        raise ConfigError(
            f"num_blocks is {config.num_blocks}, needed: at least {config.max_blocks_per_seq}, "
            "the blocks of one request of max_model_len tokens"
        )
    return _Replay(rows, config, backend, options, progress).run()


class _Replay:
    def __init__(
        self,
        rows: Iterator[TraceRow],
        config: BatchConfig,
        backend: Backend,
        options: ReplayOptions,
        progress: Callable[[int], None] | None,
    ) -> None:
        self.options = options
        self.progress = progress or (lambda done: None)
        self.workload = Workload(rows, config, options.seed, options.abort_rate)
        self.mismatch: Mismatch | None = None
        self.series: dict[str, list[float]] = {}
        self.checked = self.iterations = 0
        model = StandIn(options.acceptance)
        self.loops: list[_Loop] = []
        for role in ("prefill", "decode") if options.split else ("mixed",):
            side = Side(
                replay_layout(replace(config, role=role)),
                backend,
                model,
                verify=options.verify,
                order_seed=options.order_seed,
            )
            self.loops.append(_Loop(side, self._scheduler(side.batch.config), options.condense_every))
        if options.split:
            here, there = (loop.side.batch.layout for loop in self.loops)
            check_peer(here, Peer.of(there).encode())
            check_peer(there, Peer.of(here).encode())

    def _scheduler(self, config: BatchConfig) -> Scheduler:
        assert config.num_blocks is not None
        if config.role == "decode":
            return Scheduler(config, config.num_blocks, lambda: None, self._end, self.loops[0].scheduler.wait)
        return Scheduler(config, config.num_blocks, self.workload.next, self._end)

    def run(self) -> ReplayResult:
        start = time.perf_counter()
        try:
            with self._recorded():
                self._run()
        except Difference as difference:
            self.mismatch = difference.mismatch
        seconds = sum((Counter(loop.side.seconds) for loop in self.loops), Counter[str]())
        seconds["all"] = time.perf_counter() - start  # type: ignore[assignment]
        insert_us = [us for loop in self.loops for us in loop.side.insert_us] or [0.0]
        tasks = sum((loop.scheduler.counts for loop in self.loops), Counter[str]())
        stats = sum((Counter(loop.side.batch.stats.as_dict()) for loop in self.loops), Counter[str]())
        return ReplayResult(
            requests=self.workload.accepted,
            refused=self.workload.refused,
            aborted=tasks["given_up"],
            steps=sum(loop.side.steps for loop in self.loops),
            tasks={kind: tasks[kind] for kind in ("prefill", "decode", "preempt", "abort", "finish")},
            mismatches=int(self.mismatch is not None),
            mismatch=self.mismatch,
            insert_us={f"p{p}": round(float(np.percentile(insert_us, p)), 1) for p in (50, 90, 99)},
            stats={name: stats[name] for name in self.loops[0].side.batch.stats.as_dict()},
            digest=self._digest(),
            seconds={name: round(took, 6) for name, took in seconds.items()},
            series=self.series,
        )

    def _recorded(self) -> AbstractContextManager[Any]:
        options = self.options
        if options.record is None:
            return nullcontext()
        if options.split:
            raise ConfigError("a recording takes one batch, a split makes two")
        return record_batch(self.loops[0].side.batch, options.record, redact=options.redact)

    def _run(self) -> None:
        quiet = 0
        while True:
            busy = [loop.turn(self.iterations) for loop in self.loops]
            if self.options.series:
                self._note_series()
            self.iterations += 1
            self.progress(self.checked)
            if not any(busy) and all(loop.scheduler.is_idle for loop in self.loops):
                break
            quiet = 0 if any(busy) else quiet + 1
            if quiet > STUCK_AFTER:
                raise RuntimeError("the scheduler makes no progress; this is a bug of the replay")
        if self.checked != self.workload.accepted:
            raise Difference(Mismatch("requests", None, None, None, self.workload.accepted, self.checked))

    def _note_series(self) -> None:
        batches = [loop.side.batch for loop in self.loops]
        inserted = sum(sum(loop.side.insert_us) for loop in self.loops)
        for name, value in (
            ("slots", sum(len(batch.occupied) for batch in batches)),
            ("insert_us", inserted),
            ("bytes", sum(batch.stats["bytes"] for batch in batches)),
        ):
            self.series.setdefault(name, []).append(float(value))

    def _end(self, sequence: Sequence, out: Output | None) -> None:
        if out is not None and out.finish_reason == FinishReason.HANDOVER:
            self._hand_over(sequence, out)
            return
        self._check(sequence, out)

    def _hand_over(self, sequence: Sequence, out: Output) -> None:
        """From one side to the other as bytes, as between two machines (D5); what arrives is what was asked for."""
        prefill, decode = self.loops
        record = export_handover(prefill.side.batch, sequence.request_id).encode()
        arrived = sequence.handed = Request.from_handover(record, decode.side.batch.layout)
        history = [*sequence.prompt.tolist(), *sequence.outputs[: -len(out.tokens)]]
        want = (history, [*out.tokens, *out.draft_tokens], *_asked(sequence.sampling))
        got = (arrived.history.tolist(), arrived.draft_token_ids.tolist(), *_asked(arrived.sampling))
        if want != got:
            raise Difference(Mismatch("handover", None, sequence.request_id, None, want, got))
        decode.scheduler.wait(sequence)

    def _check(self, sequence: Sequence, out: Output | None) -> None:
        """A request's whole life against plain generation; without ``out`` it was given up on its way."""
        self.checked += 1
        said = generated_by(sequence.sampling.infer_seed, sequence.max_dec_len)
        eos = self.workload.config.eos_token_ids
        expected = generate(said, sequence.sampling, sequence.max_dec_len, eos)
        want: Any = tuple(expected)
        got: Any
        if out is None:
            want, got = expected.tokens[: len(sequence.outputs)], sequence.outputs
        else:
            got = (sequence.outputs, int(out.finish_reason), out.stop_match)
        if want != got:
            raise Difference(Mismatch("generated", None, sequence.request_id, None, want, got))

    def _digest(self) -> str:
        if len(self.loops) == 1:
            return self.loops[0].side.digest()
        return hashlib.blake2b("".join(loop.side.digest() for loop in self.loops).encode(), digest_size=32).hexdigest()


def _asked(sampling: SamplingParams) -> tuple[Any, ...]:
    """All that a request asks of the sampler, to be compared."""
    values = [getattr(sampling, name) for name in SCALAR_NAMES]
    return (*values, [seq.tolist() for seq in sampling.stop_lists], np.asarray(sampling.bad_tokens).tolist())


class _Loop:
    """One side's iterations."""

    def __init__(self, side: Side, scheduler: Scheduler, condense_every: int) -> None:
        self.side, self.scheduler, self.condense_every = side, scheduler, condense_every
        self.open: Step | None = None

    def turn(self, iteration: int) -> bool:
        """One iteration; False if there was nothing to do."""
        side, tasks = self.side, self.scheduler.plan(iteration)
        receipt = side.insert(tasks)
        if receipt is not None:
            for request_id, ended in receipt.ended.items():
                self.scheduler.end(_as_output(request_id, ended))
        if self.condense_every and iteration % self.condense_every == self.condense_every - 1:
            side.condense()
        committed, self.open = self.open, None
        if committed is not None:
            side.commit(committed)
        chunks = self.scheduler.chunks()
        side.insert(chunks)
        self.open = side.open_step()
        if committed is not None:
            self.scheduler.take(side.result(committed))
        busy = bool(tasks or chunks or committed or self.open)
        if busy:
            side.compare()
        return busy


def _as_output(request_id: str, ended: Ended) -> Output:
    """D4: the handed-over token ended the request; the scheduler knows the token already."""
    return Output(request_id, [], ended.finish_reason, ended.stop_match, [], False)
