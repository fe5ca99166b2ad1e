"""What tasks and requests take, and what they refuse when they are made (rules I5, W2's spirit for ids)."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

import slotline as sl


@pytest.mark.parametrize(
    "ids",
    [[1, 2, 3], (1, 2, 3), range(1, 4), np.array([1, 2, 3], np.int32), np.array([3, 2, 1])[::-1], iter([1, 2, 3])],
)
def test_ids_are_copied_into_one_history(ids: Any) -> None:
    request = sl.Request("a", ids, np.array([4]))
    assert request.history.tolist() == [1, 2, 3, 4]
    assert request.prompt_token_ids.tolist() == [1, 2, 3]
    assert request.output_token_ids.tolist() == [4]
    assert not request.history.flags.writeable


def test_i5_a_caller_may_reuse_its_arrays() -> None:
    ids = np.array([1, 2, 3])
    request = sl.Request("a", ids)
    task = sl.PrefillTask(request, 0, 3, ids)
    ids[:] = 9
    assert request.history.tolist() == task.block_table.tolist() == [1, 2, 3]
    assert ids.flags.writeable


@pytest.mark.parametrize(
    ("ids", "error"),
    [
        ([1.5], TypeError),
        (["1"], TypeError),
        ("123", TypeError),
        (7, TypeError),
        (None, TypeError),
        (np.array([1.0]), TypeError),
        (np.array([[1]]), TypeError),
        (np.array([True]), TypeError),
        ([2**63], ValueError),
        (np.array([2**63], np.uint64), ValueError),
    ],
)
def test_what_is_no_list_of_ids_is_refused_at_once(ids: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="prompt_token_ids"):
        sl.Request("a", ids)


def test_empty_lists_are_empty() -> None:
    several: list[Any] = [[], (), np.array([]), np.array([], np.int32)]
    for ids in several:
        assert sl.Request("a", ids).history.tolist() == []


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: sl.Request(7, [1]), "request_id is 7"),  # type: ignore[arg-type]
        (lambda: sl.Request("a", [1], sampling={"top_k": 1}), "sampling is"),  # type: ignore[arg-type]
        (lambda: sl.PrefillTask("a", 0, 1, [1]), "request is 'a'"),  # type: ignore[arg-type]
        (lambda: sl.PrefillTask(sl.Request("a", [1]), 0.0, 1, [1]), "start is 0.0"),  # type: ignore[arg-type]
        (lambda: sl.PrefillTask(sl.Request("a", [1]), 0, 1, [1], slot="1"), "slot is '1'"),  # type: ignore[arg-type]
        (lambda: sl.DecodeTask(3), "request_id is 3"),  # type: ignore[arg-type]
        (lambda: sl.AbortTask(None), "request_id is None"),  # type: ignore[arg-type]
        (lambda: sl.SamplingParams(temperature="hot"), "temperature is 'hot'"),  # type: ignore[arg-type]
        (lambda: sl.SamplingParams(top_k=2**70), "top_k is"),
        (lambda: sl.SamplingParams(ignore_eos="no"), "ignore_eos is 'no'"),  # type: ignore[arg-type]
        (lambda: sl.SamplingParams(enable_thinking=None), "enable_thinking is None"),  # type: ignore[arg-type]
        (lambda: sl.SamplingParams(top_k=None), "top_k is None"),  # type: ignore[arg-type]
    ],
)
def test_a_value_of_the_wrong_kind_is_named(make: Any, says: str) -> None:
    with pytest.raises(TypeError, match=says):
        make()


def test_everything_can_be_sent_to_another_process() -> None:
    params = sl.SamplingParams(temperature=0.5, stop_seqs=[[1, 2]], bad_tokens=[3])
    request = sl.Request("a", [1, 2], [3], [4], params, hidden_state=[1.0], extra={"x": 1})
    again = pickle.loads(pickle.dumps(sl.PrefillTask(request, 0, 3, [5], slot=1))).request
    assert again.history.tolist() == [1, 2, 3]
    assert again.sampling.packed == params.packed
    assert dict(again.extra) == {"x": 1}
    for error in (
        sl.TaskError([sl.Fault("a", "end", 1, 2)], ["hint"]),
        sl.DeviceError("cuda", "memcpy", 2, "name", "detail"),
    ):
        assert str(pickle.loads(pickle.dumps(error))) == str(error)


def test_reprs_are_short_and_say_which_request() -> None:
    request = sl.Request("r1", range(1000), [1])
    for thing in (request, sl.PrefillTask(request, 0, 3, [1]), sl.DecodeTask("r1"), sl.AbortTask("r1")):
        assert "'r1'" in repr(thing)
        assert len(repr(thing)) < 80


def test_a_long_list_of_faults_is_cut_in_the_text_and_whole_in_errors() -> None:
    error = sl.TaskError([sl.Fault(f"r{i}", "end", list(range(1000)), 2) for i in range(30)])
    assert len(error.errors) == 30
    assert "and 20 more" in str(error)
    assert len(str(error)) < 2000


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"max_num_seqs": 0}, "max_num_seqs is 0, allowed: 1 to"),
        ({"max_num_seqs": 1.5}, "allowed: a whole number"),
        ({"max_num_seqs": True}, "max_num_seqs is True"),
        ({"pad_token_id": 100}, "pad_token_id is 100"),
        ({"eos_token_ids": (100,)}, "eos_token_ids is 100"),
        ({"token_dtype": "int46"}, "did you mean 'int64'"),
        ({"spec_method": "mpt"}, "did you mean 'mtp'"),
        ({"role": "both"}, "role is 'both'"),
        ({"spec_method": "ngram", "num_draft_tokens": 0}, "needs at least 1"),
        ({"spec_method": "mtp", "num_draft_tokens": 2, "mtp_levels": 3}, "mtp_levels is 3"),
        ({"spec_method": "mtp", "num_draft_tokens": 4, "mtp_levels": 3, "max_chunk_tokens": 2}, "mtp_levels is 3"),
        ({"hybrid": "ngram"}, "it needs 'mtp'"),
        ({"num_blocks": 4, "null_block": 4}, "null_block is 4"),
    ],
)
def test_a_config_that_cannot_be_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(sl.ConfigError, match=says):
        sl.BatchConfig(**{"max_num_seqs": 4, "max_model_len": 8, "vocab_size": 100, **changes})


def test_stats_know_their_counters() -> None:
    stats = sl.Stats()
    stats.add("bytes", "insert", 5)
    stats.add("bytes", "move", 2)
    assert (stats["bytes"], stats.by_operation("bytes")) == (7, {"insert": 5, "move": 2})
    with pytest.raises(KeyError, match="no counter"):
        stats["byte"]
    with pytest.raises(KeyError):
        stats.add("byte", "insert")
    stats.clear()
    assert stats["bytes"] == 0
