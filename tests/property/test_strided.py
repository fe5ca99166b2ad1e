"""Runs of strided memory cover every cell once (rules W1, B10)."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import slotline as sl
from slotline.core import strided


@given(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4), st.data())
def test_w1_segments_cover_a_view_once(shape: tuple[int, ...], data: st.DataObject) -> None:
    steps = [data.draw(st.integers(1, 3)) for _ in shape]
    base = np.zeros([max(1, n * s) for n, s in zip(shape, steps, strict=True)], np.int16)
    view = base[tuple(slice(0, n * s, s) for n, s in zip(shape, steps, strict=True))]
    block = np.arange(math.prod(shape), dtype=np.int16).reshape(shape)
    flat, raw = strided.bytes_of(base), strided.bytes_of(block)
    seen = np.zeros(raw.size, int)
    for (left, right), cells in strided.segments(view.shape, view.strides, 2, block.strides):
        flat[left : left + cells * 2] = raw[right : right + cells * 2]
        seen[right : right + cells * 2] += 1
    assert (seen == 1).all()
    assert np.array_equal(view, block)


@given(st.integers(0, 2), st.sets(st.integers(0, 3), min_size=1))
def test_b10_row_runs_are_the_cells_of_the_rows(axis: int, rows: set[int]) -> None:
    dims: list[int | str] = [2, 3]
    dims.insert(axis, "max_num_seqs")
    config = sl.BatchConfig(max_num_seqs=4, max_model_len=8, vocab_size=9)
    layout = sl.target_layout(config).extend(sl.Field("mine", tuple(dims), "int32", 0, slot_axis=axis))
    host = np.zeros(layout.shape("mine"), np.int32)
    raw = strided.bytes_of(host)
    chosen = np.array(sorted(rows))
    for (offset, _), cells in strided.row_runs(layout, layout.index("mine"), chosen, host, host.strides):
        raw[offset : offset + cells * 4] += 1
    expected = np.zeros_like(host)
    np.moveaxis(expected, axis, 0)[sorted(rows)] = 0x01010101
    assert np.array_equal(host, expected)


@given(st.integers(0, 2), st.sets(st.integers(0, 5)))
def test_w1_row_runs_follow_the_strides_of_the_tensor(axis: int, rows: set[int]) -> None:
    dims: list[int | str] = [2, 3]
    dims.insert(axis, "max_num_seqs")
    config = sl.BatchConfig(max_num_seqs=6, max_model_len=8, vocab_size=9)
    layout = sl.target_layout(config).extend(sl.Field("mine", tuple(dims), "int32", 0, slot_axis=axis))
    host = np.arange(36, dtype=np.int32).reshape(layout.shape("mine"))
    wide = np.full([n + 1 for n in host.shape], -1, np.int32)
    view = wide[:-1, :-1, :-1]
    flat, raw = strided.bytes_of(wide), strided.bytes_of(host)
    chosen = np.array(sorted(rows), np.intp)
    for (left, right), cells in strided.row_runs(layout, layout.index("mine"), chosen, host, view.strides):
        flat[right : right + cells * 4] = raw[left : left + cells * 4]
    expected = np.full_like(host, -1)
    np.moveaxis(expected, axis, 0)[chosen] = np.moveaxis(host, axis, 0)[chosen]
    assert np.array_equal(view, expected)
    assert (wide == -1).sum() == wide.size - expected.size + (expected == -1).sum()


def test_b10_rows_that_follow_each_other_are_one_run() -> None:
    layout = sl.target_layout(sl.BatchConfig(max_num_seqs=6, max_model_len=8, vocab_size=9))
    host = np.zeros(layout.shape("token_ids_all"), np.int64)
    rows, index = np.array([1, 2, 3, 5]), layout.index("token_ids_all")
    runs = [(offset, cells) for (offset, _), cells in strided.row_runs(layout, index, rows, host, host.strides)]
    assert runs == [(8 * 8, 24), (5 * 8 * 8, 8)]
