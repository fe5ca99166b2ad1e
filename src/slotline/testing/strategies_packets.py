"""Hypothesis strategies for packets: random segments over any layout, for a device's own apply (rules B8, I4)."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from slotline.core.config import BatchConfig
from slotline.core.field import Field
from slotline.core.layout import BufferLayout
from slotline.core.segments import Block, Fill, Segment, Spans
from slotline.core.standard import mtp_layout, target_layout


def packet_layout() -> BufferLayout:
    """A small layout with fields of every kind: target, drafter, one whose slots are axis 1, one of two bytes."""
    config = BatchConfig(
        max_num_seqs=5,
        max_model_len=24,
        max_chunk_tokens=8,
        block_size=4,
        vocab_size=100,
        spec_method="mtp",
        num_draft_tokens=2,
        hidden_size=3,
    )
    return (target_layout(config) | mtp_layout(config)).extend(
        Field("wide", (2, "max_num_seqs", 3), "int16", 5, slot_axis=1),
        Field("half", ("max_num_seqs", 4), "float16", 0.5),
    )


@st.composite
def segments(draw: st.DrawFn, layout: BufferLayout) -> list[Segment]:
    """One segment for each of some fields, over random rows and cells; what ``Packet(layout, ...)`` takes."""
    names = draw(st.lists(st.sampled_from(layout.names), min_size=1, max_size=6, unique=True))
    return [draw(segment(layout, name)) for name in names]


@st.composite
def segment(draw: st.DrawFn, layout: BufferLayout, name: str) -> Segment:
    """A fill, a block or spans into the field ``name``."""
    index, cells = layout.index(name), layout.row_cells(name)
    dtype = np.dtype(layout[name].dtype)
    slots = layout.config.max_num_seqs
    rows = np.array(sorted(draw(st.sets(st.integers(0, slots - 1), min_size=1))), np.intp)
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
    return Spans(index, rows, data, source, first, length, tail, layout[name].fill)
