"""CASES.md, "MTP buffers": what insertion, commits, drafts and fetched results do of C38 to C50."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import slotline as sl

SAMPLE = 77


def make(num_seqs: int = 2, **values: Any) -> sl.SlotBatch:
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
    return sl.SlotBatch(sl.target_layout(config) | sl.mtp_layout(config), sl.load_backend("cpu"))


def get(batch: sl.SlotBatch, name: str, slot: int = 0) -> Any:
    return batch.host_array(name)[slot].tolist()


def prefill(request: sl.Request, start: int = 0, end: int | None = None, slot: int | None = None) -> sl.PrefillTask:
    return sl.PrefillTask(request, start, len(request.history) if end is None else end, range(8), slot)


def commit(batch: sl.SlotBatch, token: int, rows: list[str] | None = None) -> sl.Ticket:
    ticket = batch.ticket(rows)
    size = batch.config.max_num_seqs
    sl.commit_step(batch, ticket, np.full((size, batch.config.num_drafts + 1), token), np.ones(size, np.int32))
    return ticket


def drafts(batch: sl.SlotBatch, slot: int, *tokens: int) -> Any:
    block = np.full((batch.config.max_num_seqs, batch.config.num_drafts), -1)
    block[slot, : len(tokens)] = tokens
    return block


def draft_inputs(prompt: list[int], chunk: int) -> tuple[list[list[int]], list[int]]:
    """Draft inputs of each chunk with the lookahead resolved by hand, and the lookaheads."""
    batch = make(max_chunk_tokens=chunk)
    request = sl.Request("r", prompt)
    inputs, lookaheads = [], []
    for start in range(0, len(prompt), chunk):
        end = min(start + chunk, len(prompt))
        sl.insert_tasks(batch, [prefill(request, start, end)])
        row = get(batch, "mtp.input_ids")[: end - start]
        ahead = get(batch, "mtp.lookahead_tokens")[0]
        if ahead == -1:
            row[-1] = SAMPLE
        assert row[-1] == (SAMPLE if ahead == -1 else ahead)
        inputs.append(row)
        lookaheads.append(ahead)
        commit(batch, SAMPLE)
    return inputs, lookaheads


def test_c38_chunking_is_invisible() -> None:  # M1, M2, M3
    prompt = list(range(10, 20))
    inputs, lookaheads = draft_inputs(prompt, 4)
    assert inputs == [[11, 12, 13, 14], [15, 16, 17, 18], [19, SAMPLE]]
    assert lookaheads == [14, 18, -1]
    for chunk in (1, 3, 4, 10):
        assert [token for row in draft_inputs(prompt, chunk)[0] for token in row] == [*prompt[1:], SAMPLE]


def test_c39_resumed_lookahead() -> None:  # M2
    batch = make(max_chunk_tokens=4)
    request = sl.Request("r", [1, 2, 3], [7, 8, 9])
    sl.insert_tasks(batch, [prefill(request, 0, 4)])
    assert get(batch, "mtp.lookahead_tokens") == [8]
    assert get(batch, "mtp.input_ids") == [2, 3, 7, 8]
    commit(batch, SAMPLE)
    sl.insert_tasks(batch, [prefill(request, 4, 6)])
    assert get(batch, "mtp.lookahead_tokens") == [-1]
    assert get(batch, "mtp.input_ids") == [9, 0, 0, 0]


def test_c41_first_step_of_a_handover() -> None:  # D2, M6
    batch = make(role="decode")
    view = batch["seq_lens_this_time"]
    sl.insert_tasks(batch, [prefill(sl.Request("r", [1, 2, 3], draft_token_ids=[50, 60, 61, 62]), slot=1)])
    assert get(batch, "draft_tokens", 1) == [50, 60, -1, -1]
    assert get(batch, "seq_lens_this_time", 1) == get(batch, "mtp.seq_lens_this_time", 1) == 2
    assert view is batch["seq_lens_this_time"]
    assert int(np.asarray(view)[1]) == 2
    assert get(batch, "seq_lens_encoder", 1) == 0
    before = batch.digest()
    with pytest.raises(sl.TaskError, match="'short'") as caught:
        sl.insert_tasks(batch, [prefill(sl.Request("short", [1, 2, 3], draft_token_ids=[50]))])
    assert tuple(caught.value.errors[0]) == ("short", "draft_token_ids", 1, 2)
    assert batch.digest() == before


@pytest.mark.parametrize("width", [4, 24])
def test_c42_hidden_state_of_the_sender(width: int) -> None:  # D5, F
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


def test_c43_drafts_wait_for_their_row() -> None:  # M5, L5
    batch = make()
    sl.insert_tasks(batch, [prefill(sl.Request(r, [1, 2, 3])) for r in ("a", "b")])
    ticket = commit(batch, 101)
    sl.commit_drafts(batch, ticket, drafts(batch, 0, 201, 202))
    commit(batch, 55, ["b"])  # "a" is not scheduled
    assert batch.ticket(["a"]).lengths.tolist() == [3, 0]
    assert get(batch, "draft_tokens", 0) == [101, 201, 202, -1]
    assert get(batch, "actual_draft_token_num", 0) == 2
    for slot in range(2):
        length = get(batch, "seq_lens_this_time", slot)
        assert min(get(batch, "draft_tokens", slot)[:length]) >= 0


def test_c45_a_result_is_never_from_before() -> None:  # L6
    batch = make()
    sl.insert_tasks(batch, [prefill(sl.Request("a", [1, 2, 3]))])
    sl.async_set_value(batch["accept_num"], 77)
    ticket = commit(batch, 101)
    pending = batch.fetch(ticket)
    sl.async_set_value(batch["accept_num"], 77)
    assert [len(o.tokens) for o in pending.result()] == [1]


def test_c46_released_rows_hold_the_fill() -> None:  # P2
    batch = make(8, hidden_size=3)
    ids = [f"r{i}" for i in range(8)]
    state = np.ones(3, np.float32)
    sl.insert_tasks(batch, [prefill(sl.Request(r, [1, 2, 3], hidden_state=state)) for r in ids])
    ticket = commit(batch, 9)
    sl.commit_drafts(batch, ticket, np.full((8, 3), 8))
    batch.release(ids[5:])
    for _ in range(3):
        step = batch.ticket()
        assert step.request_ids == ids[:5]
        for name in ("draft_tokens", "accept_num", "mtp.first_token_hidden_states"):
            assert (batch.host_array(name)[5:] == batch.layout[name].fill).all(), name
        sl.commit_step(batch, step, np.full((8, 4), 9), np.ones(8, np.int32))


def test_c48_carry_over_never_crosses() -> None:  # L5
    batch = make()
    sl.insert_tasks(batch, [prefill(sl.Request(r, [1, 2, 3])) for r in ("a", "b")])
    commit(batch, 9)
    for turn, slot in enumerate([0, 1, 0, 1]):
        other = [batch.host_array(f.name)[1 - slot].copy() for f in batch.layout]
        ticket = commit(batch, 100 + slot, ["ab"[slot]])
        sl.commit_drafts(batch, ticket, np.full((2, 3), 10 * turn + slot))
        assert get(batch, "draft_tokens", slot) == [100 + slot, *[10 * turn + slot] * 3]
        for f, old in zip(batch.layout, other, strict=True):
            assert np.array_equal(batch.host_array(f.name)[1 - slot], old), f.name


def test_c50_drafts_within_the_length_limit() -> None:  # M9
    for step_idx, kept in ((13, 2), (14, 1), (15, 0)):
        batch = make()
        request = sl.Request("r", [1, 2], [5] * (step_idx - 1), sampling=sl.SamplingParams(max_dec_len=16))
        sl.insert_tasks(batch, [prefill(request)])
        ticket = commit(batch, 9)
        assert get(batch, "step_idx") == step_idx
        sl.commit_drafts(batch, ticket, drafts(batch, 0, 8, 8, 8))
        assert get(batch, "draft_tokens") == [9] + [8] * kept + [-1] * (3 - kept)
        assert [get(batch, n) for n in ("actual_draft_token_num", "seq_lens_this_time")] == [kept, 1 + kept]


def test_c50_no_slot_stays_taken() -> None:  # S1, L7
    batch = make(4)
    waiting = [sl.Request(f"r{i:02}", [1, 2], sampling=sl.SamplingParams(max_dec_len=1 + i % 3)) for i in range(40)]
    while waiting or batch.occupied:
        free = 4 - len(batch.occupied)
        sl.insert_tasks(batch, [prefill(r) for r in waiting[:free]])
        waiting = waiting[free:]
        ticket = commit(batch, 9)
        batch.release([o.request_id for o in batch.fetch(ticket).result() if o.finish_reason])
    assert (batch.occupied, batch.launch_tokens) == ([], 0)
