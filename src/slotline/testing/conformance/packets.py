"""Packets, allocation, adopted tensors, host fields (rules B8, B10, F2, F4, I4; cases C23, C28)."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import slotline as sl
from slotline.core.segments import Block, Fill, Segment
from slotline.testing.conformance.base import Kit, examples, has, read
from slotline.testing.reference_packet import filled, written
from slotline.testing.rules import rule
from slotline.testing.strategies_packets import packet_layout, segments

LAYOUT = packet_layout()


def buffers_of(backend: Any, layout: sl.BufferLayout, *, loose: bool) -> list[Any]:
    """A filled tensor for each field. ``loose``: views with gaps in every axis, such as engines hand over (F4)."""
    dense = {} if loose else backend.allocate(layout, layout.names)
    out = []
    for f in layout:
        shape = layout.shape(f.name)
        if loose:
            made = backend.empty([(f.name, tuple(2 * n + 1 for n in shape), f.dtype)])[f.name]
            backend.async_set_value(made, 0)
            view = made[tuple(slice(1, 2 * n + 1, 2) for n in shape)]
        else:
            view = dense[f.name]
        backend.async_set_value(view, f.fill)
        out.append(view)
    return out


def layout_for(backend: Any) -> sl.BufferLayout:
    """The packets' layout, with what the device has no dtype for left out."""
    lacking = {f.name for f in LAYOUT if not has(backend, f.dtype)}
    return sl.BufferLayout(LAYOUT.config, [f for f in LAYOUT if f.name not in lacking])


class Packets(Kit):
    """A device's apply against the packet's own description, whoever applies it: kernel, scatters or copies."""

    def _check(self, backend: Any, layout: sl.BufferLayout, parts: list[Segment], loose: bool) -> None:
        buffers = buffers_of(backend, layout, loose=loose)
        before = [backend.inspect(b) for b in buffers]
        backend.apply(sl.Packet(layout, parts, "test"), backend.bind(layout, buffers))
        for f, buffer, want in zip(layout, buffers, written(layout, parts).values(), strict=True):
            assert read(backend, buffer).tolist() == want.tolist(), f"field {f.name!r} of {f.dtype}"
        assert [backend.inspect(b) for b in buffers] == before, "the apply moved a buffer (W8)"

    @rule("B8")
    @examples()
    @given(data=st.data())
    def test_random_packets_into_one_allocation(self, backend: Any, data: st.DataObject) -> None:
        layout = layout_for(backend)
        self._check(backend, layout, data.draw(segments(layout)), loose=False)

    @rule("F4")
    @examples(0.5)
    @given(data=st.data())
    def test_random_packets_into_adopted_views(self, backend: Any, data: st.DataObject) -> None:
        layout = layout_for(backend)
        self._check(backend, layout, data.draw(segments(layout)), loose=True)

    @rule("B8")
    def test_a_packet_of_many_cells(self, backend: Any) -> None:
        config = sl.BatchConfig(max_num_seqs=5, max_model_len=3079, max_chunk_tokens=8, block_size=64, vocab_size=99)
        layout = sl.target_layout(config)
        rows = np.array([0, 2, 4], np.intp)
        data = np.arange(3 * 3079, dtype=np.int64).reshape(3, -1)
        parts: list[Segment] = [
            Block(layout.index("token_ids_all"), rows, 0, data),
            Fill(layout.index("input_ids"), rows, 0, 8, 3),
        ]
        self._check(backend, layout, parts, loose=False)

    @rule("B10")
    def test_allocate_gives_one_tensor_for_each_field(self, backend: Any) -> None:
        layout = layout_for(backend)
        made = backend.allocate(layout, layout.names)
        assert tuple(made) == layout.names
        for f in layout:
            info = backend.inspect(made[f.name])
            assert (info.shape, info.dtype) == (layout.shape(f.name), f.dtype), f.name
        ends = sorted(
            (i.pointer, i.pointer + int(np.prod(i.shape)) * np.dtype(i.dtype).itemsize, n)
            for n, i in ((n, backend.inspect(t)) for n, t in made.items())
            if np.prod(i.shape)
        )
        for (_, end, left), (start, _, right) in itertools.pairwise(ends):
            assert end <= start, f"fields {left!r} and {right!r} overlap"

    @rule("F2")
    def test_a_host_field_is_a_tensor_over_the_same_memory(self, backend: Any) -> None:
        array = np.arange(12, dtype=np.int32).reshape(3, 4)
        tensor = backend.host_tensor(array)
        array[1, 2] = -5
        seen = backend.host_view(tensor)
        assert seen.tolist() == array.tolist(), "host_tensor copied"
        seen[0, 0] = 99
        assert array[0, 0] == 99, "host_view copied"

    @rule("F4")
    def test_a_batch_over_tensors_that_the_engine_made(self, backend: Any) -> None:
        layout = layout_for(backend)
        names = [f.name for f in layout if f.on_device]
        loose = dict(zip(layout.names, buffers_of(backend, layout, loose=True), strict=True))
        batch = sl.SlotBatch(layout, backend, tensors={n: loose[n] for n in names})
        plain = sl.SlotBatch(layout, backend)
        for one in (batch, plain):
            sl.insert_tasks(one, [sl.PrefillTask(sl.Request("a", [3, 4, 5, 6]), 0, 4, [0, 1])])
            one.swap(0, 3)
        for name in names:
            assert batch[name] is loose[name], f"{name} is not the engine's own tensor"
            assert read(backend, batch[name]).tolist() == read(backend, plain[name]).tolist(), name

    @rule("F4")
    def test_a_tensor_that_does_not_fit_is_refused(self, backend: Any) -> None:
        layout = layout_for(backend)
        shape = layout.shape("input_ids")
        for wrong, dtype in (((*shape[:-1], shape[-1] + 1), "int64"), (shape, "int32")):
            made = backend.empty([("x", wrong, dtype)])["x"]
            with pytest.raises(sl.LayoutError, match="input_ids"):
                sl.SlotBatch(layout, backend, tensors={"input_ids": made})

    @rule("B8")
    def test_the_reference_of_packets_is_not_empty(self, backend: Any) -> None:
        """Guards the oracle itself: a packet that writes leaves buffers that differ from filled ones."""
        index = LAYOUT.index("input_ids")
        parts: list[Segment] = [Fill(index, np.array([1], np.intp), 0, 2, 9)]
        assert written(LAYOUT, parts)["input_ids"].tolist() != filled(LAYOUT)["input_ids"].tolist()
