"""Stop sequences as a padded block (rule P3)."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import slotline as sl

SEQS = st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=5), max_size=4)


@given(
    seqs=SEQS, more=st.integers(0, 2), wider=st.integers(0, 2), pad=st.sampled_from([-1, -7]), tail=st.integers(0, 3)
)
def test_p3_the_block(seqs: list[list[int]], more: int, wider: int, pad: int, tail: int) -> None:
    rows, cells = len(seqs) + more, max(map(len, seqs), default=1) + wider
    given_ = [seq + [pad] * tail for seq in seqs]
    before = copy.deepcopy(given_)
    block, lens = sl.pad_stop_sequences(given_, rows, cells, pad=pad)
    assert given_ == before
    assert (block.dtype.name, block.shape) == ("int64", (rows, cells))
    assert (lens.dtype.name, lens.shape) == ("int32", (rows,))
    assert lens.tolist() == [len(s) for s in seqs] + [0] * more
    assert [row[:n].tolist() for row, n in zip(block, lens, strict=True)] == seqs + [[]] * more  # P5
    assert all((row[n:] == pad).all() for row, n in zip(block, lens, strict=True))


@given(seqs=SEQS.filter(len), data=st.data())
def test_p3_arrays_and_new_memory(seqs: list[list[int]], data: st.DataObject) -> None:
    arrays = [np.array(s, data.draw(st.sampled_from(["int64", "int32", "uint8"]))) for s in seqs]
    block, _ = sl.pad_stop_sequences(arrays, len(seqs), 5)
    assert block.tolist() == sl.pad_stop_sequences(seqs, len(seqs), 5)[0].tolist()
    block[:] = 0
    assert [a.tolist() for a in arrays] == seqs


@given(seqs=SEQS.filter(len), data=st.data())
def test_p3_refused_with_the_index(seqs: list[list[int]], data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(seqs) - 1))
    for bad in ([], [-1, -1], [1] * 6, [3, -2, 3]):
        wrong = [*seqs[:index], bad, *seqs[index + 1 :]]
        with pytest.raises(ValueError, match=rf"\b{index}\b"):
            sl.pad_stop_sequences(wrong, len(seqs), 5)
    with pytest.raises(ValueError, match=str(len(seqs))):
        sl.pad_stop_sequences(seqs, len(seqs) - 1, 5)
