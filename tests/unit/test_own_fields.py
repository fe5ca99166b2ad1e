"""Fields, tensors, side tables and callbacks of one's own (rules F3, F4, F5)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import slotline as sl
from slotline.testing.reference import ReferenceBatch
from slotline.testing.strategies import full_layout, invented_fields

CONFIG: dict[str, Any] = {
    "max_num_seqs": 4,
    "max_model_len": 16,
    "max_chunk_tokens": 4,
    "block_size": 4,
    "vocab_size": 50,
    "spec_method": "mtp",
    "num_draft_tokens": 2,
}
POSITIONS = [[1, 2], [3, 4], [5, 6]]


def base() -> sl.BufferLayout:
    return full_layout(sl.BatchConfig(**CONFIG))


def make(layout: sl.BufferLayout, **kw: Any) -> sl.SlotBatch:
    return sl.SlotBatch(layout, sl.load_backend("cpu"), **kw)


def request(request_id: str, prompt: Any = (1, 2, 3, 4, 5, 6), **kw: Any) -> sl.Request:
    return sl.Request(request_id, prompt, **kw)


def prefill(r: sl.Request, start: int = 0, end: int = 4, slot: int | None = None) -> sl.PrefillTask:
    return sl.PrefillTask(r, start, end, [0, 1], slot)


def commit(batch: sl.SlotBatch) -> None:
    sl.commit_step(batch, batch.ticket(), np.full((4, 3), 9), np.ones(4, np.int32))


def own(batch: sl.SlotBatch, slot: int) -> tuple[Any, Any, Any]:
    return (
        batch.host_array("own_positions")[:, slot].tolist(),
        batch.host_array("own_host")[slot].tolist(),
        batch.mirror("own_mirrored")[slot].item(),
    )


FREE = ([[-7, -7]] * 3, [0.5, 0.5], 3)


def test_f3_three_invented_fields_through_every_operation() -> None:
    batch = make(base().extend(*invented_fields()))
    objects = batch.side_table("own_object", lambda r: {"of": r.request_id})
    assert [own(batch, s) for s in range(4)] == [FREE] * 4
    given = request("a", extra={"own_positions": POSITIONS}, sampling=sl.SamplingParams(temperature=0.25))
    sl.insert_tasks(batch, [prefill(given, slot=1), prefill(request("b", extra={"own_positions": 8}))])
    assert own(batch, 1) == (POSITIONS, [0.25, 0.25], 6)
    assert own(batch, 0) == ([[8, 8]] * 3, [1.0, 1.0], 6)
    assert own(batch, 2) == FREE
    commit(batch)
    sl.insert_tasks(batch, [prefill(given, 4, 6)])  # continue
    assert own(batch, 1) == ([[5, 5]] * 3, [0.25, 0.25], 6)
    sl.insert_tasks(batch, [sl.DecodeTask("a", new_blocks=[7])])
    assert own(batch, 1) == ([[5, 5]] * 3, [3.0, 3.0], 9)
    batch.swap(1, 3)
    assert (own(batch, 1), own(batch, 3)) == (FREE, ([[5, 5]] * 3, [3.0, 3.0], 9))
    assert [objects[s] and objects[s]["of"] for s in range(4)] == ["b", None, None, "a"]
    batch.release(["b"])
    assert own(batch, 0) == FREE
    assert batch.condense() == [(3, 0)]
    assert (own(batch, 0), own(batch, 3)) == (([[5, 5]] * 3, [3.0, 3.0], 9), FREE)
    batch.reset()
    assert [own(batch, s) for s in range(4)] == [FREE] * 4
    assert list(objects) == [None] * 4


def test_f3_digest_and_diff_see_them() -> None:
    left, right = (make(base().extend(*invented_fields())) for _ in range(2))
    for batch in (left, right):
        sl.insert_tasks(batch, [prefill(request("a"))])
    assert left.digest() == right.digest()
    for name, index in (("own_positions", (1, 2, 1)), ("own_host", (2, 0))):
        digest = right.digest()
        right[name][index] = 4
        assert right.digest() != digest
    found = {(d.field, d.slot, d.cell) for d in left.diff(right)}
    assert found == {("own_positions", 2, 3), ("own_host", 2, 0)}


def test_f3_an_extra_that_does_not_fit() -> None:
    batch = make(base().extend(*invented_fields()))
    before = batch.digest()
    for value in ([1, 2], [[1]] * 4, "text", 1.5, [[2**40]], [[float("nan")]]):
        with pytest.raises(sl.TaskError, match="own_positions") as caught:
            sl.insert_tasks(batch, [prefill(request("a", extra={"own_positions": value}))])
        assert [f.field for f in caught.value.errors] == ["extra"]
        assert batch.digest() == before


def test_f3_replaced_renamed_and_left_out_fields_work() -> None:
    layout = base().without("penalties", "bad_words", "thinking", "logprobs", "engine")
    for name in ("seq_lens_this_time", "step_idx", "top_k", "mtp.seq_lens_this_time", "stop_flags", "next_tokens"):
        layout = layout.replace(name, dims=("max_num_seqs", 1))
    for name in ("input_ids", "draft_tokens", "accept_tokens"):
        layout = layout.replace(name, dtype="int32")
    layout = layout.rename({"token_ids_all": "pre_ids", "mtp.input_ids": "draft_input_ids"})
    batch, ref = make(layout), ReferenceBatch(layout)
    tasks: list[Any] = [prefill(request("a", [1, 2, 3])), prefill(request("b"))]
    tasks[0] = sl.PrefillTask(tasks[0].request, 0, 3, [0, 1])
    sl.insert_tasks(batch, tasks)
    ref.insert(tasks)
    assert ref.compare(batch) is None
    assert batch.host_array("seq_lens_this_time").tolist() == [[3], [4], [0], [0]]
    for _ in range(2):
        step, ref_step = batch.ticket(), ref.ticket()
        tokens, counts = np.full((4, 3), 9), np.ones(4, np.int32)
        sl.commit_step(batch, step, tokens, counts)
        ref.commit(ref_step, tokens, counts)
        assert ref.compare(batch) is None
        sl.commit_drafts(batch, step, np.full((4, 2), 8))
        ref.commit_drafts(ref_step, np.full((4, 2), 8))
        assert ref.compare(batch) is None
    assert batch.host_array("pre_ids")[0, :5].tolist() == [1, 2, 3, 9, 9]
    batch.swap(0, 2)
    ref.swap(0, 2)
    assert ref.compare(batch) is None


def test_f3_a_row_may_not_lose_cells() -> None:
    with pytest.raises(sl.LayoutError, match="input_ids"):
        base().replace("input_ids", dims=("max_num_seqs", 2))
    with pytest.raises(sl.LayoutError, match="shape"):
        base().replace("input_ids", shape=(4, 4))


def test_f4_adopted_tensors() -> None:
    mine = np.full((4, 16), 77, np.int64)
    batch = make(base(), tensors={"token_ids_all": mine})
    assert batch["token_ids_all"] is mine
    assert (mine == -1).all()
    sl.insert_tasks(batch, [prefill(request("a"))])
    assert mine[0].tolist() == [1, 2, 3, 4, 5, 6] + [-1] * 10
    mine[0, 10:] = 5  # the engine's own kernels write into rows
    mine[3] = 6
    batch.release(["a"])
    assert (mine[:3] == -1).all()
    sl.insert_tasks(batch, [prefill(request("b"), slot=3)])
    assert mine[3].tolist() == [1, 2, 3, 4, 5, 6] + [-1] * 10


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("top_k", np.zeros(3, np.int32)),
        ("top_k", np.zeros(4, np.int64)),
        ("top_k", [0, 0, 0, 0]),
        ("top_q", np.zeros(4, np.int32)),
    ],
)
def test_f4_a_tensor_that_does_not_fit(name: str, tensor: Any) -> None:
    with pytest.raises(sl.LayoutError, match=name):
        make(base(), tensors={name: tensor})


def test_f4_only_some_fields() -> None:
    batch = make(base(), only={"token_ids_all", "prompt_lens"})
    batch["top_k"][:] = 7
    sampling = sl.SamplingParams(top_k=3)
    sl.insert_tasks(batch, [prefill(request("a", sampling=sampling))])
    assert batch.host_array("token_ids_all")[0, :6].tolist() == [1, 2, 3, 4, 5, 6]
    assert batch.host_array("prompt_lens").tolist() == [6, 0, 0, 0]
    assert batch.host_array("top_k").tolist() == [7] * 4
    assert not batch.host_array("input_ids").any()
    batch.release(["a"])
    assert (batch.host_array("token_ids_all") == -1).all()
    assert batch.host_array("top_k").tolist() == [7] * 4
    with pytest.raises(sl.LayoutError, match="top_q"):
        make(base(), only={"top_q"})


def test_f5_callbacks() -> None:
    batch = make(base())
    told: list[tuple[Any, ...]] = []
    batch.on_insert(lambda *args: told.append(("insert", *args)))
    batch.on_move(lambda *args: told.append(("move", *args)))
    batch.on_release(lambda *args: told.append(("release", *args)))
    sl.insert_tasks(batch, [prefill(request("a"), slot=2), prefill(request("b"))])
    assert sorted(told) == [("insert", "a", 2, batch.epoch_of("a")), ("insert", "b", 0, batch.epoch_of("b"))]
    told.clear()
    sl.insert_tasks(batch, [sl.DecodeTask("a", [5])])
    batch.swap(2, 2)
    batch.swap(1, 3)
    assert told == []
    batch.swap(0, 2)
    assert sorted(told) == [("move", "a", 2, 0), ("move", "b", 0, 2)]
    told.clear()
    batch.release(["a"])
    batch.condense()
    batch.reset()
    assert told == [("release", "a", 0), ("move", "b", 2, 0), ("release", "b", 0)]


def test_f5_a_factory_that_raises_changes_nothing() -> None:
    batch = make(base())

    def factory(r: sl.Request) -> Any:
        if r.request_id == "bad":
            raise RuntimeError("no arguments")
        return []

    table = batch.side_table("args", factory)
    sl.insert_tasks(batch, [prefill(request("a"))])
    before, kept = batch.digest(), table[0]
    with pytest.raises(RuntimeError, match="no arguments"):
        sl.insert_tasks(batch, [sl.AbortTask("a"), prefill(request("bad"))])
    assert batch.digest() == before
    assert table[0] is kept


def test_f5_entries_are_not_shared() -> None:
    batch = make(base())
    table = batch.side_table("args", lambda r: [])
    sl.insert_tasks(batch, [prefill(request(r)) for r in "abc"])
    table[0].append(1)
    assert list(table) == [[1], [], [], None]
    with pytest.raises(sl.LayoutError, match="args"):
        batch.side_table("args", lambda r: None)
