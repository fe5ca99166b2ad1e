"""One batch of a replay with all that watches it: the reference beside it, the clock, the chain of digests."""

from __future__ import annotations

import hashlib
import random
import time
from collections.abc import Sequence as Seq
from typing import Any

import msgspec
import numpy as np

from slotline.core.backend import Backend
from slotline.core.batch import SlotBatch
from slotline.core.commit import commit_step
from slotline.core.drafts import commit_drafts
from slotline.core.fetch import Fetch, Output
from slotline.core.insert import InsertReceipt, insert_tasks
from slotline.core.layout import BufferLayout
from slotline.core.tasks import Task
from slotline.core.ticket import Ticket
from slotline.replay.model import StandIn, StepResult
from slotline.testing.reference import Mismatch, ReferenceBatch

DIGEST_EVERY = 64
_RECEIPT = ("slots", "epochs", "ended", "released", "cut", "num_active", "has_prefill", "launch_tokens")


class Difference(Exception):
    """The batch and the reference differ; ``mismatch`` says where first."""

    def __init__(self, mismatch: Mismatch) -> None:
        super().__init__(mismatch)
        self.mismatch = mismatch


class Step:
    """A step on its way: the batch's ticket, the reference's, and what the model gave when it ran."""

    def __init__(self, ticket: Ticket, reference: Any, result: StepResult) -> None:
        self.ticket, self.reference, self.result = ticket, reference, result
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
        self.steps = 0
        self._model = model
        self._order = None if order_seed is None else random.Random(order_seed)
        self._chain = hashlib.blake2b(digest_size=32)

    def insert(self, tasks: Seq[Task]) -> InsertReceipt | None:
        if not tasks:
            return None
        if self._order is not None:
            tasks = shuffled(tasks, self._order)
        begin = time.perf_counter()
        receipt = insert_tasks(self.batch, tasks)
        self.insert_us.append((time.perf_counter() - begin) * 1e6)
        self._note([sorted(receipt.slots.items()), sorted(receipt.epochs.items()), receipt.released])
        if self.reference is not None:
            expected = self.reference.insert(tasks)
            for name in _RECEIPT:
                self._same(f"receipt.{name}", getattr(expected, name), getattr(receipt, name))
        return receipt

    def condense(self) -> None:
        moves = self.batch.condense()
        self._note(moves)
        if self.reference is not None:
            self._same("condense", self.reference.condense(), moves)

    def open_step(self) -> Step | None:
        """Prepare the next step and run the model on it; None if no row has anything to do."""
        if not self.batch.num_active:
            return None
        ticket = self.batch.ticket()
        reference = None if self.reference is None else self.reference.ticket()
        return Step(ticket, reference, self._model.run(self.batch))

    def commit(self, step: Step) -> None:
        tokens, number, drafts = step.result
        commit_step(self.batch, step.ticket, tokens, number)
        if drafts.shape[1]:
            commit_drafts(self.batch, step.ticket, drafts)
        step.fetch = self.batch.fetch(step.ticket)
        if self.reference is not None:
            self.reference.commit(step.reference, tokens, number)
            if drafts.shape[1]:
                self.reference.commit_drafts(step.reference, drafts)
        self.steps += 1

    def result(self, step: Step) -> list[Output]:
        assert step.fetch is not None
        outputs = step.fetch.result()
        self._note(outputs)
        if self.reference is not None:
            self.reference.taken(step.reference)
            expected = self.reference.outputs(step.reference)
            for got, want in zip(outputs, expected, strict=False):
                self._same("result", tuple(want), tuple(got), got.request_id)
            self._same("result", len(expected), len(outputs))
        return outputs

    def compare(self) -> None:
        """All rows of all fields against the reference, and every row in a step against its block table."""
        if self.reference is not None:
            found = self.reference.compare(self.batch)
            if found is not None:
                raise Difference(found)
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
