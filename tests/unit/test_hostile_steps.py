"""What strangers broke in the step functions: replaced shapes, aliased arguments, wrong kinds, calls out of order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from frameworks import backend, host

import slotline as sl

S, SEVEN, ONE = 4, np.full((4, 3), 7), np.ones(4, int)
Change = Callable[[sl.BufferLayout], sl.BufferLayout]


def batch(framework: str = "numpy", change: Change | None = None, tensors: Any = None, **options: Any) -> sl.SlotBatch:
    given: dict[str, Any] = {
        "max_num_seqs": S, "max_model_len": 32, "max_chunk_tokens": 8, "block_size": 4, "num_blocks": 200,
        "vocab_size": 1000, "eos_token_ids": (2,), "spec_method": "mtp", "num_draft_tokens": 2, "mtp_levels": 2,
    }  # fmt: skip
    config = sl.BatchConfig(**given | options)
    layout = sl.target_layout(config) | sl.mtp_layout(config)
    return sl.SlotBatch(change(layout) if change else layout, backend(framework), tensors=tensors)


def prefill(name: str, count: int = 5, **sampling: Any) -> sl.PrefillTask:
    request = sl.Request(name, list(range(100, 100 + count)), sampling=sl.SamplingParams(**sampling))
    return sl.PrefillTask(request, 0, count, list(range(8)))


def committed(rows: sl.SlotBatch) -> sl.Step:
    sl.insert_tasks(rows, [prefill("a")])
    step = sl.prepare_step(rows)
    sl.commit_step(rows, step, SEVEN, ONE)
    return step


SHAPES = [
    ("input_ids", ("max_num_seqs", 16), 0),
    ("input_ids", ("max_num_seqs", 1, "max_chunk_tokens"), 0),
    ("input_ids", ("max_num_seqs", "max_chunk_tokens", 1), 0),
    ("input_ids", ("max_num_seqs", 2, 4), 0),
    ("input_ids", ("max_chunk_tokens", "max_num_seqs"), 1),
    ("token_ids_all", ("max_num_seqs", 40, 1), 0),
    ("draft_tokens", ("max_num_seqs", 1, 8, 1), 0),
    ("accept_tokens", ("max_num_seqs", 8, 1), 0),
    ("stop_match", ("max_num_seqs", 4, 1), 0),
    ("mtp.input_ids", ("max_num_seqs", 16, 1), 0),
    ("mtp.lookahead_tokens", (1, "max_num_seqs", 4), 1),
    ("stop_seqs", ("max_num_seqs", 1, 2, 1), 0),
    ("step_idx", (1, "max_num_seqs"), 1),
]


@pytest.mark.parametrize(("name", "dims", "axis"), SHAPES, ids=str)
def test_f3_steps_find_the_cells_of_a_replaced_field(
    name: str, dims: tuple[Any, ...], axis: int, framework: str
) -> None:  # F3, L1, L4, L5, T
    def run(change: Change | None) -> list[Any]:
        rows = batch(framework, change, max_stop_seqs=1, stop_seqs_max_len=2)
        sl.insert_tasks(rows, [prefill("a", stop_seqs=[[7, 8]]), prefill("b", 8)])
        found: list[Any] = []
        for token in (7, 8):
            step = sl.prepare_step(rows)
            found += [host(array).tolist() for array in step.arrays]
            sl.commit_step(rows, step, np.full((S, 3), token), ONE)
            for level, drafted in ((1, None), (2, np.full((S, 1), 9))):
                found += [host(array).tolist() for array in sl.prepare_draft(rows, step, level, drafted)]
            sl.commit_drafts(rows, step, np.full((S, 2), 9))
            found += [o[:5] for o in rows.fetch(step).result()]
        return found

    assert run(lambda layout: layout.replace(name, dims=dims, slot_axis=axis)) == run(None)


def test_f3_a_shape_that_steps_cannot_see_is_refused_before_anything_is_written() -> None:
    rows = batch(change=lambda layout: layout.replace("stop_seqs", dims=(40, "max_num_seqs"), slot_axis=1))
    sl.insert_tasks(rows, [prefill("a")])
    step = sl.prepare_step(rows)
    before = rows.digest()
    with pytest.raises(sl.LayoutError, match="'stop_seqs': shape"):
        sl.commit_step(rows, step, SEVEN, ONE)
    assert rows.digest() == before


def test_f3_a_twin_may_have_any_name() -> None:
    names = ("result", "tokens", "places", "lengths")
    twins = [sl.Field(name, ("max_num_seqs",), "int32", 0, twin_of="step_idx") for name in names]
    rows = batch(change=lambda layout: layout.extend(*twins))
    committed(rows)
    assert all(rows[name].tolist() == [1, 0, 0, 0] for name in names)


def test_f2_a_mirrored_twin_is_refused() -> None:
    with pytest.raises(sl.LayoutError, match="mirror would go stale"):
        sl.Field("my", ("max_num_seqs",), "int32", 0, residency="mirrored", twin_of="step_idx")


def test_l6_arguments_may_be_the_batch_s_own_buffers(framework: str) -> None:  # L6, B8
    rows = batch(framework, token_dtype="int32")
    sl.insert_tasks(rows, [prefill("a"), prefill("b")])
    step = sl.prepare_step(rows)
    sl.commit_step(rows, step, SEVEN, ONE)
    sl.commit_drafts(rows, step, np.array([[20, 21], [30, 31], [-1, -1], [-1, -1]]))
    step = sl.prepare_step(rows)
    sl.insert_tasks(rows, [sl.AbortTask("a")])
    rows.condense()
    sl.async_set_value(rows["accept_tokens"], [[20, 21, 22], [30, 31, 32], [-1] * 3, [-1] * 3])
    sl.async_set_value(rows["accept_num"], [3, 2, 0, 0])
    sl.commit_step(rows, step, rows["accept_tokens"], rows["accept_num"])
    outputs = [(o.request_id, o.tokens, o.stale) for o in rows.fetch(step).result()]
    assert outputs == [("a", [20, 21, 22], True), ("b", [30, 31], False)]


def test_l3_a_discarded_step_leaves_the_one_before_the_newest() -> None:
    rows = batch()
    step = committed(rows)
    sl.prepare_step(rows).discard()
    assert host(sl.prepare_draft(rows, step, 1).num_logits).tolist() == [1]
    sl.commit_drafts(rows, step, np.full((S, 2), 9))
    assert rows["draft_tokens"][0].tolist() == [7, 9, 9]


def test_l6_an_older_fetch_taken_later_forgets_nothing() -> None:  # D5
    rows = batch(role="prefill")
    step = committed(rows)
    first = rows.fetch(step)
    sl.commit_drafts(rows, step, np.full((S, 2), 9))
    second = rows.fetch(step)
    second.result()[0].tokens.append(55)  # the lists are the caller's own
    first.result()
    assert second.result()[0].tokens == [7]
    assert sl.export_handover(rows, "a").draft_token_ids.tolist() == [7, 9, 9]


def test_t_placeholders_below_0_match_nothing(framework: str) -> None:
    found = sl.match_stop(
        np.array([[8]]), np.array([1]), token_ids_all=np.array([[-2, 9, -1, -1]]), prompt_lens=np.array([1]),
        step_idx=np.array([1]), stop_seqs=np.array([[[7, 8, -1]]]), stop_seqs_len=np.array([[2]]),
        min_dec_len=np.array([0]), max_dec_len=np.array([9]), ignore_eos=np.array([False]), eos_token_ids=[2],
    )  # fmt: skip
    assert found.finish_reason.tolist() == [0]


@pytest.mark.parametrize("given", [20.5, np.float32(16), True, float("nan"), "x", [32]])
def test_l1_num_tokens_is_a_whole_number(given: Any) -> None:
    rows = batch()
    sl.insert_tasks(rows, [prefill("a")])
    with pytest.raises(TypeError, match="num_tokens is"):
        sl.prepare_step(rows, num_tokens=given)
    assert rows.ticket().request_ids == ["a"]  # nothing was opened


@pytest.mark.parametrize("given", [4, 0, -1, 2**31])
def test_l1_num_tokens_has_bounds(given: int) -> None:
    rows = batch()
    sl.insert_tasks(rows, [prefill("a")])
    with pytest.raises(sl.TaskError, match="num_tokens"):
        sl.prepare_step(rows, num_tokens=given)
    with pytest.raises(sl.TaskError, match="num_tokens"):
        sl.prepare_step(batch(), num_tokens=0)  # T' is at least 1, also without rows


@pytest.mark.parametrize("bad", [2**32 + 7, 1000, 2**40])
def test_l4_l5_ids_of_host_arrays_are_checked(bad: int) -> None:
    rows = batch()
    sl.insert_tasks(rows, [prefill("a")])
    step = sl.prepare_step(rows)
    before = rows.digest()
    with pytest.raises(ValueError, match=rf"accept_tokens\[0, 0\] is {bad}, allowed: 0 to vocab_size - 1 = 999"):
        sl.commit_step(rows, step, np.full((S, 3), bad), ONE)
    assert rows.digest() == before
    noise = np.full((S, 3), bad)
    noise[0, 0] = 7  # what is not accepted, and rows outside the step, may hold anything
    sl.commit_step(rows, step, noise, ONE)
    for call in (
        lambda: sl.commit_drafts(rows, step, np.full((S, 2), bad)),
        lambda: sl.prepare_draft(rows, step, 2, np.full((S, 1), bad)),
    ):
        with pytest.raises(ValueError, match=f"is {bad}, allowed"):
            call()
    sl.commit_drafts(rows, step, np.array([[9, -1], *[[bad, bad]] * 3]))
    assert rows["draft_tokens"][0].tolist() == [7, 9, -1]


def test_m4_results_hold_what_comes() -> None:
    assert sl.mtp_next_tokens(np.array([[-1]], np.int8), np.array([[300]])).tolist() == [[300]]
    assert sl.mtp_next_tokens(np.array([[-1]], np.int32), np.array([[3]], np.int32)).dtype == np.int32
    verified = sl.verify_greedy(np.array([[1]], np.uint8), np.array([[2, 3]], np.uint8))
    assert verified.accept_tokens.tolist() == [[2, -1]]


def test_f4_adopted_tensors_lie_apart(framework: str, tensor: Callable[..., Any]) -> None:
    memory = tensor(np.zeros(64, np.int32))
    for one, other in ((memory[0:4], memory[1:5]), (memory[0:4], memory[0:8:2])):
        with pytest.raises(sl.LayoutError, match="share memory"):
            batch(framework, tensors={"seq_lens_this_time": one, "step_idx": other})
    batch(framework, tensors={"seq_lens_this_time": memory[0:8:2], "step_idx": memory[1:9:2]})
    if framework == "numpy":
        itself = np.lib.stride_tricks.as_strided(np.zeros(9, np.int32), (4, 2), (8, 8))
        with pytest.raises(sl.LayoutError, match="several cells in one place"):
            batch(tensors={"stop_match": itself})


_STOP: Any = (
    "token_ids_all", "prompt_lens", "step_idx", "stop_seqs", "stop_seqs_len", "min_dec_len", "max_dec_len", "ignore_eos"
)  # fmt: skip
WRONG: Any = [1, "q"]
STEPS: list[Callable[[sl.SlotBatch, Any], Any]] = [
    lambda rows, step: sl.commit_step(rows, step, SEVEN, ONE),
    lambda rows, step: sl.commit_drafts(rows, step, SEVEN[:, :2]),
    lambda rows, step: sl.prepare_draft(rows, step, 1),
    lambda rows, step: rows.fetch(step),
]


@pytest.mark.parametrize("call", STEPS)
@pytest.mark.parametrize("step", [None, 5, "x"])
def test_what_is_no_step_is_refused_by_name(call: Callable[..., Any], step: Any) -> None:
    with pytest.raises(TypeError, match="needed: what prepare_step"):
        call(batch(), step)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda rows, step: sl.prepare_step(rows, skip="a"), "skip is 'a'"),
        (lambda rows, step: sl.prepare_step(rows, rows=WRONG[0]), "rows is"),
        (lambda rows, step: rows.ticket(5), "rows is"),
        (lambda rows, step: rows.release(None), "request_ids is None"),
        (lambda rows, step: sl.prepare_draft(rows, step, 1, rows=WRONG), "rows holds 1"),
        (lambda rows, step: sl.prepare_draft(rows, step, 1, rows=[WRONG]), "rows holds"),
        (lambda rows, step: rows.fetch(step, extra=5), "extra is int"),
        (lambda rows, step: rows.fetch(step, extra={"x": [1]}), "extra 'x'"),
        (lambda rows, step: sl.commit_drafts(rows, step, None), "draft_tokens: NoneType"),
        (lambda rows, step: sl.match_stop(*[None] * 2, **dict.fromkeys(_STOP), eos_token_ids=WRONG), "eos_token_ids"),
    ],
)
def test_an_argument_of_a_wrong_kind_is_named(call: Callable[..., Any], words: str) -> None:
    rows = batch()
    step = committed(rows)
    before = rows.digest()
    with pytest.raises(TypeError, match=words):
        call(rows, step)
    assert rows.digest() == before


def test_l5_a_doubled_request_is_refused() -> None:
    rows = batch()
    step = committed(rows)
    with pytest.raises(sl.TaskError, match="each row once"):
        sl.prepare_draft(rows, step, 1, rows=["a", "a"])
