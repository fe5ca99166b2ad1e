"""Small replays, compared with the reference after every step: roles x methods x few blocks x aborts x condense."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotline.core import derived
from slotline.core.batch import SlotBatch
from slotline.core.commit import commit_step
from slotline.core.config import BatchConfig
from slotline.core.draft_step import prepare_draft
from slotline.core.errors import LayoutError
from slotline.core.layout import BufferLayout
from slotline.core.registry import load_backend
from slotline.core.sampling import SamplingParams
from slotline.core.step import prepare_step
from slotline.core.tasks import Request
from slotline.core.ticket import Ticket
from slotline.replay import driver, side
from slotline.replay.driver import ReplayOptions, ReplayResult, replay
from slotline.replay.model import EOS
from slotline.replay.traces import TraceRow

METHODS = {
    "none": {"spec_method": "none"},
    "ngram": {"spec_method": "ngram", "num_draft_tokens": 2},
    "suffix": {"spec_method": "suffix", "num_draft_tokens": 5},
    "mtp": {"spec_method": "mtp", "num_draft_tokens": 3},
    "mtp3": {"spec_method": "mtp", "num_draft_tokens": 4, "mtp_levels": 3},
}


def rows(count: int, seed: int, hashed: bool = False) -> Iterator[TraceRow]:
    rng = np.random.default_rng(seed)
    for _ in range(count):
        prompt, output = int(rng.integers(1, 120)), int(rng.integers(1, 40))
        yield TraceRow(0.0, prompt, output, (int(rng.integers(3)),) if hashed else None)


def attempt(
    method: str,
    *,
    count: int = 40,
    num_blocks: int = 400,
    seed: int = 0,
    verify: bool = True,
    hashed: bool = False,
    framework: str = "numpy",
    **options: object,
) -> ReplayResult:
    config = BatchConfig(
        max_num_seqs=8,
        max_model_len=160,
        max_chunk_tokens=48,
        block_size=4,
        num_blocks=num_blocks,
        vocab_size=500,
        eos_token_ids=(EOS,),
        max_stop_seqs=3,
        stop_seqs_max_len=4,
        **METHODS[method],  # type: ignore[arg-type]
    )
    chosen = ReplayOptions(verify=verify, seed=seed, **options)  # type: ignore[arg-type]
    return replay(rows(count, seed, hashed), config, load_backend("cpu", framework=framework), chosen)


def run(method: str, *, count: int = 40, **options: Any) -> ReplayResult:
    """A replay in which nothing may differ."""
    result = attempt(method, count=count, **options)
    assert result.mismatch is None, result.mismatch
    assert result.requests + result.refused == count
    return result


@pytest.mark.parametrize("split", [False, True], ids=["mixed", "split"])
@pytest.mark.parametrize("method", METHODS)
def test_plain(method: str, split: bool) -> None:
    result = run(method, split=split, hashed=not split)
    assert result.tasks["finish"] >= result.requests
    assert result.tasks["decode"] > 0


@pytest.mark.parametrize("split", [False, True], ids=["mixed", "split"])
@pytest.mark.parametrize("method", METHODS)
def test_everything_at_once(method: str, split: bool) -> None:
    """Few blocks, aborts and condense: stale results all the time."""
    result = run(method, split=split, num_blocks=60, abort_rate=0.2, condense_every=3, seed=1)
    assert result.tasks["preempt"] > 0
    assert result.tasks["abort"] > 0
    assert result.stats["stale_results"] > result.tasks["preempt"]


@pytest.mark.parametrize("split", [False, True], ids=["mixed", "split"])
def test_the_digest_knows_no_order(split: bool) -> None:
    """I3, over whole replays; also without the reference, and on a second run."""
    runs = [
        run("mtp", split=split, num_blocks=60, abort_rate=0.1, condense_every=5, order_seed=order, verify=verify)
        for order, verify in ((None, True), (None, False), (1, False), (2, False), (3, True))
    ]
    assert len({r.digest for r in runs}) == 1
    assert len({tuple(r.tasks.items()) for r in runs}) == 1
    other = run("mtp", split=split, num_blocks=60, abort_rate=0.1, condense_every=5, seed=1)
    assert other.digest != runs[0].digest


@pytest.mark.parametrize("split", [False, True], ids=["mixed", "split"])
@pytest.mark.parametrize("method", ["none", "mtp3"])
def test_every_framework_gives_one_digest(framework: str, method: str, split: bool) -> None:
    """B8: the same steps, results and bytes, whoever's tensors they are."""
    options: dict[str, Any] = {"num_blocks": 60, "abort_rate": 0.2, "condense_every": 3, "split": split, "count": 15}
    assert run(method, framework=framework, **options).digest == run(method, **options).digest


