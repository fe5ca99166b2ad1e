"""Each step function is usable without the others, on an engine's own buffers, with every framework."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from frameworks import backend, host, tensor

import slotline as sl

SLOTS, DRAFTS, LENGTH = 3, 2, 32


def config(**values: Any) -> sl.BatchConfig:
    return sl.BatchConfig(
        **{
            "max_num_seqs": SLOTS, "max_model_len": LENGTH, "max_chunk_tokens": 8, "block_size": 8, "vocab_size": 90,
            "eos_token_ids": (2,), "max_stop_seqs": 2, "stop_seqs_max_len": 3, "spec_method": "mtp",
            "num_draft_tokens": DRAFTS, **values,
        }
    )  # fmt: skip


def make(framework: str, **values: Any) -> sl.SlotBatch:
    made = config(**values)
    return sl.SlotBatch(sl.target_layout(made) | sl.mtp_layout(made), backend(framework))


def prefill(name: str, prompt: list[int], slot: int | None = None, **sampling: Any) -> sl.PrefillTask:
    return sl.PrefillTask(sl.Request(name, prompt, sampling=sl.SamplingParams(**sampling)), 0, len(prompt), [0], slot)


def rows_of(packed: Any) -> list[list[int]]:
    ids, cu = host(packed.input_ids).tolist(), host(packed.cu_seqlens_q).tolist()
    return [ids[a:b] for a, b in itertools.pairwise(cu)]


# -- functions that belong to no batch


def stop_arguments(framework: str, **changed: Any) -> dict[str, Any]:
    """Two rows: the first has generated 7 and stops at [7, 8]; the second has the same in its prompt."""
    arrays: dict[str, Any] = {
        "accept_tokens": [[8, 9, 9], [8, 5, 5]], "accept_num": [3, 2], "token_ids_all": [[1, 1, 7, -1], [1, 1, 7, -1]],
        "prompt_lens": [2, 3], "step_idx": [1, 0], "stop_seqs": [[[7, 8]], [[7, 8]]], "stop_seqs_len": [[2], [2]],
        "min_dec_len": [0, 0], "max_dec_len": [9, 9],
    }  # fmt: skip
    tensors: dict[str, Any] = {name: tensor(framework, value, "int64") for name, value in arrays.items()}
    tensors["ignore_eos"] = tensor(framework, [False, False])
    return {**tensors, **changed}


def test_t_match_stop_alone(framework: str) -> None:  # C55, C61
    backend(framework)
    found = sl.match_stop(**stop_arguments(framework), eos_token_ids=())
    assert host(found.accept_num).tolist() == [1, 2]
    assert host(found.finish_reason).tolist() == [sl.FinishReason.STOP, sl.FinishReason.NONE]
    assert host(found.stop_match).tolist() == [[0, 0], [-1, -1]]
    found = sl.match_stop(**stop_arguments(framework), eos_token_ids=[5, 8])
    assert host(found.finish_reason).tolist() == [sl.FinishReason.EOS] * 2
    assert host(found.accept_num).tolist() == [1, 1]


def test_t_match_stop_without_any_sequences(framework: str) -> None:  # C60
    for shape in ((2, 0, 4), (2, 3, 1)):
        empty = tensor(framework, np.full(shape, -1))
        lens = tensor(framework, np.zeros(shape[:2], np.int32))
        for ids in ([[-1, 0, -1], [0, 0, -1]], [[0, -1, 3], [3, 3, 3]]):
            arguments = stop_arguments(framework, stop_seqs=empty, stop_seqs_len=lens)
            arguments["accept_tokens"] = tensor(framework, ids, "int64")
            found = sl.match_stop(**arguments, eos_token_ids=())
            assert [host(x).tolist() for x in found] == [[3, 2], [0, 0], [[-1, -1], [-1, -1]]]


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("accept_num", [1, 2, 3], "accept_num"),
        ("stop_seqs", [[7, 8], [7, 8]], "stop_seqs"),
        ("step_idx", [1.0, 0.0], "step_idx"),
        ("ignore_eos", [0, 1], "ignore_eos"),
    ],
)
def test_match_stop_refuses_what_does_not_fit(framework: str, name: str, value: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        sl.match_stop(**stop_arguments(framework, **{name: tensor(framework, value)}), eos_token_ids=())


def test_functions_take_arrays_of_one_kind_and_keep_it(framework: str) -> None:  # M4
    lookahead, predicted = tensor(framework, [[5, -1], [-1, -1]]), tensor(framework, [[8, 9], [10, 11]])
    got = sl.mtp_next_tokens(lookahead, predicted)
    assert type(got) is type(lookahead)
    assert host(got).tolist() == [[5, 9], [10, 11]]
    drafts, target = tensor(framework, [[4, 5], [4, -1], [-1, 5]]), tensor(framework, [[4, 5, 6], [4, 5, 6], [4, 5, 6]])
    tokens, counts = sl.verify_greedy(drafts, target)
    assert type(tokens) is type(counts) is type(drafts)
    assert (host(tokens).tolist(), host(counts).tolist()) == ([[4, 5, 6], [4, 5, -1], [4, -1, -1]], [3, 2, 1])


def test_functions_refuse_other_shapes_and_kinds(framework: str) -> None:
    two, three = tensor(framework, [[1, 2]]), tensor(framework, [[1, 2, 3]])
    for call in (
        lambda: sl.mtp_next_tokens(two, three),
        lambda: sl.verify_greedy(two, two),
        lambda: sl.verify_greedy(three, two),
        lambda: sl.verify_greedy(two, tensor(framework, [[1.0, 2.0, 3.0]])),
        lambda: sl.mtp_next_tokens(two, tensor(framework, [[True, False]])),
    ):
        with pytest.raises(ValueError, match=r"needed|allowed"):
            call()
    with pytest.raises(TypeError, match="mtp_next_tokens"):
        sl.mtp_next_tokens(two, object())


def test_verify_greedy_fits_commit_step(framework: str) -> None:  # L4
    """Its result goes into a commit as it is; C56."""
    batch = make(framework)
    sl.insert_tasks(batch, [prefill("a", [30, 31], 1, stop_seqs=[[7, 8]])])
    step = sl.prepare_step(batch)
    sl.commit_step(batch, step, *sl.verify_greedy(tensor(framework, np.full((SLOTS, DRAFTS), -1)),
                                                  tensor(framework, np.full((SLOTS, DRAFTS + 1), 7))))  # fmt: skip
    sl.commit_drafts(batch, step, tensor(framework, [[5, 5], [8, 9], [5, 5]]))
    step = sl.prepare_step(batch)
    assert rows_of(step) == [[], [7, 8, 9], []]
    target = tensor(framework, np.array([[0, 0, 0], [8, 9, 40], [0, 0, 0]]))
    sl.commit_step(batch, step, *sl.verify_greedy(batch["draft_tokens"][:, 1:], target))
    (entry,) = batch.fetch(step).result()
    assert (entry.tokens, entry.finish_reason, entry.stop_match) == ([8], sl.FinishReason.STOP, (0, 0))
    assert host(batch["accept_tokens"])[1].tolist() == [8, -1, -1]


# -- an engine that keeps its own kernels


def test_l3_ticket_and_commit_without_prepare(framework: str) -> None:
    """The engine packs its rows itself; the ticket alone carries the results home, through moves."""
    batch = make(framework)
    sl.insert_tasks(batch, [prefill("a", [30, 31]), prefill("b", [40, 41, 42]), prefill("c", [50])])
    step = batch.ticket(["c", "a"])
    assert (step.slots, step.request_ids) == ([2, 0], ["c", "a"])
    lengths = host(batch["seq_lens_this_time"]).tolist()
    own_ids = [host(batch["input_ids"])[s, : lengths[s]].tolist() for s in step.slots]  # its own kernel
    assert own_ids == [[50], [30, 31]]
    batch.release(["b"])
    assert batch.condense() == [(2, 1)]
    assert step.current() == {batch.epoch_of("a"): 0, batch.epoch_of("c"): 1}
    tokens = tensor(framework, [[60, 0, 0], [61, 0, 0], [62, 0, 0]])
    sl.commit_step(batch, step, tokens, tensor(framework, [1, 1, 1], "int32"))
    assert host(batch["next_tokens"]).tolist() == [60, 62, -1]
    draft = sl.prepare_draft(batch, step, 1)
    assert rows_of(draft) == [[62], [31, 60], []]
    assert host(draft.batch_id_per_token)[:3].tolist() == [1, 0, 0]  # where the rows are now
    assert host(draft.logits_slots).tolist() == [2, 0, -1]  # where their drafts belong
    sl.commit_drafts(batch, step, tensor(framework, [[70, -1], [71, 71], [72, 73]]))
    assert host(batch["draft_tokens"]).tolist() == [[60, 70, -1], [62, 72, 73], [-1, -1, -1]]


def test_l6_values_that_ride_along(framework: str) -> None:
    """``extra``: the row's part of each tensor, as it was when the fetch was made."""
    batch = make(framework)
    sl.insert_tasks(batch, [prefill("a", [30, 31], 2), prefill("b", [40], 0)])
    step = batch.ticket(["a", "b"])
    tokens = np.array([[7, 0, 0], [8, 0, 0], [9, 0, 0]])
    sl.commit_step(batch, step, tokens, np.ones(SLOTS, np.int32))
    logprobs = tensor(framework, [[0.5, 0.25], [1.5, 1.25], [2.5, 2.25]], "float32")
    pending = batch.fetch(step, extra={"logprobs": logprobs})
    sl.async_set_value(logprobs, 0)
    batch.swap(0, 2)
    got = [(o.request_id, o.tokens, o.extra["logprobs"].tolist()) for o in pending.result()]
    assert got == [("a", [9], [2.5, 2.25]), ("b", [7], [0.5, 0.25])]
    with pytest.raises(ValueError, match="logprobs"):
        batch.fetch(step, extra={"logprobs": tensor(framework, [0.5], "float32")})


