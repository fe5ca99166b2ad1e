"""The image of a packet, applied from its raw bytes, writes what the packet writes (rules B8, I3, W1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from packets import LAYOUT, filled, info, segments, written

import slotline as sl
from slotline.core import image as images
from slotline.core.image import Image
from slotline.core.segments import Block, Fill, Segment
from slotline.testing import strategies as some
from slotline.testing.reference import ReferenceBatch


def memory_of(buffers: list[NDArray[Any]]) -> Callable[[int, int], tuple[NDArray[Any], int]]:
    """``cells`` over arrays: the whole block of memory that an address lies in."""
    blocks = []
    for buffer in buffers:
        base = buffer if buffer.base is None else buffer.base
        assert isinstance(base, np.ndarray)
        blocks.append((base.__array_interface__["data"][0], base.reshape(-1).view(np.uint8)))

    def cells(address: int, width: int) -> tuple[NDArray[Any], int]:
        for start, raw in blocks:
            if start <= address < start + len(raw):
                size = len(raw) // width * width
                return raw[:size].view(f"<u{width}"), (address - start) // width
        raise LookupError(f"no memory at {address}")

    return cells


@settings(max_examples=3 * settings().max_examples)
@given(segments(), st.booleans())
def test_b8_an_image_writes_what_its_packet_writes(parts: list[Segment], loose: bool) -> None:
    packet, buffers = sl.Packet(LAYOUT, parts, "test"), filled(loose)
    image, table = Image(packet), images.targets(LAYOUT, [info(b) for b in buffers])
    raw = image.to_bytes()
    assert len(raw) == image.nbytes
    assert image.nbytes % 8 == 0
    images.run(raw, image.meta, table, memory_of(buffers))
    for f, got, want in zip(LAYOUT, buffers, written(packet), strict=True):
        assert np.ascontiguousarray(got).tobytes() == want.tobytes(), f.name
        gaps = got if got.base is None else got.base
        assert isinstance(gaps, np.ndarray)
        if loose:  # W1: cells outside the view keep their bytes
            rest = np.ones(gaps.shape, bool)
            rest[tuple(slice(1, n, 2) for n in gaps.shape)] = False
            assert not gaps[rest].any(), f.name


@given(segments(), st.booleans())
def test_i3_what_the_detector_is_told_are_the_cells_that_change(parts: list[Segment], loose: bool) -> None:
    packet, buffers = sl.Packet(LAYOUT, parts, "test"), filled(loose)
    image, table = Image(packet), images.targets(LAYOUT, [info(b) for b in buffers])
    told = [(int(a), width) for at, width in image.accesses(table) for a in at]
    assert len(told) == len(set(told))
    changed = set()
    for f, buffer, after in zip(LAYOUT, buffers, written(packet), strict=True):
        for index in np.argwhere(np.asarray(buffer != after)).tolist():
            offset = sum(i * s for i, s in zip(index, buffer.strides, strict=True))
            changed.add((info(buffer).pointer + offset, f.itemsize))
    assert changed <= set(told)


@given(st.data())
def test_i3_no_insertion_writes_a_cell_twice(data: st.DataObject) -> None:
    """Segments may be applied in any order, or at once: they never overlap."""
    config = data.draw(some.configs())
    layout = data.draw(some.layouts(config))
    ref, batch = ReferenceBatch(layout), sl.SlotBatch(layout, sl.load_backend("cpu"))
    packets: list[sl.Packet] = []
    apply = batch.buffers.apply

    def spy(packet: sl.Packet, stream: Any) -> sl.Event:
        packets.append(packet)
        return apply(packet, stream)

    batch.buffers.apply = spy  # type: ignore[method-assign]
    for _ in range(4):
        tasks = data.draw(some.calls(ref))
        sl.insert_tasks(batch, tasks)
        ref.insert(tasks)
    for packet in packets:
        seen: set[tuple[int, int, int]] = set()
        for s in packet.segments:
            rows, cells = images.cells_of(s)
            for row, cell in zip(rows.tolist(), cells.tolist(), strict=True):
                assert (s.field, row, cell) not in seen
                seen.add((s.field, row, cell))


def test_f4_rows_of_more_than_three_axes_are_refused_by_name() -> None:
    config = sl.BatchConfig(
        max_num_seqs=2, max_model_len=8, max_chunk_tokens=4, block_size=4, vocab_size=9, eos_token_ids=()
    )
    layout = sl.BufferLayout(config, [sl.Field("odd", ("max_num_seqs", 2, 3, 2, 3), "int8", 0)])
    view = np.zeros((2, 4, 6, 4, 6), np.int8)[:, ::2, ::2, ::2, ::2]
    with pytest.raises(sl.LayoutError, match="field 'odd': rows of shape"):
        images.targets(layout, [info(view)])
    joined = np.zeros((2, 4, 3, 2, 3), np.int8)[:, ::2]
    assert images.targets(layout, [info(joined)])[0, 3:7].tolist() == [2, 36, 18, 1]


def test_segments_beyond_32_bits_are_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "MOST_CELLS", 6)
    rows = np.arange(5, dtype=np.intp)
    name = "token_ids_all"
    block = Block(LAYOUT.index(name), rows, 1, np.arange(15, dtype=LAYOUT[name].dtype).reshape(5, 3))
    fill = Fill(LAYOUT.index("draft_tokens"), rows, 0, 2, 7)
    packet, buffers = sl.Packet(LAYOUT, [block, fill], "test"), filled()
    image = Image(packet)
    assert [len(s.rows) for s in image.packet.segments] == [2, 2, 1, 3, 2]
    table = images.targets(LAYOUT, [info(b) for b in buffers])
    images.run(image.to_bytes(), image.meta, table, memory_of(buffers))
    for got, want in zip(buffers, written(packet), strict=True):
        assert got.tobytes() == want.tobytes()
