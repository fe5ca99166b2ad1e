"""What a hand-over record holds, and what export refuses (rule D5)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from handovers import PROMPT, body_of, framed, ids, make, prefilled, record, request, step

import slotline as sl

# -- what it holds


def test_the_bytes_are_those_of_the_document() -> None:
    raw = record()
    body = body_of(raw)
    assert raw == framed(msgspec.msgpack.encode(body))
    assert list(body)[:5] == ["peer", "request_id", "prompt", "output", "first_step"]
    assert (body["prompt"], body["output"], body["first_step"]) == (ids(*PROMPT), ids(9), ids(77, 8, 8))
    assert (body["stop_lens"], body["stop_ids"], body["bad_ids"]) == (ids(2, 1), ids(1, 2, 3), ids(4))
    assert body["hidden"] == np.array([0.5, -1.25, 3, 4], "<f4").tobytes()
    assert body["values"]["temperature"] == 0.5
    assert body["values"]["max_dec_len"] == 9
    (own,) = body["extras"]
    assert (own["name"], own["dtype"], own["shape"]) == ("own", "int64", np.array([2, 2], "<i8").tobytes())
    assert body["peer"] == {
        "role": "prefill", "spec_method": "mtp", "vocab_size": 100, "max_model_len": 24, "block_size": 4,
        "eos_token_ids": [2], "hidden_size": 4, "hidden_dtype": "float32",
    }  # fmt: skip


def test_a_record_gives_the_request_back() -> None:
    handover = sl.export_handover(prefilled(), "r1")
    again = sl.Handover.decode(handover.encode())
    assert again == handover
    assert hash(again) == hash(handover)
    for made in (sl.Request.from_handover(handover), sl.Request.from_handover(bytearray(handover.encode()))):
        assert (made.request_id, made.history.tolist(), made.num_prompt_tokens) == ("r1", [*PROMPT, 9], 4)
        assert made.draft_token_ids.tolist() == [77, 8, 8]
        assert made.sampling.packed == request().sampling.packed
        assert [s.tolist() for s in made.sampling.stop_lists] == [[1, 2], [3]]
        assert np.asarray(made.sampling.bad_tokens).tolist() == [4]
        assert made.extra["own"].tolist() == [[1, 2], [3, 4]]
        assert made.hidden_state.tolist() == [0.5, -1.25, 3, 4]
    assert (handover.first_token, repr(handover)) == (77, repr(again))
    assert "77" not in repr(handover)
    with pytest.raises(AttributeError):
        handover.prompt = b""  # type: ignore[misc]


def test_unset_max_dec_len_stays_unset() -> None:
    made = sl.Request.from_handover(record(asked=request(sampling=None)))
    assert made.sampling.max_dec_len is None


def test_export_reads_the_row_where_the_request_is_now() -> None:
    batch = prefilled()
    batch.condense()
    assert batch.slot_of("r1") == 0
    handover = sl.export_handover(batch, "r1")
    assert handover.hidden_state is not None
    assert handover.hidden_state.tolist() == [0.5, -1.25, 3, 4]


def test_a_longer_row_keeps_its_width() -> None:
    """F3: a row of one axis may get longer; what travels is the hidden state."""
    config = replace(make("prefill").config)
    layout = (sl.target_layout(config) | sl.mtp_layout(config)).replace(
        "mtp.first_token_hidden_states", dims=("max_num_seqs", 6)
    )
    batch = sl.SlotBatch(layout, sl.load_backend("cpu"))
    sl.insert_tasks(batch, [sl.PrefillTask(request(hidden_state=[1, 2, 3, 4]), 0, 5, range(6))])
    step(batch, 77)
    assert body_of(sl.export_handover(batch, "r1").encode())["hidden"] == np.array([1, 2, 3, 4], "<f4").tobytes()


# -- what export refuses


def refused(batch: sl.SlotBatch, field: str, hint: str, request_id: str = "r1") -> None:
    before = batch.digest()
    with pytest.raises(sl.TaskError, match=hint) as caught:
        sl.export_handover(batch, request_id)
    assert [(f.request_id, f.field) for f in caught.value.errors] == [(request_id, field)]
    assert batch.digest() == before


def test_an_unknown_request_is_refused() -> None:
    refused(prefilled(), "request_id", "it owns no slot", "r2")
    batch = prefilled()
    batch.release(["r1"])
    refused(batch, "request_id", "it owns no slot")


@pytest.mark.parametrize("role", ["mixed", "decode"])
def test_other_roles_hand_nothing_over(role: str) -> None:
    batch = make(role)
    sl.insert_tasks(batch, [sl.PrefillTask(request(draft_token_ids=[77, 8]), 0, 5, range(6))])
    refused(batch, "role", "only a prefill side hands over")


def test_a_result_that_was_not_fetched_is_refused() -> None:
    batch = make("prefill")
    sl.insert_tasks(batch, [sl.PrefillTask(request(), 0, 5, range(6))])
    refused(batch, "output", "result first")
    ticket = batch.ticket()
    sl.commit_step(batch, ticket, np.full((3, 3), 77), np.ones(3, np.int32))
    pending = batch.fetch(ticket)
    refused(batch, "output", "result first")
    pending.result()
    assert sl.export_handover(batch, "r1").draft_token_ids.tolist() == [77]


def test_a_chunk_that_is_not_last_is_refused() -> None:
    batch = make("prefill")
    sl.insert_tasks(batch, [sl.PrefillTask(request(), 0, 3, range(6))])
    step(batch, 77)
    refused(batch, "end", "its last chunk is not committed yet")
    sl.insert_tasks(batch, [sl.PrefillTask(request(), 3, 5, range(6))])
    refused(batch, "end", "its last chunk is not committed yet")
    step(batch, 77)
    assert sl.export_handover(batch, "r1").first_token == 77


def test_a_request_that_the_stop_rule_ended_is_refused() -> None:
    batch = make("prefill")
    sl.insert_tasks(batch, [sl.PrefillTask(request(), 0, 5, range(6))])
    step(batch, 2)
    refused(batch, "finish_reason", "reason eos")


def test_a_new_epoch_has_no_result_yet() -> None:
    batch = prefilled()
    sl.insert_tasks(batch, [sl.AbortTask("r1"), sl.PrefillTask(request(), 0, 5, range(6))])
    refused(batch, "output", "result first")


@pytest.mark.parametrize(
    "extra", [{"a": "text"}, {"a": object()}, {"a": [[1], [2, 3]]}, {"a": float("nan")}, {"a": 1j}, {"\ud800": 1}]
)
def test_own_values_that_cannot_travel_are_refused(extra: dict[str, Any]) -> None:
    refused(prefilled(asked=request(extra=extra)), f"extra[{next(iter(extra))!r}]", "export_handover")
