"""One batch of a replay with all that watches it: the reference beside it, the clock, the chain of digests."""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import Any, TypeVar

import msgspec
import numpy as np

from slotline.core.backend import Backend
from slotline.core.batch import SlotBatch
from slotline.core.commit import commit_step
from slotline.core.draft_step import prepare_draft
from slotline.core.drafts import commit_drafts
from slotline.core.fetch import Fetch, Output
from slotline.core.insert import InsertReceipt, insert_tasks
from slotline.core.layout import BufferLayout
from slotline.core.step import Step as Prepared
from slotline.core.step import prepare_step
from slotline.core.tasks import Task
from slotline.replay.model import StandIn, StepResult
from slotline.replay.packing import differs, packed_level, packed_step
from slotline.testing.reference import Mismatch, ReferenceBatch

T = TypeVar("T")

DIGEST_EVERY = 64
_RECEIPT = ("slots", "epochs", "ended", "released", "cut", "num_active", "has_prefill", "launch_tokens")
_RESULT = ("request_id", "tokens", "finish_reason", "stop_match", "draft_tokens", "stale")
"""What the digest knows of a result; what rides along with a fetch is the engine's own."""


class Difference(Exception):
    """The batch and the reference differ; ``mismatch`` says where first."""

    def __init__(self, mismatch: Mismatch) -> None:
        super().__init__(mismatch)
        self.mismatch = mismatch


class Step:
    """A step on its way: as the batch prepared it, the reference's ticket, and what the model gave when it ran."""

    def __init__(self, prepared: Prepared, reference: Any, result: StepResult) -> None:
        self.prepared, self.reference, self.result = prepared, reference, result
        self.fetch: Fetch | None = None


class Side:
    """A batch, mirrored by a reference if ``verify``. Every operation goes through here, once for each of the two.

    ``order_seed`` shuffles the tasks of each call; None: as the scheduler gives them.
    """

    def __init__(
        self, layout: BufferLayout, backend: Backend, model: StandIn, *, verify: bool, order_seed: int | None
    ) -> None:
        self.batch = SlotBatch(layout, backend)
        self.reference = ReferenceBatch(layout) if verify else None
        self.insert_us: list[float] = []
        self.seconds: dict[str, float] = {}
        """What slotline's calls took, by name."""
        self._last = 0.0
        self.steps = 0
        self._model = model
        self._order = None if order_seed is None else random.Random(order_seed)
        self._chain = hashlib.blake2b(digest_size=32)

    def insert(self, tasks: Seq[Task]) -> InsertReceipt | None:
        if not tasks:
            return None
        if self._order is not None:
            tasks = shuffled(tasks, self._order)
        receipt = self._timed("insert", insert_tasks, self.batch, tasks)
        self.insert_us.append(self._last * 1e6)
        self._note([sorted(receipt.slots.items()), sorted(receipt.epochs.items()), receipt.released])
        if self.reference is not None:
            expected = self.reference.insert(tasks)
            for name in _RECEIPT:
                self._same(f"receipt.{name}", getattr(expected, name), getattr(receipt, name))
        return receipt

    def _timed(self, name: str, call: Callable[..., T], *args: Any) -> T:
        begin = time.perf_counter()
        result = call(*args)
        self._last = time.perf_counter() - begin
        self.seconds[name] = self.seconds.get(name, 0.0) + self._last
        return result

    def condense(self) -> None:
        moves = self.batch.condense()
        self._note(moves)
        if self.reference is not None:
            self._same("condense", self.reference.condense(), moves)

    def open_step(self) -> Step | None:
        """Prepare the next step and run the model on it; None if no row has anything to do."""
        if not self.batch.num_active:
            return None
        prepared = self._timed("prepare", prepare_step, self.batch)
        ticket = None if self.reference is None else self.reference.ticket()
        if self.reference is not None and ticket is not None:
            expected = packed_step(self.reference, ticket, prepared.num_tokens)
            self._require(differs(self.batch, "step", prepared, expected))
        return Step(prepared, ticket, self._model.run(self.batch))

    def commit(self, step: Step) -> None:
        tokens, number, drafts = step.result
        self._timed("commit", commit_step, self.batch, step.prepared, tokens, number)
        if self.reference is not None:
            self.reference.commit(step.reference, tokens, number)
        if self.batch.config.num_levels:
            self._draft(step)
        if drafts.shape[1]:
            self._timed("commit", commit_drafts, self.batch, step.prepared, drafts)
            if self.reference is not None:
                self.reference.commit_drafts(step.reference, drafts)
        step.fetch = self.batch.fetch(step.prepared)
        self.steps += 1

    def _draft(self, step: Step) -> None:
        """The inputs of each MTP level, given the drafts of the levels before; the model has made them all already."""
        for level in range(1, self.batch.config.num_drafts + 1):
            drafted = step.result.draft_tokens[:, : level - 1]
            draft = prepare_draft(self.batch, step.prepared, level, drafted)
            if self.reference is not None:
                expected = packed_level(self.reference, step.reference, level, step.prepared.num_tokens, drafted)
                self._require(differs(self.batch, f"draft level {level}", draft, expected))

    def result(self, step: Step) -> list[Output]:
        assert step.fetch is not None
        outputs = step.fetch.result()
        told = [tuple(getattr(out, name) for name in _RESULT) for out in outputs]
        self._note(told)
        if self.reference is not None:
            self.reference.taken(step.reference)
            expected = self.reference.outputs(step.reference)
            for got, want in zip(told, expected, strict=False):
                self._same("result", tuple(getattr(want, name) for name in _RESULT), got, want.request_id)
            self._same("result", len(expected), len(outputs))
        return outputs

    def compare(self) -> None:
        """All rows of all fields against the reference, and every row in a step against its block table."""
        if self.reference is not None:
            self._require(self.reference.compare(self.batch))
            self._covered()
        if self.steps % DIGEST_EVERY == 0:
            self._note(self.batch.digest())

    def digest(self) -> str:
        """Over everything that happened here, with the buffers as they are now."""
        self._note(self.batch.digest())
        return self._chain.hexdigest()

    def _covered(self) -> None:
        """No row computes a token that its blocks do not hold: the scheduler's own duty."""
        read = self.batch.host_array
        ends = read("seq_lens_decoder").reshape(-1) + read("seq_lens_this_time").reshape(-1)
        held = read("encoder_block_lens").reshape(-1) * self.batch.config.block_size
        over = np.flatnonzero(ends > held)
        if len(over):
            slot = int(over[0])
            owner = self.batch.owner(slot)
            raise Difference(Mismatch("block_tables", slot, owner, None, int(ends[slot]), int(held[slot])))

    def _note(self, value: Any) -> None:
        self._chain.update(msgspec.json.encode(value))

    def _require(self, found: Mismatch | None) -> None:
        if found is not None:
            raise Difference(found)

    def _same(self, field: str, expected: Any, got: Any, request_id: str | None = None) -> None:
        if expected != got:
            raise Difference(Mismatch(field, None, request_id, None, expected, got))


def shuffled(tasks: Seq[Task], order: random.Random) -> list[Task]:
    """Any order of the tasks in which those of one request keep theirs (rule I3)."""
    mixed = list(tasks)
    order.shuffle(mixed)
    queues: dict[str, list[Task]] = {}
    for task in reversed(tasks):
        queues.setdefault(task.request_id, []).append(task)
    return [queues[task.request_id].pop() for task in mixed]
