"""An engine's loop for the simulated device: steps overlap insertions, results come late, sources are used again.

Everything that it decides is drawn from one number; what should have come out is the reference's word.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

import slotline as sl
from slotline.core.tasks import Task
from slotline.testing.reference import ReferenceBatch, RefTicket

CONFIG = sl.BatchConfig(
    max_num_seqs=5, max_model_len=24, max_chunk_tokens=6, block_size=4, num_blocks=64, vocab_size=50,
    eos_token_ids=(2,), max_stop_seqs=2, stop_seqs_max_len=3, max_bad_tokens=2, spec_method="mtp", num_draft_tokens=2,
)  # fmt: skip
LAYOUT = sl.target_layout(CONFIG) | sl.mtp_layout(CONFIG)


def add_streams(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives a real device, for the time of a test, what ``Loop`` needs of an engine: streams of its own."""
    kind = type(backend)
    monkeypatch.setattr(kind, "new_stream", lambda self: self.runtime.create_stream(), raising=False)
    monkeypatch.setattr(kind, "on_stream", lambda self, stream: self.tensors.running(stream), raising=False)


class Loop:
    """One run: ``Loop(backend, number).run(iterations)`` raises what it finds."""

    def __init__(self, backend: Any, number: int) -> None:
        self.backend, self.draw = backend, random.Random(number)
        self.batch, self.reference = sl.SlotBatch(LAYOUT, backend), ReferenceBatch(LAYOUT)
        self.compute = backend.new_stream()
        self.own = backend.empty([("own", (6, 8), "int64")])["own"]  # a buffer of the engine, written by views
        self.want = np.zeros((6, 8), np.int64)
        self.source = np.zeros((2, 2), np.int64)  # used again for each write; nothing to convert or broadcast
        self.flight: list[tuple[sl.Step, RefTicket, Any, Any]] = []
        self.names = 0
        self.steps: list[tuple[sl.Ticket, RefTicket, Any]] = []

    def run(self, iterations: int = 12) -> None:
        with self.backend.on_stream(self.compute):  # made with the default stream current; wait for what it did
            self.backend.synchronize()
            sl.async_set_value(self.own, 0)
            for _ in range(iterations):
                self._insert()
                self._write()
                self._commit()
                self._open()
                self._move()
            self._commit()
            self._finish()

    def _insert(self) -> None:
        draw, ref = self.draw, self.reference
        tasks: list[Task] = []
        free = sum(row is None for row in ref.rows)
        for slot, row in list(ref.occupied()):
            fate = draw.random()
            if row.known_finished or fate < 0.1:
                tasks.append(sl.FinishTask(row.request_id))
                free += 1
            elif fate < 0.2:
                tasks.append(sl.PreemptTask(row.request_id))
                free += 1
            elif fate < 0.4:
                tasks.append(sl.DecodeTask(row.request_id, block_table=list(range(slot, slot + 6))))
        for _ in range(draw.randint(0, free)):
            prompt = [draw.randint(3, 49) for _ in range(draw.randint(1, 6))]
            self.names += 1
            tasks.append(sl.PrefillTask(sl.Request(f"r{self.names}", prompt), 0, len(prompt), [7, 9, 11]))
        sl.insert_tasks(self.batch, tasks)
        ref.insert(tasks)

    def _write(self) -> None:
        """Columns of some rows, from a source that is changed at once (W1, W4)."""
        draw = self.draw
        row, column = draw.randint(0, 4), draw.randint(0, 3)
        self.source[:] = [[draw.randint(0, 99) for _ in range(2)] for _ in range(2)]
        view = (slice(row, row + 2), slice(column, column + 4, 2))
        sl.async_set_value(self.own[view], self.source)
        self.want[view] = self.source
        self.source[:] = -7

    def _open(self) -> None:
        step, ticket = sl.prepare_step(self.batch), self.reference.ticket()
        size, width = CONFIG.max_num_seqs, CONFIG.num_drafts + 1
        tokens = np.array([[self.draw.randint(2, 49) for _ in range(width)] for _ in range(size)])
        self.flight.append((step, ticket, tokens, np.ones(size, np.int64)))

    def _commit(self) -> None:
        """The step before, and its drafts; its result is taken a step later still."""
        while self.flight:
            step, ticket, tokens, number = self.flight.pop()
            sl.commit_step(self.batch, step, tokens, number)
            self.reference.commit(ticket, tokens, number)
            drafts = np.array([[self.draw.randint(3, 49) for _ in range(CONFIG.num_drafts)] for _ in tokens])
            sl.commit_drafts(self.batch, step, drafts)
            self.reference.commit_drafts(ticket, drafts)
            self.steps.append((step, ticket, self.batch.fetch(step)))
        while len(self.steps) > 1:
            self._take()

    def _take(self) -> None:
        _, ticket, fetch = self.steps.pop(0)
        want = [tuple(out) for out in self.reference.outputs(ticket)]
        try:
            got: list[Any] = [tuple(out) for out in fetch.result()]
        except IndexError as error:  # of a kernel, or of the host: what they index with is wrong
            raise AssertionError(f"the results of a step: none, since {error}; wanted {want}") from error
        assert got == want, f"the results of a step: {got}, wanted {want}"
        self.reference.taken(ticket)

    def _move(self) -> None:
        if self.draw.random() < 0.2:
            assert self.batch.condense() == self.reference.condense()
        elif self.draw.random() < 0.2:
            i, j = self.draw.randrange(CONFIG.max_num_seqs), self.draw.randrange(CONFIG.max_num_seqs)
            self.batch.swap(i, j)
            self.reference.swap(i, j)

    def _finish(self) -> None:
        while self.flight or self.steps:
            self._commit()
            if self.steps:
                self._take()
        found = self.reference.compare(self.batch)
        assert found is None, found
        own, want = self.backend.read(self.own).tolist(), self.want.tolist()
        assert own == want, f"the engine's own buffer: {own}, wanted {want}"
