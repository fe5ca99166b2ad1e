"""The packet's written form: what is read back is what was written, and anything else is a PacketError (rule R)."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packets import LAYOUT, segments, written

import slotline as sl
from slotline.core import codec
from slotline.core.segments import Block, Segment


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


def test_r_segments_that_name_the_same_bytes_share_them() -> None:
    """32 bytes for each segment, each of which claims the whole payload, a byte further than the one before."""
    config = sl.BatchConfig(max_num_seqs=2, max_model_len=50_000, vocab_size=10)
    layout, many = sl.target_layout(config), 300
    block = Block(layout.index("token_ids_all"), np.arange(2), 0, np.zeros((2, 50_000), np.int64))
    good = codec.encode(sl.Packet(layout, [block], "test"))
    header = list(codec.HEADER.unpack_from(good))
    segment = codec.SEGMENT.unpack_from(good, codec.HEADER.size)[:-1]
    header[4], header[-1] = many, header[-1] + many
    parts = [codec.HEADER.pack(*header), *(codec.SEGMENT.pack(*segment, i) for i in range(many))]
    hostile = b"".join((*parts, good[codec.HEADER.size + codec.SEGMENT.size :], bytes(many)))
    tracemalloc.start()
    assert len(codec.decode(layout, hostile)) == many
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * len(hostile)


def test_r_a_history_travels_once() -> None:
    """token_ids_all, input_ids and mtp.input_ids share one payload."""
    batch = sl.SlotBatch(LAYOUT, sl.load_backend("cpu"))
    before = batch.stats["bytes"]
    sl.insert_tasks(batch, [sl.PrefillTask(sl.Request("a", range(8)), 0, 8, [0, 1])])
    moved = batch.stats["bytes"] - before
    assert 8 * 8 <= moved < 2 * 8 * 8 + 100