@given(
    method=st.sampled_from(sorted(METHODS)),
    split=st.booleans(),
    num_blocks=st.sampled_from([40, 50, 80, 400]),
    abort_rate=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    condense_every=st.sampled_from([0, 1, 2, 7]),
    acceptance=st.sampled_from([0.0, 0.5, 1.0]),
    order_seed=st.none() | st.integers(0, 9),
    seed=st.integers(0, 10**6),
)
def test_any_replay(
    method: str,
    split: bool,
    num_blocks: int,
    abort_rate: float,
    condense_every: int,
    acceptance: float,
    order_seed: int | None,
    seed: int,
) -> None:
    run(
        method,
        count=15,
        num_blocks=num_blocks,
        seed=seed,
        split=split,
        abort_rate=abort_rate,
        condense_every=condense_every,
        acceptance=acceptance,
        order_seed=order_seed,
    )


def test_a_commit_without_the_epoch_check_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sabotage: the results go to the rows where they were asked for, whoever is there now (S2)."""

    def blind(batch: SlotBatch, ticket: Ticket, tokens: Any, number: Any) -> None:
        real = batch.slots.by_epoch
        batch.slots.by_epoch = {e.epoch: e.slot for e in ticket.entries}
        try:
            commit_step(batch, ticket, tokens, number)
        finally:
            batch.slots.by_epoch = real

    monkeypatch.setattr(side, "commit_step", blind)
    result = attempt("mtp", num_blocks=60, abort_rate=0.2, condense_every=3)
    assert result.mismatches == 1
    assert result.mismatch is not None


@pytest.mark.parametrize("name", ["top_k", "stop_seqs", "temperature", "mtp.block_tables", "token_ids_all"])
def test_a_field_left_out_of_condense_is_caught(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Sabotage: one field stays behind when rows move (S3)."""
    real = derived.permute

    def forgetful(batch: SlotBatch, dst: Any, src: Any) -> None:
        before = batch[name].copy()
        real(batch, dst, src)
        batch[name][...] = before

    monkeypatch.setattr(derived, "permute", forgetful)
    result = attempt("mtp", abort_rate=0.2, condense_every=2)
    assert result.mismatch is not None
    assert result.mismatch.field == name


def lost(change: Callable[[Request], dict[str, Any]]) -> type[Request]:
    """A Request whose hand-over changes something on the way."""

    class Changed(Request):
        @classmethod
        def from_handover(cls, record: Any, layout: Any = None) -> Request:
            made = Request.from_handover(record, layout)
            parts: dict[str, Any] = {
                "output_token_ids": made.output_token_ids,
                "draft_token_ids": made.draft_token_ids,
                "sampling": made.sampling,
            }
            return Request(made.request_id, made.prompt_token_ids, **{**parts, **change(made)})

    return Changed


@pytest.mark.parametrize(
    "change",
    [
        lambda r: {"draft_token_ids": [*(r.draft_token_ids[:1] ^ 1), *r.draft_token_ids[1:]]},
        lambda r: {"output_token_ids": r.output_token_ids[:-1]},
        lambda r: {"sampling": SamplingParams(infer_seed=r.sampling.infer_seed, max_dec_len=r.sampling.max_dec_len)},
    ],
    ids=["first token", "outputs", "sampling"],
)
def test_a_handover_that_loses_something_is_caught(monkeypatch: pytest.MonkeyPatch, change: Any) -> None:
    """Sabotage: the record does not say what the prefill side knew (D5)."""
    monkeypatch.setattr(driver, "Request", lost(change))
    result = attempt("mtp", split=True, num_blocks=60, seed=2)
    assert result.mismatch is not None


def test_peers_meet_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """D5: a decode side of another vocabulary is refused."""

    def other(config: BatchConfig) -> BufferLayout:
        return real(dataclasses.replace(config, vocab_size=600) if config.role == "decode" else config)

    real = driver.replay_layout
    monkeypatch.setattr(driver, "replay_layout", other)
    with pytest.raises(LayoutError, match="vocab_size is 500 here and 600 there"):
        attempt("mtp", split=True)


def test_a_wrong_lookahead_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sabotage: each level reads what level 1 reads (M1)."""
    monkeypatch.setattr(side, "prepare_draft", lambda batch, step, level, drafted: prepare_draft(batch, step, 1))
    result = attempt("mtp3")
    assert result.mismatch is not None
    assert result.mismatch.field == "draft level 2.input_ids"


def test_a_step_with_a_forgotten_row_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sabotage: the lowest slot is left out of each step (L1)."""
    monkeypatch.setattr(side, "prepare_step", lambda batch: prepare_step(batch, skip=[batch.owner(batch.occupied[0])]))
    result = attempt("none")
    assert result.mismatch is not None
    assert result.mismatch.field.startswith("step.")
