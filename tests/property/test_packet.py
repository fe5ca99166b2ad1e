"""The packet's written form: what is read back is what was written, and anything else is a PacketError (rule R)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packets import LAYOUT, segments, written

import slotline as sl
from slotline.core import codec
from slotline.core.segments import Segment


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
