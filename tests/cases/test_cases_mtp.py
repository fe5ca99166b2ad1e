"""CASES.md, "MTP buffers": C38 to C50."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from frameworks import backend, host, tensor

import slotline as sl

Maker = Callable[..., sl.SlotBatch]

SAMPLE = 77


def build(framework: str, /, num_seqs: int = 2, **values: Any) -> sl.SlotBatch:
    settings: dict[str, Any] = {
        "max_model_len": 32,
        "max_chunk_tokens": 16,
        "block_size": 4,
        "vocab_size": 1000,
        "spec_method": "mtp",
        "num_draft_tokens": 3,
        "mtp_levels": 1,
        **values,
    }
    config = sl.BatchConfig(max_num_seqs=num_seqs, **settings)
    return sl.SlotBatch(sl.target_layout(config) | sl.mtp_layout(config), backend(framework))


@pytest.fixture
def make(framework: str) -> Maker:
    """Batches on each framework."""
    return functools.partial(build, framework)


def get(batch: sl.SlotBatch, name: str, slot: int = 0) -> Any:
    return batch.host_array(name)[slot].tolist()


def prefill(request: sl.Request, start: int = 0, end: int | None = None, slot: int | None = None) -> sl.PrefillTask:
    return sl.PrefillTask(request, start, len(request.history) if end is None else end, range(8), slot)


def commit(batch: sl.SlotBatch, token: int, rows: list[str] | None = None) -> sl.Step:
    step = sl.prepare_step(batch, rows=rows)
    size = batch.config.max_num_seqs
    sl.commit_step(batch, step, np.full((size, batch.config.num_drafts + 1), token), np.ones(size, np.int32))
    return step


def drafts(batch: sl.SlotBatch, slot: int, *tokens: int) -> Any:
    block = np.full((batch.config.max_num_seqs, batch.config.num_drafts), -1)
    block[slot, : len(tokens)] = tokens
    return block


def rows_of(packed: Any) -> list[list[int]]:
    """The ids of each position of a step or a draft, padding removed."""
    ids, cu = host(packed.input_ids).tolist(), host(packed.cu_seqlens_q).tolist()
    return [ids[a:b] for a, b in itertools.pairwise(cu)]


def draft_inputs(
    make: Maker, prompt: list[int], chunk: int, output: tuple[int, ...] = ()
) -> tuple[list[list[int]], list[int]]:
    """What ``prepare_draft`` gives for each chunk, and the chunks' lookaheads."""
    batch = make(max_chunk_tokens=chunk)
    request = sl.Request("r", prompt, output)
    inputs, lookaheads = [], []
    history = [*prompt, *output]
    for start in range(0, len(history), chunk):
        end = min(start + chunk, len(history))
        sl.insert_tasks(batch, [prefill(request, start, end)])
        stored = get(batch, "mtp.input_ids")[: end - start]
        lookaheads.append(get(batch, "mtp.lookahead_tokens")[0])
        step = commit(batch, SAMPLE)
        draft = sl.prepare_draft(batch, step, 1)
        row, other = rows_of(draft)
        assert (other, host(draft.positions)[: len(row)].tolist()) == ([], list(range(start, end)))
        # The buffer holds the same as far as the history goes; only there may it hold less.
        assert stored[:-1] == row[:-1]
        assert row[-1] == (SAMPLE if lookaheads[-1] == -1 else lookaheads[-1])
        assert host(draft.num_logits).tolist() == [int(end == len(history))]
        inputs.append(row)
    return inputs, lookaheads


def test_c38_chunking_is_invisible(make: Maker) -> None:  # M1, M2, M3
    prompt = list(range(10, 20))
    inputs, lookaheads = draft_inputs(make, prompt, 4)
    assert inputs == [[11, 12, 13, 14], [15, 16, 17, 18], [19, SAMPLE]]
    assert lookaheads == [14, 18, -1]
    for chunk in (1, 3, 4, 10):
        assert [token for row in draft_inputs(make, prompt, chunk)[0] for token in row] == [*prompt[1:], SAMPLE]


def test_c39_resumed_lookahead(make: Maker) -> None:  # M2
    inputs, lookaheads = draft_inputs(make, [1, 2, 3], 4, (7, 8, 9))
    assert inputs == [[2, 3, 7, 8], [9, SAMPLE]]  # 8: not a placeholder, not the sample
    assert lookaheads == [8, -1]
    batch = make(max_chunk_tokens=4)
    request = sl.Request("r", [1, 2, 3], [7, 8, 9])
    sl.insert_tasks(batch, [prefill(request, 0, 4)])
    assert get(batch, "mtp.input_ids") == [2, 3, 7, 8]
    commit(batch, SAMPLE)
    sl.insert_tasks(batch, [prefill(request, 4, 6)])
    assert get(batch, "mtp.input_ids") == [9, 0, 0, 0]