def test_own_drafts_without_mtp(framework: str) -> None:  # L5
    """ngram and suffix drafts come the same way; there is nothing to prepare."""
    made = config(spec_method="ngram")
    batch = sl.SlotBatch(sl.target_layout(made), backend(framework))
    sl.insert_tasks(batch, [prefill("a", [30, 31])])
    step = batch.ticket()
    sl.commit_step(batch, step, np.full((SLOTS, DRAFTS + 1), 7), np.ones(SLOTS, np.int32))
    with pytest.raises(sl.LayoutError, match="prepare_draft"):
        sl.prepare_draft(batch, step, 1)
    sl.commit_drafts(batch, step, np.full((SLOTS, DRAFTS), 8))
    assert rows_of(sl.prepare_step(batch))[0] == [7, 8, 8]


def test_prepare_draft_says_what_is_wrong(framework: str) -> None:  # L5
    batch = make(framework)
    sl.insert_tasks(batch, [prefill("a", [30, 31])])
    step = sl.prepare_step(batch)
    with pytest.raises(sl.TaskError, match="committed"):
        sl.prepare_draft(batch, step, 1)
    sl.commit_step(batch, step, np.full((SLOTS, DRAFTS + 1), 7), np.ones(SLOTS, np.int32))
    for level in (0, DRAFTS + 1, True, 1.0):
        with pytest.raises(ValueError, match="1 to 2"):
            sl.prepare_draft(batch, step, level)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="drafted"):
        sl.prepare_draft(batch, step, 2)
    with pytest.raises(ValueError, match="drafted"):
        sl.prepare_draft(batch, step, 2, np.zeros((SLOTS, 2), np.int64))
    with pytest.raises(TypeError, match="rows"):
        sl.prepare_draft(batch, step, 1, rows="a")
    with pytest.raises(sl.TaskError, match="another"):
        sl.prepare_draft(make(framework), step, 1)
    sl.prepare_step(batch)
    with pytest.raises(sl.TaskError, match="'a'"):
        sl.prepare_draft(batch, step, 1)


