"""CASES.md, "Inserting tasks": C12 to C24."""

from __future__ import annotations

import functools
from collections.abc import Callable
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from frameworks import backend

import slotline as sl

Maker = Callable[..., sl.SlotBatch]

Task = sl.PrefillTask | sl.DecodeTask | sl.PreemptTask | sl.AbortTask

EOS = 2


def build(framework: str, /, **values: Any) -> sl.SlotBatch:
    config = sl.BatchConfig(
        **{
            "max_num_seqs": 4,
            "max_model_len": 16,
            "max_chunk_tokens": 16,
            "block_size": 4,
            "num_blocks": 64,
            "vocab_size": 100,
            "eos_token_ids": (EOS,),
            **values,
        }
    )
    layout = sl.target_layout(config)
    if config.spec_method == "mtp":
        layout = layout | sl.mtp_layout(config)
    return sl.SlotBatch(layout, backend(framework))


@pytest.fixture
def make(framework: str) -> Maker:
    """Batches on each framework."""
    return functools.partial(build, framework)


def get(batch: sl.SlotBatch, name: str, slot: int) -> Any:
    return batch.host_array(name)[slot].tolist()


def prefill(request: sl.Request, start: int = 0, end: int | None = None, **kw: Any) -> sl.PrefillTask:
    return sl.PrefillTask(request, start, len(request.history) if end is None else end, [0, 1, 2, 3], **kw)


def step(batch: sl.SlotBatch, token: int) -> list[sl.Output]:
    """One step in which every row of it accepts ``token``."""
    ticket = batch.ticket()
    config = batch.config
    tokens = np.full((config.max_num_seqs, config.num_drafts + 1), token)
    sl.commit_step(batch, ticket, tokens, np.ones(config.max_num_seqs, np.int32))
    return batch.fetch(ticket).result()


def test_c12_resumed_request(make: Maker) -> None:  # I: the table
    batch = make()
    sl.insert_tasks(batch, [prefill(sl.Request("r", [1, 2, 3, 4, 5], [6, 7, 8]), slot=2)])
    assert get(batch, "input_ids", 2)[:8] == [1, 2, 3, 4, 5, 6, 7, 8]
    numbers = ("seq_lens_encoder", "seq_lens_decoder", "prompt_lens", "step_idx", "stop_flags")
    assert [get(batch, name, 2) for name in numbers] == [8, 0, 5, 3, False]


def test_c13_resumed_in_chunks(make: Maker) -> None:  # I, L4
    batch = make(max_chunk_tokens=4)
    request = sl.Request("r", [1, 2, 3, 4, 5], [6, 7, 8])
    sl.insert_tasks(batch, [prefill(request, 0, 4)])
    history = get(batch, "token_ids_all", 0)
    assert history == [1, 2, 3, 4, 5, 6, 7, 8] + [-1] * 8
    step(batch, 50)
    sl.insert_tasks(batch, [prefill(request, 4, 8)])
    assert get(batch, "token_ids_all", 0) == history
    assert get(batch, "step_idx", 0) == 3
    step(batch, 50)
    assert get(batch, "step_idx", 0) == 4
    assert get(batch, "token_ids_all", 0)[:9] == [1, 2, 3, 4, 5, 6, 7, 8, 50]


def test_c15_order_of_tasks(make: Maker) -> None:  # I3
    def running(*ids: str) -> sl.SlotBatch:
        batch = make()
        sl.insert_tasks(batch, [prefill(sl.Request(i, [5, 6, 7])) for i in ids])
        step(batch, 9)
        return batch

    new = prefill(sl.Request("new", [1, 2]))
    two: list[Task] = [new, sl.PreemptTask("s1")]
    for pair in permutations(two):
        assert sl.insert_tasks(running("s1"), pair).has_prefill is True
    assert sl.insert_tasks(running("s1"), [sl.PreemptTask("s1")]).has_prefill is False
    every: list[Task] = [sl.DecodeTask("a", [8, 9]), new,
             sl.PreemptTask("b"), sl.AbortTask("c")]  # fmt: skip
    seen = set()
    for tasks in permutations(every):
        batch = running("a", "b", "c")
        receipt = sl.insert_tasks(batch, tasks)
        seen.add((batch.digest(), receipt.has_prefill, receipt.launch_tokens, tuple(sorted(receipt.slots.items()))))
    assert len(seen) == 1


def test_c18_no_free_slot(make: Maker) -> None:  # I1
    batch = make()
    sl.insert_tasks(batch, [prefill(sl.Request(f"r{i}", [1, 2, 3])) for i in range(4)])
    before = batch.digest()
    with pytest.raises(sl.TaskError, match="r4"):
        sl.insert_tasks(batch, [prefill(sl.Request("r4", [1]))])
    with pytest.raises(sl.TaskError) as caught:
        sl.insert_tasks(batch, [sl.AbortTask("r0"), *(prefill(sl.Request(r, [1])) for r in ("r4", "r5"))])
    assert [(e.request_id, e.field, e.bound) for e in caught.value.errors] == [("r5", "slot", 1)]
    assert batch.digest() == before
    assert "r0" in batch


