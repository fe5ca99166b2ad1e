"""What a first stranger broke, each as a test for its whole kind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import slotline as sl

BASE: dict[str, Any] = {
    "max_num_seqs": 4,
    "max_model_len": 32,
    "max_chunk_tokens": 8,
    "block_size": 4,
    "num_blocks": 64,
    "vocab_size": 1000,
    "spec_method": "mtp",
    "num_draft_tokens": 2,
}


def make(change: Callable[[sl.BufferLayout], sl.BufferLayout] = lambda table: table, **config: Any) -> sl.SlotBatch:
    settings = sl.BatchConfig(**{**BASE, **config})
    layout = change(sl.target_layout(settings) | sl.mtp_layout(settings))
    return sl.SlotBatch(layout, sl.load_backend("cpu"))


def take(batch: sl.SlotBatch, request: sl.Request | None = None, end: int | None = None) -> sl.InsertReceipt:
    request = request or sl.Request("a", [1, 2, 3])
    return sl.insert_tasks(batch, [sl.PrefillTask(request, 0, end or len(request.history), [1, 2])])


def commit(batch: sl.SlotBatch, step: sl.Ticket, *tokens: int) -> None:
    width = batch.config.num_drafts + 1
    row = [*tokens, *[-1] * (width - len(tokens))]
    sl.commit_step(batch, step, [row] * batch.config.max_num_seqs, [len(tokens)] * batch.config.max_num_seqs)


def test_l3_a_step_belongs_to_its_batch() -> None:
    one, other = make(), make()
    take(one)
    take(other, sl.Request("a", [7, 8, 9]))
    step, before = one.ticket(), other.digest()
    for act in (
        lambda: commit(other, step, 5),
        lambda: sl.commit_drafts(other, step, np.full((4, 2), 5)),
        lambda: other.fetch(step),
    ):
        with pytest.raises(sl.TaskError, match="another"):
            act()
    assert other.digest() == before
    commit(one, step, 5)
    with pytest.raises(sl.TaskError, match="another"):
        other.fetch(step)


@pytest.mark.parametrize("block", [2**31, 2**31 + 5, 2**40, -1])
def test_i2_a_block_id_that_no_table_can_hold_is_refused(block: int) -> None:
    batch = make(num_blocks=None)
    with pytest.raises(sl.TaskError) as caught:
        sl.insert_tasks(batch, [sl.PrefillTask(sl.Request("a", [1]), 0, 1, [block])])
    assert [(f.field, f.value) for f in caught.value.errors] == [("block_table", block)]
    take(batch)
    with pytest.raises(sl.TaskError):
        sl.insert_tasks(batch, [sl.DecodeTask("a", new_blocks=[block])])


@pytest.mark.parametrize(
    ("name", "dims"),
    [
        ("stop_seqs", ("max_num_seqs", "max_stop_seqs", "stop_seqs_max_len+2")),
        ("stop_seqs", ("max_num_seqs", "max_stop_seqs+1", "stop_seqs_max_len")),
        ("stop_flags", ("max_num_seqs", 2)),
        ("step_idx", ("max_num_seqs", 2)),
        ("seq_lens_this_time", ("max_num_seqs", 4)),
        ("token_ids_all", ("max_num_seqs", 7)),
    ],
)
def test_f3_a_row_that_the_steps_could_not_read_is_refused(name: str, dims: tuple[Any, ...]) -> None:
    with pytest.raises(sl.LayoutError, match=name):
        make(lambda table: table.replace(name, dims=dims))


@pytest.mark.parametrize(
    ("name", "dims"),
    [
        ("stop_seqs", ("max_num_seqs", "stop_seqs_cells")),
        ("step_idx", ("max_num_seqs", 1)),
        ("draft_tokens", ("max_num_seqs", 1, "num_drafts+4")),
        ("stop_seqs_len", ("max_num_seqs", "max_stop_seqs+2")),
        ("token_ids_all", ("max_num_seqs", "max_model_len+5")),
    ],
)
def test_f3_a_row_of_another_form_does_the_same(name: str, dims: tuple[Any, ...]) -> None:
    def play(batch: sl.SlotBatch) -> list[Any]:
        take(batch, sl.Request("a", [1, 2, 3], sampling=sl.SamplingParams(stop_seqs=[[1, 2, 3], [7, 8]])))
        step = batch.ticket()
        commit(batch, step, 7)
        sl.commit_drafts(batch, step, np.full((4, 2), 8))
        step = sl.prepare_step(batch)
        packed = [a.tolist() for a in step.arrays]
        commit(batch, step, 8, 9)
        return [packed, batch.fetch(step).result()]

    changed = play(make(lambda table: table.replace(name, dims=dims)))
    assert changed == play(make())
    assert changed[1][0].stop_match == (1, 0)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("block_tables", "int8"),
        ("input_ids", "int16"),
        ("infer_seed", "int32"),
        ("temperature", "int32"),
        ("temperature", "float16"),
        ("prompt_lens", "bool"),
    ],
)
def test_f3_a_dtype_in_which_values_would_wrap_is_refused(name: str, dtype: str) -> None:
    with pytest.raises(sl.LayoutError, match=name):
        make(lambda table: table.replace(name, dtype=dtype))


@pytest.mark.parametrize("kind", ["prefill", "chunk"])
def test_i1_a_bad_extra_is_a_fault_whatever_task_brings_it(kind: str) -> None:
    field = sl.Field("mine", ("max_num_seqs",), "int8", 0, on={kind: sl.extra("w")})
    batch = make(lambda table: table.extend(field))
    bad = sl.Request("a", [1, 2, 3, 4], extra={"w": 1000})
    if kind == "chunk":
        take(batch, bad, end=3)
        commit(batch, batch.ticket(), 5)
        task = sl.PrefillTask(bad, 3, 4, [1, 2])
    else:
        task = sl.PrefillTask(bad, 0, 3, [1, 2])
    before = batch.digest()
    assert [f.field for f in sl.validate(batch, [task])] == ["extra"]
    with pytest.raises(sl.TaskError):
        sl.insert_tasks(batch, [task])
    assert len(sl.insert_tasks(batch, [task], on_invalid="skip").refused) == 1
    assert batch.digest() == before


def test_f5_a_side_table_whose_factory_fails_is_not_there() -> None:
    batch = make()
    take(batch)

    def fails(_request: sl.Request) -> None:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        batch.side_table("mine", fails)
    with pytest.raises(TypeError, match="factory is 5"):
        batch.side_table("mine", 5)  # type: ignore[arg-type]
    assert batch.side_table("mine", lambda r: r.request_id)[0] == "a"


def test_f5_callbacks_run_when_everything_is_in_place() -> None:
    batch = make()
    batch.on_insert(lambda _r, _s, _e: batch.reset())
    seen: list[tuple[str, int, int]] = []
    batch.on_insert(lambda r, s, e: seen.append((r, s, e)))
    tasks = [sl.PrefillTask(sl.Request(r, [1]), 0, 1, [1]) for r in "ab"]
    sl.insert_tasks(batch, tasks)
    assert seen == [("a", 0, 1), ("b", 1, 2)]
    assert batch.occupied == []


def test_m7_host_ids_are_filled_whatever_their_shape() -> None:
    batch = make(lambda table: table.replace("input_ids_cpu", dims=(4, "max_num_seqs", 8), slot_axis=1), hybrid="ngram")
    take(batch)
    step = batch.ticket()
    commit(batch, step, 9)
    batch.fetch(step).result()
    assert batch["input_ids_cpu"][:, 0].reshape(-1)[:5].tolist() == [1, 2, 3, 9, -1]


def test_f4_tensors_whose_cells_are_not_their_own_are_refused() -> None:
    settings = sl.BatchConfig(**BASE)
    layout, cpu = sl.target_layout(settings), sl.load_backend("cpu")
    frozen = np.zeros(4, np.int32)
    frozen.flags.writeable = False
    shared = np.zeros(4, np.int32)
    flat = np.lib.stride_tricks.as_strided(np.zeros(1, np.int32), (4,), (0,))
    for tensors in ({"step_idx": frozen}, {"step_idx": shared, "prompt_lens": shared}, {"step_idx": flat}):
        with pytest.raises(sl.LayoutError):
            sl.SlotBatch(layout, cpu, tensors=tensors)


@pytest.mark.parametrize("state", [[np.nan, 0, 0], [np.inf, 0, 0], [1e300, 0, 0], np.zeros(3, "V2"), np.zeros((3, 1))])
def test_i2_a_hidden_state_is_finite_numbers(state: Any) -> None:
    batch = make(hidden_size=3)
    before = batch.digest()
    with pytest.raises(sl.TaskError) as caught:
        take(batch, sl.Request("a", [1], hidden_state=state))
    assert [f.field for f in caught.value.errors] == ["hidden_state"]
    assert batch.digest() == before


def test_i1_a_fault_shows_the_element_as_given() -> None:
    task = sl.PrefillTask(sl.Request("a", [1, 2, 3]), 10**30, 10**30 + 1, [1])
    assert 10**30 in [f.value for f in sl.validate(make(), [task])]
    task = sl.PrefillTask(sl.Request("a", [1, 2, 3]), -(10**30), 1, [1])
    assert sl.validate(make(), [task])[0].value == -(10**30)


def test_i2_the_lowest_number_is_no_way_to_say_unset() -> None:
    faults = sl.validate(
        make(), [sl.PrefillTask(sl.Request("a", [1], sampling=sl.SamplingParams(max_dec_len=-(2**63))), 0, 1, [1])]
    )
    assert [f.field for f in faults] == ["max_dec_len"]


def test_odd_values_have_clear_errors() -> None:
    assert len(sl.SamplingParams(stop_seqs=np.array([[1, 2], [3, 4]])).stop_lists) == 2
    with pytest.raises(TypeError, match="ignore_eos"):
        sl.SamplingParams(ignore_eos=np.array([1, 2]))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="UTF-8"):
        sl.Request("\ud800", [1])
    for slot, start in ((True, 0), (None, False)):
        with pytest.raises(TypeError):
            sl.PrefillTask(sl.Request("a", [1]), start, 1, [1], slot=slot)
    batch = make()
    assert [] not in batch
    with pytest.raises(sl.TaskError):
        batch.slot_of([])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="a list of request ids"):
        batch.ticket("ab")


@pytest.mark.parametrize(
    "change",
    [
        {"slot_axis": "0"},
        {"slot_axis": True},
        {"on": [1]},
        {"fill": 1e300},
        {"name": "\ud800"},
        {"dtype": "int33"},
        {"residency": "disk"},
        {"on": {"prefil": 1}},
        {"on": {"decode": sl.column("history")}},
        {"on": {"prefill": "text"}},
    ],
)
def test_f1_a_field_that_cannot_be_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(sl.LayoutError):
        sl.Field(**{"name": "x", "dims": ("max_num_seqs",), "dtype": "float32", **change})
