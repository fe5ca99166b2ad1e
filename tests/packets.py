"""Random packets over a layout with every kind of field, and buffers that are not dense."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

import slotline as sl
from slotline.core.device import TensorInfo
from slotline.core.segments import Block, Fill, Segment, Spans

CONFIG = sl.BatchConfig(
    max_num_seqs=5,
    max_model_len=24,
    max_chunk_tokens=8,
    block_size=4,
    vocab_size=100,
    spec_method="mtp",
    num_draft_tokens=2,
    hidden_size=3,
)
LAYOUT = (
    (sl.target_layout(CONFIG) | sl.mtp_layout(CONFIG))
    .extend(sl.Field("wide", (2, "max_num_seqs", 3), "int16", 5, slot_axis=1))
    .extend(sl.Field("half", ("max_num_seqs", 4), "float16", 0.5))
)


@st.composite
def segments(draw: st.DrawFn) -> list[Segment]:
    """One segment for each of some fields, over random rows and cells."""
    names = draw(st.lists(st.sampled_from(LAYOUT.names), min_size=1, max_size=6, unique=True))
    return [draw(segment(name)) for name in names]


@st.composite
def segment(draw: st.DrawFn, name: str) -> Segment:
    index, cells = LAYOUT.index(name), LAYOUT.row_cells(name)
    dtype = np.dtype(LAYOUT[name].dtype)
    rows = np.array(sorted(draw(st.sets(st.integers(0, 4), min_size=1))), np.intp)
    start = draw(st.integers(0, cells - 1))
    stop = draw(st.integers(start + 1, cells))
    kind = draw(st.sampled_from(["fill", "block", "spans"]))
    numbers = st.integers(0, 1) if dtype == np.bool_ else st.integers(0, 120)
    if kind == "fill":
        return Fill(index, rows, start, stop, dtype.type(draw(numbers)).item())
    size = len(rows) * (stop - start)
    data = np.array(draw(st.lists(numbers, min_size=size, max_size=size)), dtype)
    if kind == "block":
        return Block(index, rows, start, data.reshape(len(rows), stop - start))
    length = np.array([draw(st.integers(0, stop - start)) for _ in rows], np.int64)
    source = np.array([draw(st.integers(0, size - int(n))) for n in length], np.int64)
    first = np.full(len(rows), start, np.int64)
    tail = np.array([draw(st.integers(start + int(n), cells)) for n in length], np.int64)
    return Spans(index, rows, data, source, first, length, tail, LAYOUT[name].fill)


def written(packet: sl.Packet) -> list[NDArray[Any]]:
    buffers = [np.full(LAYOUT.shape(f.name), f.fill, f.dtype) for f in LAYOUT]
    packet.apply(buffers)
    return buffers


def info(array: NDArray[Any]) -> TensorInfo:
    """An array as a backend sees a tensor."""
    return TensorInfo(
        shape=array.shape,
        strides=array.strides,
        dtype=array.dtype.name,
        place="cpu",
        pointer=array.__array_interface__["data"][0],
    )


def filled(loose: bool = False) -> list[NDArray[Any]]:
    """A buffer for each field, as after allocation. ``loose``: views with gaps in every axis, such as are adopted."""
    out = []
    for f in LAYOUT:
        shape = LAYOUT.shape(f.name)
        base = np.zeros([2 * n + 1 for n in shape] if loose else shape, f.dtype)
        view = base[tuple(slice(1, 2 * n + 1, 2) for n in shape)] if loose else base
        view[...] = f.fill
        out.append(view)
    return out