def test_c19_roles(make: Maker) -> None:  # D1
    request = sl.Request("r", [11, 12, 13, 14, 15, 16], draft_token_ids=[40])
    lengths = ("seq_lens_encoder", "seq_lens_decoder", "seq_lens_this_time", "step_idx", "stop_flags")
    decode = make(role="decode")
    sl.insert_tasks(decode, [prefill(request)])
    assert [get(decode, n, 0) for n in lengths] == [0, 6, 1, 1, False]
    assert get(decode, "input_ids", 0)[0] == 40
    mixed = make()
    sl.insert_tasks(mixed, [prefill(request)])
    assert [get(mixed, n, 0) for n in lengths] == [6, 0, 6, 0, False]
    only = make(role="prefill")
    sl.insert_tasks(only, [prefill(request)])
    outputs = step(only, 40)
    assert [(o.tokens, o.finish_reason) for o in outputs] == [([40], sl.FinishReason.HANDOVER)]
    assert only.launch_tokens == 0
    assert only.ticket().request_ids == []


@pytest.mark.parametrize(
    ("sampling", "token", "reason"),
    [
        (sl.SamplingParams(), EOS, sl.FinishReason.EOS),
        (sl.SamplingParams(max_dec_len=1), 40, sl.FinishReason.LENGTH),
        (sl.SamplingParams(stop_seqs=[[40]]), 40, sl.FinishReason.STOP),
    ],
)
def test_c20_first_token_ends(make: Maker, sampling: sl.SamplingParams, token: int, reason: int) -> None:  # D4
    batch = make(role="decode")
    request = sl.Request("r", [11, 12, 13], draft_token_ids=[token], sampling=sampling)
    receipt = sl.insert_tasks(batch, [prefill(request)])
    match = (0, 0) if reason == sl.FinishReason.STOP else None
    assert {k: tuple(v) for k, v in receipt.ended.items()} == {"r": (token, reason, match)}
    names = ("stop_flags", "seq_lens_this_time", "seq_lens_decoder", "finish_reason", "next_tokens", "accept_num")
    assert [get(batch, n, 0) for n in names] == [True, 0, 0, reason, -1, 0]
    assert get(batch, "stop_match", 0) == ([0, 0] if match else [-1, -1])
    assert (receipt.launch_tokens, batch.ticket().request_ids) == (0, [])  # emitted once: in the receipt


def test_c21_chunks_of_a_prompt(make: Maker) -> None:  # L4
    batch = make(max_chunk_tokens=4)
    request = sl.Request("r", range(10, 20), sampling=sl.SamplingParams(max_dec_len=1))
    seen = []
    for start, end in ((0, 4), (4, 8), (8, 10)):
        sl.insert_tasks(batch, [prefill(request, start, end)])
        step(batch, 33)
        seen.append([get(batch, n, 0) for n in ("accept_num", "step_idx", "stop_flags")])
    assert seen == [[0, 0, False], [0, 0, False], [1, 1, True]]


def test_c23_decode_task_writes_blocks_only(make: Maker) -> None:  # I4
    batch = make(max_num_seqs=200, num_blocks=None)
    sampling = sl.SamplingParams(temperature=0.5, top_p=0.9)
    ids = [f"r{i:03}" for i in range(200)]
    sl.insert_tasks(batch, [prefill(sl.Request(r, [1, 2, 3], sampling=sampling)) for r in ids])
    before = {n: batch.host_array(n).copy() for n in batch.layout.names}
    sl.insert_tasks(batch, [sl.DecodeTask("r003", [7, 8])])
    changed = {n for n in before if not np.array_equal(before[n], batch.host_array(n))}
    assert changed == {"block_tables", "encoder_block_lens"}
    assert get(batch, "block_tables", 3) == [7, 8, -1, -1]
    others = np.delete(np.arange(200), 3)
    assert np.array_equal(before["block_tables"][others], batch.host_array("block_tables")[others])
    batch.stats.clear()
    sl.insert_tasks(batch, [sl.DecodeTask(r, [20, 21, 22]) for r in ids])
    counts = {name: batch.stats[name] for name in ("transfers", "kernels", "host_synchronisations", "device_to_host")}
    assert counts == {"transfers": 1, "kernels": 1, "host_synchronisations": 0, "device_to_host": 0}


def test_c24_restarted_request(make: Maker) -> None:  # P2, I3
    batch = make()
    lists = batch.side_table("lists", lambda request: [])
    request = sl.Request("r", [1, 2, 3])
    sl.insert_tasks(batch, [prefill(request)])
    for token in range(50, 55):
        step(batch, token)
        lists[0].append(token)
    assert get(batch, "step_idx", 0) == 5
    sl.insert_tasks(batch, [sl.AbortTask("r"), prefill(request)])
    assert [get(batch, n, 0) for n in ("step_idx", "accept_num")] == [0, 0]
    assert lists[0] == []
    assert get(batch, "token_ids_all", 0) == [1, 2, 3] + [-1] * 13