def test_c41_first_step_of_a_handover(make: Maker) -> None:  # D2, M6
    batch = make(role="decode")
    view = batch["seq_lens_this_time"]
    sl.insert_tasks(batch, [prefill(sl.Request("r", [1, 2, 3], draft_token_ids=[50, 60, 61, 62]), slot=1)])
    assert get(batch, "draft_tokens", 1) == [50, 60, -1, -1]
    assert get(batch, "seq_lens_this_time", 1) == get(batch, "mtp.seq_lens_this_time", 1) == 2
    assert view is batch["seq_lens_this_time"]
    assert int(host(view)[1]) == 2
    assert get(batch, "seq_lens_encoder", 1) == 0
    before = batch.digest()
    with pytest.raises(sl.TaskError, match="'short'") as caught:
        sl.insert_tasks(batch, [prefill(sl.Request("short", [1, 2, 3], draft_token_ids=[50]))])
    assert tuple(caught.value.errors[0]) == ("short", "draft_token_ids", 1, 2)
    assert batch.digest() == before


@pytest.mark.parametrize("width", [4, 24])
def test_c42_hidden_state_of_the_sender(make: Maker, width: int) -> None:  # D5, F
    batch = make(4, hidden_size=width, role="decode")
    assert batch.host_array("mtp.first_token_hidden_states").shape == (4, width)
    state = np.linspace(-1, 1, width, dtype=np.float32)
    request = sl.Request("r", [1, 2, 3], draft_token_ids=[50, 60], hidden_state=state)
    sl.insert_tasks(batch, [prefill(request, slot=3)])
    assert np.array_equal(batch.host_array("mtp.first_token_hidden_states")[3], state)
    assert not batch.host_array("mtp.first_token_hidden_states")[:3].any()
    wrong = sl.Request("w", [1, 2], draft_token_ids=[50, 60], hidden_state=np.zeros(8))
    with pytest.raises(sl.TaskError, match="hidden_state"):
        sl.insert_tasks(batch, [prefill(wrong)])


def test_c43_drafts_wait_for_their_row(make: Maker) -> None:  # M5, L5
    batch = make()
    sl.insert_tasks(batch, [prefill(sl.Request(r, [1, 2, 3])) for r in ("a", "b")])
    step = commit(batch, 101)
    sl.commit_drafts(batch, step, drafts(batch, 0, 201, 202))
    commit(batch, 55, ["b"])  # "a" is not scheduled
    commit(batch, 56, ["b"])
    assert rows_of(sl.prepare_step(batch)) == [[101, 201, 202], [56]]
    assert get(batch, "draft_tokens", 0) == [101, 201, 202, -1]
    assert get(batch, "actual_draft_token_num", 0) == 2
    for slot in range(2):
        length = get(batch, "seq_lens_this_time", slot)
        assert min(get(batch, "draft_tokens", slot)[:length]) >= 0


def test_c45_a_result_is_never_from_before(make: Maker) -> None:  # L6
    batch = make()
    sl.insert_tasks(batch, [prefill(sl.Request("a", [1, 2, 3]))])
    sl.async_set_value(batch["accept_num"], 77)
    step = commit(batch, 101)
    pending = batch.fetch(step)
    sl.async_set_value(batch["accept_num"], 77)
    sl.async_set_value(batch["accept_tokens"], 77)
    batch.swap(0, 1)
    for _ in range(2):  # taken again, it is the same
        (entry,) = pending.result()
        assert (entry.request_id, entry.tokens, entry.finish_reason) == ("a", [101], 0)
    assert pending.is_done


def test_c46_released_rows_hold_the_fill(make: Maker) -> None:  # P2
    batch = make(8, hidden_size=3)
    ids = [f"r{i}" for i in range(8)]
    state = np.ones(3, np.float32)
    sl.insert_tasks(batch, [prefill(sl.Request(r, [1, 2, 3], hidden_state=state)) for r in ids])
    step = commit(batch, 9)
    sl.commit_drafts(batch, step, np.full((8, 3), 8))
    batch.release(ids[5:])
    for _ in range(3):
        step = sl.prepare_step(batch)
        assert step.request_ids == ids[:5]
        assert [bool(row) for row in rows_of(step)] == [True] * 5 + [False] * 3
        for name in ("draft_tokens", "accept_num", "mtp.first_token_hidden_states"):
            assert (batch.host_array(name)[5:] == batch.layout[name].fill).all(), name
        sl.commit_step(batch, step, np.full((8, 4), 9), np.ones(8, np.int32))
        draft = sl.prepare_draft(batch, step, 1)
        assert [bool(row) for row in rows_of(draft)] == [True] * 5 + [False] * 3
        sl.commit_drafts(batch, step, np.full((8, 3), 8))


