"""Writes from the host: every stride, the ring, and what the source holds at the call (rules W1, W4, W6)."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from conftest import Busy
from hypothesis import given
from hypothesis import strategies as st
from slotline_opencl import OpenclBackend

import slotline as sl


@given(st.data())
def test_w1_no_cell_beside_the_view_changes(backend: OpenclBackend, data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=4)))
    dtype = data.draw(st.sampled_from(["int8", "float16", "int32", "int64"]))
    want = np.full(shape, 1, dtype)
    tensor = backend.empty([("x", shape, dtype)])["x"]
    backend.async_set_value(tensor, want)
    for _ in range(3):
        view = tuple(
            slice(data.draw(st.integers(0, n - 1)), data.draw(st.integers(0, n)), data.draw(st.integers(1, 3)))
            for n in shape
        )
        source = np.arange(math.prod(want[view].shape)).reshape(want[view].shape) % 100
        backend.async_set_value(tensor[view], source)
        want[view] = source
        assert np.array_equal(backend.read(tensor[view]), want[view])
    assert np.array_equal(backend.read(tensor), want)


def test_w4_w6_sources_may_change_while_the_device_is_busy(backend: OpenclBackend, busy: Busy) -> None:
    tensors = backend.empty([(str(i), (3, 5), "int64") for i in range(20)])
    source = np.zeros((3, 5), np.int64)
    event = busy()
    for i, tensor in enumerate(tensors.values()):
        source[...] = i
        backend.async_set_value(tensor, source)
        backend.async_set_value(tensor[1:, ::2], source[1:, ::2] + 100)
    source[...] = -1
    assert not event.is_done  # nothing of it waited for the kernel
    assert backend.retained > 0
    for i, tensor in enumerate(tensors.values()):
        want = np.full((3, 5), i)
        want[1:, ::2] += 100
        assert np.array_equal(backend.read(tensor), want)
    assert backend.retained == 0


def test_w4_without_page_locked_memory_what_lands_is_the_same() -> None:
    class Pageable(OpenclBackend):
        abilities = replace(OpenclBackend.abilities, pinned_memory=False)

    backend = Pageable(staging_bytes=1024)
    tensor = backend.empty([("x", (10, 50), "int64")])["x"]
    source = np.zeros(50, np.int64)
    for i in range(10):
        source[...] = i
        backend.async_set_value(tensor[i], source)
        backend.async_set_value(tensor[i, ::2], source[::2] + 100)
    source[...] = -1
    want = np.repeat(np.arange(10), 50).reshape(10, 50)
    want[:, ::2] += 100
    assert backend.staging == "pageable"
    assert np.array_equal(backend.download(tensor).array(), want)
    backend.close()


def test_w6_a_device_source_is_read_in_its_turn(backend: OpenclBackend, busy: Busy) -> None:
    source, target = (backend.empty([("x", (64,), dtype)])["x"] for dtype in ("int32", "int64"))
    event = busy()
    backend.async_set_value(source, 5)
    backend.async_set_value(target, source)
    backend.async_set_value(source, 6)
    backend.async_set_value(source[1:], source[:-1])  # by way of memory that nobody holds (W7)
    assert not event.is_done
    del source
    assert (backend.read(target) == 5).all()


def test_w6_a_ring_that_is_full_waits_for_the_oldest_and_is_counted(busy: Busy) -> None:
    backend = OpenclBackend(staging_bytes=4096)
    tensor = backend.empty([("x", (100, 64), "int64")])["x"]
    for i in range(100):
        backend.async_set_value(tensor[i], i)
    assert np.array_equal(backend.read(tensor), np.repeat(np.arange(100), 64).reshape(100, 64))
    whole = np.arange(6400).reshape(100, 64)
    before = backend.stats["splits"]
    backend.async_set_value(tensor, whole)  # ceil(51200 / 4096) transfers
    assert backend.stats["splits"] - before == 12
    assert np.array_equal(backend.read(tensor), whole)
    backend.async_set_value(tensor[:, ::2], -whole[:, ::2])  # from the device's memory, by rectangles
    whole[:, ::2] *= -1
    assert np.array_equal(backend.read(tensor), whole)
    backend.close()


def test_i4_i6_an_insertion_waits_for_nothing(backend: OpenclBackend, busy: Busy) -> None:
    config = sl.BatchConfig(
        max_num_seqs=4, max_model_len=64, max_chunk_tokens=16, block_size=4, num_blocks=64, vocab_size=100
    )
    batch = sl.SlotBatch(sl.target_layout(config), backend)
    batch.stats.clear()
    before = busy()
    receipt = sl.insert_tasks(batch, [sl.PrefillTask(sl.Request("a", range(10)), 0, 10, [1, 2, 3])])
    assert not before.is_done
    assert not receipt.event.is_done
    assert (batch.stats["transfers"], batch.stats["kernels"], batch.stats["host_synchronisations"]) == (1, 1, 0)
    assert backend.read(batch["input_ids"])[0, :10].tolist() == list(range(10))
    assert receipt.event.is_done
