"""CASES.md, "Stop sequences": C51 to C61."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from frameworks import backend, host

import slotline as sl

Maker = Callable[..., sl.SlotBatch]

STOP = sl.FinishReason.STOP
EOS = 2


def build(framework: str, /, num_seqs: int = 3, num_drafts: int = 2, **values: Any) -> sl.SlotBatch:
    settings: dict[str, Any] = {
        "max_model_len": 32,
        "max_chunk_tokens": 16,
        "block_size": 4,
        "vocab_size": 100,
        "eos_token_ids": (EOS,),
        "max_stop_seqs": 2,
        "stop_seqs_max_len": 4,
        "spec_method": "ngram",
        "num_draft_tokens": num_drafts,
        **values,
    }
    config = sl.BatchConfig(max_num_seqs=num_seqs, **settings)
    return sl.SlotBatch(sl.target_layout(config), backend(framework))


@pytest.fixture
def make(framework: str) -> Maker:
    """Batches on each framework."""
    return functools.partial(build, framework)


def prefill(request_id: str, output: Any = (), prompt: Any = (50, 51), **sampling: Any) -> sl.PrefillTask:
    request = sl.Request(request_id, prompt, output, [output[-1]] if output else (), sl.SamplingParams(**sampling))
    return sl.PrefillTask(request, 0, len(request.history), range(8))


def get(batch: sl.SlotBatch, name: str, slot: int = 0) -> Any:
    return batch.host_array(name)[slot].tolist()


def step(batch: sl.SlotBatch, *tokens: int) -> dict[str, sl.Output]:
    """One step in which every row accepts ``tokens``; the rows have drafts for them."""
    size, width = batch.config.max_num_seqs, batch.config.num_drafts + 1
    ticket = batch.ticket()
    block = np.full((size, width), -1)
    block[:, : len(tokens)] = tokens
    sl.commit_step(batch, ticket, block, np.full(size, len(tokens), np.int32))
    sl.commit_drafts(batch, ticket, np.full((size, width - 1), 60))
    return {o.request_id: o for o in batch.fetch(ticket).result()}


def ended_alone(batch: sl.SlotBatch, group: list[int]) -> tuple[int, int, list[int]]:
    """What ``match_stop`` says of the batch's one row, before it accepts ``group``."""
    names = ("token_ids_all", "prompt_lens", "step_idx", "stop_seqs", "stop_seqs_len", "min_dec_len", "max_dec_len",
             "ignore_eos")  # fmt: skip
    accepted, count = np.array([group]), np.array([len(group)], np.int32)
    given = {name: batch[name] for name in names}
    found = sl.match_stop(accepted, count, **given, eos_token_ids=(EOS,))
    return host(found.accept_num).item(), host(found.finish_reason).item(), host(found.stop_match)[0].tolist()


def run(make: Maker, groups: list[list[int]], **sampling: Any) -> tuple[list[int], int, tuple[int, int] | None]:
    """All tokens, the reason and the match of one request that accepts these groups; ``match_stop`` must agree."""
    batch = make(1, 3)
    sl.insert_tasks(batch, [prefill("r", **sampling)])
    tokens: list[int] = []
    for group in groups:
        alone = ended_alone(batch, group)
        entry = step(batch, *group)["r"]
        assert alone == (len(entry.tokens), entry.finish_reason, list(entry.stop_match or (-1, -1)))
        tokens += entry.tokens
        if entry.finish_reason:
            return tokens, entry.finish_reason, entry.stop_match
    return tokens, 0, None


def test_c51_stops_belong_to_their_row(make: Maker) -> None:  # T
    batch = make()
    sl.insert_tasks(batch, [prefill("a"), prefill("b"), prefill("c", stop_seqs=[[7, 8]])])
    step(batch, 7)
    assert {r: o.finish_reason for r, o in step(batch, 8).items()} == {"a": 0, "b": 0, "c": STOP}
    batch.reset()
    sl.insert_tasks(batch, [prefill("a"), prefill("b", stop_seqs=[[7]]), prefill("c", stop_seqs=[[8]])])
    assert {r: o.finish_reason for r, o in step(batch, 7).items()} == {"a": 0, "b": STOP, "c": 0}
    batch.reset()
    sl.insert_tasks(batch, [prefill("a", stop_seqs=[[7, 8, -1, -1]])])
    assert get(batch, "stop_seqs_len") == [2, 0]
    assert get(batch, "stop_seqs") == [[7, 8, -1, -1], [-1] * 4]


def test_c52_the_block_is_written_whole(make: Maker) -> None:  # P2, P3, I5
    batch = make(4)
    tasks = [prefill(r) for r in "abc"]
    sl.insert_tasks(batch, [*tasks, prefill("d", stop_seqs=[[4, 5, 6], [7]])])
    sl.insert_tasks(batch, [sl.AbortTask("d"), prefill("e")])
    assert get(batch, "stop_seqs", 3) == [[-1] * 4] * 2
    assert get(batch, "stop_seqs_len", 3) == [0, 0]
    task = prefill("f", stop_seqs=[[9]])
    for _ in range(2):
        sl.insert_tasks(batch, [sl.AbortTask(batch.owner(3) or ""), task])
        assert get(batch, "stop_seqs", 3) == [[9, -1, -1, -1], [-1] * 4]
        assert get(batch, "stop_seqs_len", 3) == [1, 0]
        assert [seq.tolist() for seq in task.request.sampling.stop_lists] == [[9]]