def test_c48_carry_over_never_crosses(make: Maker) -> None:  # L5, M4
    batch = make()
    sl.insert_tasks(batch, [prefill(sl.Request(r, [1, 2, 3])) for r in ("a", "b")])
    commit(batch, 9)
    for turn, slot in enumerate([0, 1, 0, 1]):
        other = [batch.host_array(f.name)[1 - slot].copy() for f in batch.layout]
        step = commit(batch, 100 + slot, ["ab"[slot]])
        sl.commit_drafts(batch, step, np.full((2, 3), 10 * turn + slot))
        assert get(batch, "draft_tokens", slot) == [100 + slot, *[10 * turn + slot] * 3]
        for f, old in zip(batch.layout, other, strict=True):
            assert np.array_equal(batch.host_array(f.name)[1 - slot], old), f.name


def test_c48_a_draft_on_one_slot(make: Maker, framework: str) -> None:  # L5, M4
    """Draft row i is 100 + i, hidden row i is i; a draft on slot 1 reads 101 and 1."""
    batch = make()
    sl.insert_tasks(batch, [prefill(sl.Request(r, [1, 2, 3])) for r in ("a", "b")])
    commit(batch, 9)
    step = commit(batch, 40)
    hidden = host(step.batch_id_per_token)
    drafted = tensor(framework, [[100], [101]])
    for slot in (1, 0, 1, 0):
        before = batch.digest()
        draft = sl.prepare_draft(batch, step, 1, rows=["ab"[slot]])
        assert rows_of(draft) == [[40] if s == slot else [] for s in range(2)]
        assert hidden[host(draft.hidden_rows)[0]] == slot
        draft = sl.prepare_draft(batch, step, 2, drafted, rows=["ab"[slot]])
        assert rows_of(draft) == [[100 + slot] if s == slot else [] for s in range(2)]
        assert host(draft.batch_id_per_token)[:1].tolist() == [slot]
        assert host(draft.logits_slots).tolist() == [slot, -1]
        assert host(draft.hidden_rows)[0] == 0  # the only token of the level before
        assert batch.digest() == before
    with pytest.raises(sl.TaskError, match="nobody"):
        sl.prepare_draft(batch, step, 1, rows=["nobody"])


def test_c50_drafts_within_the_length_limit(make: Maker) -> None:  # M9
    for step_idx, kept in ((13, 2), (14, 1), (15, 0)):
        batch = make()
        request = sl.Request("r", [1, 2], [5] * (step_idx - 1), sampling=sl.SamplingParams(max_dec_len=16))
        sl.insert_tasks(batch, [prefill(request)])
        step = commit(batch, 9)
        assert get(batch, "step_idx") == step_idx
        sl.commit_drafts(batch, step, drafts(batch, 0, 8, 8, 8))
        assert get(batch, "draft_tokens") == [9] + [8] * kept + [-1] * (3 - kept)
        assert [get(batch, n) for n in ("actual_draft_token_num", "seq_lens_this_time")] == [kept, 1 + kept]
        step = sl.prepare_step(batch)
        assert rows_of(step)[0] == [9] + [8] * kept
        sl.commit_step(batch, step, np.full((2, 4), 8), np.full(2, 1 + kept, np.int32))
        (entry,) = batch.fetch(step).result()  # all accepted: exactly at the limit
        assert (len(entry.tokens), entry.finish_reason) == (1 + kept, sl.FinishReason.LENGTH)
        assert get(batch, "step_idx") == 16


def test_c50_no_slot_stays_taken(make: Maker) -> None:  # S1, L7
    batch = make(4)
    waiting = [sl.Request(f"r{i:02}", [1, 2], sampling=sl.SamplingParams(max_dec_len=1 + i % 3)) for i in range(40)]
    while waiting or batch.occupied:
        free = 4 - len(batch.occupied)
        sl.insert_tasks(batch, [prefill(r) for r in waiting[:free]])
        waiting = waiting[free:]
        step = commit(batch, 9)
        drafted = np.full((4, 3), 9)
        for level in range(1, 4):
            sl.prepare_draft(batch, step, level, drafted[:, : level - 1])
        sl.commit_drafts(batch, step, drafted)
        batch.release([o.request_id for o in batch.fetch(step).result() if o.finish_reason])
    assert (batch.occupied, batch.launch_tokens) == ([], 0)
