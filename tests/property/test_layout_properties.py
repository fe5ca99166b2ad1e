"""Layouts: shapes, sizes and what changing the table does (rules F)."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import slotline as sl
from slotline.testing import strategies as some

GROUPS = ("penalties", "bad_words", "thinking", "logprobs", "engine")


@given(st.data())
def test_f1_shapes_and_bytes(data: st.DataObject) -> None:
    config = data.draw(some.configs())
    layout = data.draw(some.layouts(config))
    total = 0
    for f in layout:
        shape = layout.shape(f.name)
        if f.slot_axis is not None:
            assert shape[f.slot_axis] == config.max_num_seqs
            assert math.prod(layout.row_shape(f.name)) * config.max_num_seqs == math.prod(shape)
        total += math.prod(shape) * f.itemsize * (2 if f.residency == "mirrored" else 1)
    assert layout.nbytes == total
    assert [d["name"] for d in layout.describe()] == list(layout.names)
    assert all(repr(name) in layout.stub() for name in layout.names)


@given(st.data())
def test_p1_a_new_batch_holds_the_fills(data: st.DataObject) -> None:
    config = data.draw(some.configs())
    layout = data.draw(some.layouts(config))
    batch = sl.SlotBatch(layout, sl.load_backend("cpu"))
    for f in layout:
        array = batch.host_array(f.name)
        assert (array.shape, array.dtype.name) == (layout.shape(f.name), f.dtype)
        assert (array == f.fill).all()
        if f.residency == "mirrored":
            assert np.array_equal(batch.mirror(f.name), array)


@given(st.data())
def test_f3_fingerprint_tells_layouts_apart(data: st.DataObject) -> None:
    config = data.draw(some.configs())
    layout = some.full_layout(config)
    same = some.full_layout(config)
    assert (layout, layout.fingerprint, hash(layout)) == (same, same.fingerprint, hash(same))
    changes = (
        layout.extend(*some.invented_fields()),
        layout.without(data.draw(st.sampled_from(GROUPS))),
        layout.replace("top_k", dtype="int64"),
        layout.replace("top_k", dims=("max_num_seqs", 1)),
        layout.rename(top_k="top_k_list"),
    )
    assert len({layout.fingerprint, *(c.fingerprint for c in changes)}) == 1 + len(changes)
    assert all(c != layout for c in changes)


@given(st.data())
def test_f3_changes_leave_the_rest(data: st.DataObject) -> None:
    config = data.draw(some.configs())
    layout = some.full_layout(config)
    name = data.draw(st.sampled_from(layout.names))
    renamed = layout.rename({name: "other"})
    assert [f.key for f in renamed] == [f.key for f in layout]
    assert [n for n in renamed.names if n != "other"] == [n for n in layout.names if n != name]
    found = renamed.by_key(layout[name].key)
    assert found is not None
    assert found.name == "other"
    group = data.draw(st.sampled_from(GROUPS))
    assert list(layout.without(group)) == [f for f in layout if f.group != group]
    with pytest.raises(sl.LayoutError):
        layout.without("nothing")
    with pytest.raises(sl.LayoutError):
        layout.extend(layout[name])
    with pytest.raises(sl.LayoutError):
        layout[name + "?"]


def test_f1_a_field_is_checked() -> None:
    wrong: tuple[Callable[[], sl.Field], ...] = (
        lambda: sl.Field("f", ("max_num_seqs",), "int3"),
        lambda: sl.Field("f", ("max_num_seqs",), "int32", 1.5),
        lambda: sl.Field("f", ("max_num_seqs",), "uint8", -1),
        lambda: sl.Field("f", ("max_num_seqs",), "int32", slot_axis=1),
        lambda: sl.Field("f", ("max_num_seqs",), "int32", residency="disk"),
        lambda: sl.Field("f", ("max_num_seqs",), "int32", on={"finish": 1}),
        lambda: sl.Field("f", (3,), "int32", slot_axis=None, on={"prefill": 1}),
        lambda: sl.Field("f", ("max_num_seqs",), "int32", residency="mirrored", engine_writes=True),
    )
    for make in wrong:
        with pytest.raises(sl.LayoutError, match="'f'"):
            make()


def test_f1_a_layout_is_checked() -> None:
    config = sl.BatchConfig(max_num_seqs=3, max_model_len=8, vocab_size=10)
    layout = sl.target_layout(config)
    for field in (
        sl.Field("f", ("max_seqs",), "int32"),
        sl.Field("f", (4,), "int32"),
        sl.Field("f", ("max_num_seqs",), "int32", on={"prefill": sl.column("histroy")}),
        sl.Field("f", ("max_num_seqs", 2), "int32", on={"prefill": sl.column("history")}),
    ):
        with pytest.raises(sl.LayoutError, match="'f'"):
            layout.extend(field)
    with pytest.raises(sl.LayoutError, match="BatchConfig"):
        layout | sl.target_layout(sl.BatchConfig(max_num_seqs=4, max_model_len=8, vocab_size=10))