def test_c53_limits_of_stop_sequences(make: Maker) -> None:  # P3, I1
    batch = make()
    before = batch.digest()
    for seqs, value, bound in (([[7], [8], [9]], 3, 2), ([[7, 7, 7, 7, 8]], 5, 4)):
        with pytest.raises(sl.TaskError, match=f"stop_seqs is {value}, bound {bound}") as caught:
            sl.insert_tasks(batch, [prefill("r", stop_seqs=seqs)])
        assert tuple(caught.value.errors[0]) == ("r", "stop_seqs", value, bound)
        assert batch.digest() == before
    sl.insert_tasks(batch, [prefill("r", stop_seqs=[[7, 8, 9, 10], [3, 4, 5, 6]])])
    assert get(batch, "stop_seqs") == [[7, 8, 9, 10], [3, 4, 5, 6]]
    for token in (3, 4, 5):
        assert step(batch, token)["r"].finish_reason == 0
    assert step(batch, 6)["r"].stop_match == (1, 0)


def test_c55_matches_across_and_within_steps(make: Maker) -> None:  # T
    assert run(make, [[7], [8, 9, 9]], stop_seqs=[[7, 8]]) == ([7, 8], STOP, (0, 0))
    assert run(make, [[50], [5, 7, 8]], stop_seqs=[[7, 8]]) == ([50, 5, 7, 8], STOP, (0, 2))
    assert run(make, [[7], [8]], stop_seqs=[[7, 8]]) == ([7, 8], STOP, (0, 0))
    batch = make(1, 2, max_model_len=8, block_size=1)
    sl.insert_tasks(batch, [prefill("r", stop_seqs=[[7, 8]])])
    step(batch, 5)
    others = {f.name: batch.host_array(f.name).copy() for f in batch.layout}
    step(batch, 5, 7, 8)
    assert get(batch, "accept_tokens") == [5, 7, 8]
    assert get(batch, "token_ids_all") == [50, 51, 5, 5, 7, 8, -1, -1]
    assert np.array_equal(others["stop_seqs"], batch.host_array("stop_seqs"))


def test_c56_what_a_cut_leaves(make: Maker) -> None:  # T, L4
    batch = make(1, 3)
    sl.insert_tasks(batch, [prefill("r", stop_seqs=[[7, 8]])])
    step(batch, 60)
    entry = step(batch, 5, 7, 8, 9)["r"]
    assert entry.tokens == [5, 7, 8]
    assert get(batch, "accept_tokens") == [5, 7, 8, -1]
    numbers = ("accept_num", "step_idx", "actual_draft_token_num", "stop_flags", "seq_lens_this_time")
    assert [get(batch, n) for n in numbers] == [3, 4, 0, True, 0]


def test_c57_least_length(make: Maker) -> None:  # T
    for seqs, end in (([[9]], 9), ([], EOS)):
        reason = STOP if seqs else sl.FinishReason.EOS
        batch = make(1)
        sl.insert_tasks(batch, [prefill("r", stop_seqs=seqs, min_dec_len=2)])
        assert step(batch, end)["r"].finish_reason == 0
        assert run(make, [[50], [end]], stop_seqs=seqs, min_dec_len=2)[:2] == ([50, end], reason)
        assert run(make, [[50], [51], [end]], stop_seqs=seqs, min_dec_len=2)[:2] == ([50, 51, end], reason)
        assert run(make, [[50], [end, 51]], stop_seqs=seqs, min_dec_len=2)[:2] == ([50, end], reason)
        assert run(make, [[50], [51, end, 52]], stop_seqs=seqs, min_dec_len=2)[:2] == ([50, 51, end], reason)
    assert run(make, [[7], [8]], stop_seqs=[[7, 8]], min_dec_len=2) == ([7, 8], STOP, (0, 0))
    assert run(make, [[50], [7, 8]], stop_seqs=[[7, 8]], min_dec_len=2) == ([50, 7, 8], STOP, (0, 1))


def test_c60_empty_sequences(make: Maker) -> None:  # P3, T
    batch = make()
    with pytest.raises(sl.TaskError, match="stop_seqs"):
        sl.insert_tasks(batch, [prefill("r", stop_seqs=[[]])])
    for token in (0, -1):
        batch = make(1)
        sl.insert_tasks(batch, [prefill("r")])
        assert [step(batch, token)["r"].finish_reason for _ in range(4)] == [0] * 4


def test_c61_only_generated_tokens_count(make: Maker) -> None:  # T, D4
    batch = make(1)
    sl.insert_tasks(batch, [prefill("r", prompt=[50, 1], stop_seqs=[[1, 3]])])
    assert step(batch, 3)["r"].finish_reason == 0
    batch.reset()
    sl.insert_tasks(batch, [prefill("r", output=[60, 7], stop_seqs=[[7, 8]])])
    assert step(batch, 8)["r"].stop_match == (0, 1)
    decode = make(1, role="decode")
    sampling = sl.SamplingParams(stop_seqs=[[7, 8]])
    request = sl.Request("r", [50, 51], draft_token_ids=[7], sampling=sampling)
    assert sl.insert_tasks(decode, [sl.PrefillTask(request, 0, 2, [0])]).ended == {}
    assert step(decode, 8)["r"].stop_match == (0, 0)
