"""What the MTP heads of the tiny engine read and write, and how often their drafts are right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from examples.tiny_engine.engine import Engine
from examples.tiny_engine.model import Cache, Inputs, Model
from examples.tiny_engine.options import Options
from examples.tiny_engine.plain import greedy
from examples.tiny_engine.prompts import select
from numpy.typing import NDArray
from serving import Job, check, models, serve

import slotline as sl

RESUMED = 7
"""Tokens that one of the requests has generated before it comes here."""


class Recorder:
    """A model that keeps what its heads read: by level, slot and position the token."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.read: dict[tuple[int, int], dict[int, list[int]]] = {}
        self.order: dict[tuple[int, int], list[int]] = {}
        self._level = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def forward(self, inputs: Inputs, cache: Cache) -> NDArray[Any]:
        self._level = 0
        return self.model.forward(inputs, cache)

    def draft_forward(self, head: int, inputs: Inputs, hidden: NDArray[Any], cache: Cache) -> NDArray[Any]:
        self._level += 1
        count = inputs.cu_seqlens_q[-1]
        cells = (inputs.batch_id_per_token[:count], inputs.positions[:count], inputs.input_ids[:count])
        for slot, position, token in zip(*(c.tolist() for c in cells), strict=True):
            self.read.setdefault((self._level, slot), {}).setdefault(position, []).append(token)
            self.order.setdefault((self._level, slot), []).append(position)
        return self.model.draft_forward(head, inputs, hidden, cache)


@pytest.fixture(scope="module")
def model() -> Model:
    found: Model = models("numpy")
    return found


@pytest.mark.parametrize("levels", [1, 2, 3])
def test_chunked_prefill_drafts_as_unchunked(model: Model, levels: int) -> None:
    """M1 to M3, M5: tokens and positions of every level are equal, the heads' keys and values within 1e-4."""
    prompts = select(model, 3, 32)
    resumed = prompts[2].plain.tokens[:RESUMED]
    sampling = sl.SamplingParams(max_dec_len=240, min_dec_len=240)
    seen = []
    for chunk in (None, 1, 7, 64):
        recorder = Recorder(model)
        options = Options(spec_method="mtp", num_draft_tokens=3, mtp_levels=levels, chunk=chunk, max_num_seqs=3)
        engine = Engine(options, recorder)
        for number, prompt in enumerate(prompts):
            engine.add(f"{number}", prompt.text, sampling, outputs=resumed if number == 2 else [])
        lengths = [len(p.text) + (RESUMED if n == 2 else 0) for n, p in enumerate(prompts)]
        while not all(len(s.outputs) > (RESUMED if s.index == 2 else 0) for s in _running(engine, 3)):
            assert engine.step() == []
        read, kept = {}, {}
        for seq in _running(engine, 3):
            slot, length = engine.batch.slot_of(seq.request_id), lengths[seq.index]
            for level in range(1, levels + 1):
                cells = recorder.read[level, slot]
                order = recorder.order[level, slot]
                assert order[:length] == list(range(length))  # each position once, in order
                read[seq.index, level] = [cells[position][0] for position in range(length)]
            kept[seq.index] = [
                part[model.num_layers :][:, seq.blocks].reshape(3, -1, *part.shape[3:])[:levels, :length]
                for part in (engine.cache.keys, engine.cache.values)
            ]
        seen.append((read, kept))
    whole_read, whole_kept = seen[0]
    history = list(prompts[2].text) + resumed
    assert whole_read[2, 1][:-1] == history[1:]  # M1: level 1 is the text shifted by one
    assert whole_read[2, levels][:-levels] == history[levels:]
    for read, kept in seen[1:]:
        assert read == whole_read
        for index, parts in kept.items():
            for got, wanted in zip(parts, whole_kept[index], strict=True):
                assert np.abs(got - wanted).max() <= 1e-4 * np.abs(wanted).max()


def _running(engine: Engine, count: int) -> list[Any]:
    """All sequences, once they run."""
    while len(engine.scheduler.running) < count:
        engine.step()
    return list(engine.scheduler.running.values())


def test_first_drafts_are_accepted_more_often_than_not(model: Model) -> None:
    """L5: 64 prompts that the model has not seen; wrong inputs of the heads would show here."""
    prompts = select(model, 64, 32)
    engine = Engine(Options(spec_method="mtp", num_draft_tokens=1, max_num_seqs=16), model)
    for number, prompt in enumerate(prompts):
        engine.add(f"{number}", prompt.text, sl.SamplingParams(max_dec_len=32))
    results = engine.run()
    assert all(results[f"{n}"].tokens == p.plain.tokens for n, p in enumerate(prompts))
    counts = engine.counts
    assert counts.offered[0] > 500
    assert counts.accepted[0] / counts.offered[0] > 0.5


@pytest.fixture(scope="module")
def stopped(model: Model) -> list[Job]:
    """Requests that each end with a stop sequence."""
    work = []
    for number, prompt in enumerate(select(model, 8, 32)):
        stop = (bytes(prompt.plain.tokens[10 + number : 12 + number]),)
        work.append(Job(f"{number}", prompt.text, greedy(model, prompt.text, max_tokens=32, stop=stop), 32, stop=stop))
    return work


@pytest.mark.parametrize("role", ["mixed", "split"])
@pytest.mark.parametrize(("method", "drafts"), [("ngram", 3), ("mtp", 3)])
def test_acceptance_rejection_and_cut_groups_happen(
    model: Model, stopped: list[Job], role: str, method: str, drafts: int
) -> None:
    """L4, T: drafts are accepted and rejected at every position, and stops cut groups of accepted tokens."""
    served = serve(Options(spec_method=method, num_draft_tokens=drafts, max_num_seqs=4), role, stopped)
    check(served, stopped)
    counts = served.engine.counts
    for offered, accepted in zip(counts.offered, counts.accepted, strict=True):
        assert 0 < accepted < offered
    assert counts.cut > 0 or method == "ngram"  # too few of its groups are longer than one
    assert counts.decode_tokens > counts.decode_rows