# -- tensors that the engine allocated, in shapes of its own (F3, F4)


@pytest.mark.parametrize("kind", ["column", "int32", "axis"])
def test_f4_steps_on_adopted_tensors(framework: str, kind: str) -> None:
    """[S, 1] numbers, int32 ids or slots elsewhere: the same steps give the same values as the standard layout."""
    made = config()
    layout = sl.target_layout(made) | sl.mtp_layout(made)
    if kind == "column":
        for name in ("seq_lens_this_time", "seq_lens_encoder", "step_idx", "accept_num", "stop_flags", "max_dec_len",
                     "next_tokens", "mtp.seq_lens_this_time"):  # fmt: skip
            layout = layout.replace(name, dims=("max_num_seqs", 1))
    elif kind == "int32":
        for name in ("token_ids_all", "input_ids", "draft_tokens", "accept_tokens", "mtp.input_ids"):
            layout = layout.replace(name, dtype="int32")
    else:
        field = layout["stop_seqs"]
        dims = (field.dims[1], "max_num_seqs", *field.dims[2:])
        layout = layout.replace("stop_seqs", dims=dims, slot_axis=1)
        layout = layout.replace("draft_tokens", dims=(layout["draft_tokens"].dims[1], "max_num_seqs"), slot_axis=1)
    own = {f.name: tensor(framework, np.zeros(layout.shape(f.name)), f.dtype) for f in layout if f.on_device}
    batches = sl.SlotBatch(layout, backend(framework), tensors=own), make(framework)
    for name, mine in own.items():
        assert batches[0][name] is mine
    outputs = [_live(framework, batch) for batch in batches]
    assert outputs[0] == outputs[1]
    for f in layout:
        one, two = (np.moveaxis(b.host_array(f.name), b.layout[f.name].slot_axis or 0, 0) for b in batches)
        assert one.reshape(two.shape).tolist() == two.tolist(), f.name


def _live(framework: str, batch: sl.SlotBatch) -> list[Any]:
    """Three steps with drafts, a swap and an end."""
    sl.insert_tasks(batch, [prefill("a", [30, 31]), prefill("b", [40, 41, 42], stop_seqs=[[9], [7, 8]])])
    seen: list[Any] = []
    for turn, counts in enumerate(([1, 1, 1], [2, 2, 1], [3, 1, 1])):
        step = sl.prepare_step(batch)
        seen.append(rows_of(step))
        tokens = tensor(framework, [[5, 6, 3], [7, 8, 4], [1, 1, 1]])
        sl.commit_step(batch, step, tokens, tensor(framework, counts, "int32"))
        drafted = tensor(framework, [[11, 12], [13, 14], [15, -1]])
        for level in (1, 2):
            draft = sl.prepare_draft(batch, step, level, drafted[:, : level - 1])
            seen += [rows_of(draft), host(draft.positions).tolist(), host(draft.hidden_rows).tolist()]
        sl.commit_drafts(batch, step, drafted)
        seen.append([tuple(o) for o in batch.fetch(step).result()])
        if turn == 0:
            batch.swap(0, 2)
    return seen
