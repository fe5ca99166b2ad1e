"""The packet's written form: what is read back is what was written, and anything else is a PacketError (rule R)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import slotline as sl
from slotline.core import codec
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


@given(segments())
def test_r_a_packet_read_back_writes_the_same_bytes(parts: list[Segment]) -> None:
    packet = sl.Packet(LAYOUT, parts, "test")
    data = codec.encode(packet)
    again = codec.decode(LAYOUT, data)
    for left, right in zip(written(packet), written(again), strict=True):
        assert left.tobytes() == right.tobytes()
    assert codec.encode(again) == data


@given(segments(), st.data())
def test_r_hostile_bytes_give_a_packet_error_or_a_packet_within_bounds(
    parts: list[Segment], data: st.DataObject
) -> None:
    good = bytearray(codec.encode(sl.Packet(LAYOUT, parts, "test")))
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(good) - 1))
        good[at] ^= data.draw(st.integers(1, 255))
    cut = data.draw(st.integers(0, len(good)))
    for hostile in (bytes(good), bytes(good[:cut]), bytes(good) + b"\0" * 8):
        try:
            packet = codec.decode(LAYOUT, hostile)
        except sl.PacketError:
            continue
        written(packet)  # a changed value is a value; a changed place would raise here


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "at least 40 bytes"),
        (b"nope" + bytes(60), "not a packet"),
        (b"SLPK\x02\x00" + bytes(60), "version 2"),
        (b"SLPK\x01\x00\x00\x00" + bytes(60), "layout 0000"),
    ],
)
def test_r_the_error_says_what_is_wrong(data: bytes, says: str) -> None:
    with pytest.raises(sl.PacketError, match=says):
        codec.decode(LAYOUT, data)


def test_r_a_history_travels_once() -> None:
    """token_ids_all, input_ids and mtp.input_ids share one payload."""
    batch = sl.SlotBatch(LAYOUT, sl.load_backend("cpu"))
    before = batch.stats["bytes"]
    sl.insert_tasks(batch, [sl.PrefillTask(sl.Request("a", range(8)), 0, 8, [0, 1])])
    moved = batch.stats["bytes"] - before
    assert 8 * 8 <= moved < 2 * 8 * 8 + 100
