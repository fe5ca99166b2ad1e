"""What the host knows of the next step, without asking the device (rules I7, D3, L1)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import slotline as sl

EOS = 1


def make(**values: Any) -> sl.SlotBatch:
    config = sl.BatchConfig(
        **{
            "max_num_seqs": 2,
            "max_model_len": 16,
            "max_chunk_tokens": 4,
            "block_size": 4,
            "vocab_size": 10,
            "eos_token_ids": (EOS,),
            "spec_method": "ngram",
            "num_draft_tokens": 2,
            **values,
        }
    )
    return sl.SlotBatch(sl.target_layout(config), sl.load_backend("cpu"))


def commit(batch: sl.SlotBatch, step: sl.Ticket, token: int) -> None:
    sl.commit_step(batch, step, np.full((2, batch.config.num_drafts + 1), token), np.ones(2, np.int32))


def test_i7_bounds_of_one_request() -> None:
    batch = make()
    request = sl.Request("a", [3, 4, 5, 6, 7, 8])
    assert sl.insert_tasks(batch, [sl.PrefillTask(request, 0, 4, [0])]).launch_tokens == 4
    assert batch.has_prefill
    step = batch.ticket()
    assert (batch.launch_tokens, batch.has_prefill) == (4, False)  # rows in an open step do not count
    commit(batch, step, 5)
    assert (batch.launch_tokens, batch.num_active, batch.has_prefill) == (0, 0, False)
    assert sl.insert_tasks(batch, [sl.PrefillTask(request, 4, 6, [0, 1])]).launch_tokens == 2
    commit(batch, batch.ticket(), 5)
    assert (batch.launch_tokens, batch.num_active) == (3, 1)
    batch.release(["a"])
    assert (batch.launch_tokens, batch.num_active) == (0, 0)


def test_i7_a_discarded_step_leaves_the_prefill() -> None:
    batch = make()
    sl.insert_tasks(batch, [sl.PrefillTask(sl.Request("a", [3, 4]), 0, 2, [0])])
    batch.ticket().discard()
    assert (batch.launch_tokens, batch.has_prefill) == (2, True)


def test_i7_known_finished_stays_known() -> None:
    """A step that was opened before the end was known does not raise the bound again."""
    batch = make()
    sl.insert_tasks(batch, [sl.PrefillTask(sl.Request("a", [3, 4]), 0, 2, [0])])
    first = batch.ticket()
    commit(batch, first, EOS)
    assert batch.launch_tokens == 3  # the host does not know yet
    second = batch.ticket()
    assert second.request_ids == ["a"]
    assert [o.finish_reason for o in batch.fetch(first).result()] == [sl.FinishReason.EOS]
    assert batch.launch_tokens == 0
    commit(batch, second, 5)
    assert batch.launch_tokens == 0
    assert batch.fetch(second).result() == []


def test_i7_handover_is_known_at_once() -> None:
    batch = make(role="prefill")
    sl.insert_tasks(batch, [sl.PrefillTask(sl.Request("a", [3, 4]), 0, 2, [0])])
    commit(batch, batch.ticket(), 5)
    assert (batch.launch_tokens, batch.ticket().request_ids) == (0, [])


def test_d3_first_step_of_a_handover() -> None:
    batch = make(role="decode")
    request = sl.Request("a", [3, 4], draft_token_ids=[5])
    receipt = sl.insert_tasks(batch, [sl.PrefillTask(request, 0, 2, [0])])
    assert (receipt.launch_tokens, receipt.num_active, receipt.has_prefill) == (1, 1, False)
    assert batch.stats["host_synchronisations"] == 0


@pytest.mark.parametrize(("role", "expected"), [("mixed", (1, 0)), ("prefill", (1, 0)), ("decode", (0, 1))])
def test_m8_rollback_follows_the_role(role: str, expected: tuple[int, int]) -> None:  # M8
    config = sl.BatchConfig(
        max_num_seqs=2, max_model_len=16, vocab_size=9, block_size=4, spec_method="mtp", num_draft_tokens=3,
        mtp_levels=2, role=role,
    )  # fmt: skip
    batch = sl.SlotBatch(sl.target_layout(config) | sl.mtp_layout(config), sl.load_backend("cpu"))
    request = sl.Request("a", [3, 4], draft_token_ids=[5, 6])
    sl.insert_tasks(batch, [sl.PrefillTask(request, 0, 2, [0])])
    assert (batch["mtp.recompute_token_num"][0], batch["mtp.mask_rollback"][0]) == expected
    batch.release(["a"])
    assert (batch["mtp.recompute_token_num"][0], batch["mtp.mask_rollback"][0]) == (0, 0)
