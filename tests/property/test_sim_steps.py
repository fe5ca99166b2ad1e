"""Step functions on the simulated device, and what an insertion costs there (rules I4, L, M, T, W4, W6)."""

from __future__ import annotations

import gc
import os
import sys
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated import simulated

import slotline as sl
from slotline.testing import assert_no_sync
from slotline.testing import strategies as some
from slotline.testing import strategies_draft as some_drafts
from slotline.testing.reference import ReferenceBatch
from slotline.testing.reference_draft import packed_draft, same
from slotline.testing.reference_pack import packed

MODES = st.sampled_from(["late", "random"])
SEEDS = st.integers(0, 2**16)


@settings(max_examples=2 * settings().max_examples)
@given(st.data(), SEEDS, MODES)
def test_l_m_t_whole_steps_that_run_late(data: st.DataObject, seed: int, mode: str) -> None:
    """Everything of three steps is queued before anything is looked at; no call waits."""
    config = data.draw(some.configs())
    layout = data.draw(some.layouts(config))
    backend = simulated(seed, mode)
    batch, ref = sl.SlotBatch(layout, backend), ReferenceBatch(layout)
    later: list[tuple[str, Any, Any]] = []
    fetched: list[tuple[Any, Any]] = []
    with assert_no_sync(batch, device_to_host=True):
        for _ in range(3):
            tasks = data.draw(some.calls(ref))
            sl.insert_tasks(batch, tasks)
            ref.insert(tasks)
            step, ticket = sl.prepare_step(batch), ref.ticket()
            later += [(n, getattr(step, n), w) for n, w in packed(ref, ticket, step.num_tokens).items()]
            tokens, counts = data.draw(some.accepted(ref, ticket))
            sl.commit_step(batch, step, tokens, counts)
            ref.commit(ticket, tokens, counts)
            for level in range(1, config.num_drafts + 1 if config.num_levels else 0):
                drafted = data.draw(some_drafts.drafted(ref, level))
                draft = sl.prepare_draft(batch, step, level, drafted)
                wanted = packed_draft(ref, ticket, level, step.num_tokens, drafted, None)
                later += [(n, getattr(draft, n), w) for n, w in wanted.items()]
            drafts = data.draw(some.drafts(ref))
            sl.commit_drafts(batch, step, drafts)
            ref.commit_drafts(ticket, drafts)
            fetched.append((batch.fetch(step), ref.outputs(ticket)))
    for name, tensor, wanted in later:
        got = backend.read(tensor).tolist()
        assert same(got, wanted) if name == "input_ids" else got == wanted, name
    for fetch, outputs in fetched:
        assert [tuple(out) for out in fetch.result()] == [tuple(out) for out in outputs]
    assert backend.retained == 0
    backend.close()


@settings(max_examples=2 * settings().max_examples)
@given(st.data(), SEEDS)
def test_i4_one_transfer_one_kernel_no_wait(data: st.DataObject, seed: int) -> None:
    config = data.draw(some.configs())
    layout = data.draw(some.layouts(config))
    backend = simulated(seed)
    batch, ref = sl.SlotBatch(layout, backend), ReferenceBatch(layout)
    for _ in range(4):
        tasks = data.draw(some.calls(ref))
        batch.stats.clear()
        queued = backend.queued
        with assert_no_sync(batch):
            sl.insert_tasks(batch, tasks)
        ref.insert(tasks)
        counted = {n: batch.stats[n] for n in ("transfers", "kernels", "splits")}
        assert counted in ({"transfers": 1, "kernels": 1, "splits": 0}, {"transfers": 0, "kernels": 0, "splits": 0})
        assert (counted["transfers"] == 0) == (backend.queued == queued)
        assert backend.queued - queued == 2 * counted["transfers"]  # a copy, and a kernel
        if not tasks:
            assert counted["transfers"] == 0
    backend.close()


@given(st.data(), SEEDS, MODES)
def test_w6_a_small_ring_splits_and_waits_and_the_bytes_are_right(data: st.DataObject, seed: int, mode: str) -> None:
    """ceil(bytes / staging_bytes) transfers for each packet, and the memory never grows."""
    config = data.draw(some.configs())
    layout = data.draw(some.layouts(config))
    staging = data.draw(st.sampled_from([256, 512, 1000, 4096]))
    backend = simulated(seed, mode, staging_bytes=staging)
    batch, ref = sl.SlotBatch(layout, backend), ReferenceBatch(layout)
    for _ in range(5):
        tasks = data.draw(some.calls(ref))
        batch.stats.clear()
        sl.insert_tasks(batch, tasks)
        ref.insert(tasks)
        transfers, nbytes = batch.stats["transfers"], batch.stats["bytes"]
        assert transfers == -(-nbytes // staging)
        assert batch.stats["splits"] == max(0, transfers - 1)
        assert batch.stats["kernels"] == min(1, transfers)
        assert batch.stats["host_synchronisations"] == 0
    found = ref.compare(batch)
    assert found is None, found
    backend.close()


@pytest.mark.parametrize("name", ["cpu", "sim"])
def test_w4_c07_many_writes_leave_nothing_behind(name: str) -> None:
    """A million under the thorough profile; after a synchronisation no source is retained and no log is kept.

    Of the last three quarters neither memory nor objects are left, however many they are.
    """
    count = 1_000_000 if os.environ.get("SLOTLINE_HYPOTHESIS_PROFILE") == "thorough" else 20_000
    backend: Any = sl.load_backend("cpu") if name == "cpu" else simulated(1)
    target = backend.empty([("t", (64,), "int64")])["t"]
    backend.synchronize()
    if name == "cpu":  # sim is too slow to be traced, and its memory is made of objects
        tracemalloc.start()
    try:
        held = []
        for part in range(4):
            for i in range(part * count // 4, (part + 1) * count // 4):
                sl.async_set_value(target[i % 64 : i % 64 + 1], i)
            backend.synchronize()
            gc.collect()
            held.append((sys.getallocatedblocks(), tracemalloc.get_traced_memory()[0]))
    finally:
        tracemalloc.stop()
    (objects, nbytes), (objects_then, nbytes_then) = held[0], held[-1]
    assert objects_then - objects < 2000  # one for each write would be 15,000
    assert nbytes_then - nbytes < 1 << 16
    wanted = [max(i for i in range(count - 64, count) if i % 64 == slot) for slot in range(64)]
    assert backend.read(target).tolist() == wanted
    if name == "sim":
        assert backend.retained == 0
        assert backend.machine.detector.logged == 0
        assert len(backend.machine.memory) < 8
        assert backend.stats["staging_waits"] == 0


@given(st.data(), SEEDS, MODES)
def test_w1_w5_views_and_device_sources_in_the_order_of_the_stream(data: st.DataObject, seed: int, mode: str) -> None:
    """Random writes, of host and of device sources that overlap, into random views, against NumPy's assignment."""
    backend = simulated(seed, mode, staging_bytes=data.draw(st.sampled_from([256, 1 << 16])))
    shape = (5, 4, 6)
    tensor, want = backend.empty([("t", shape, "int32")])["t"], np.zeros(shape, np.int32)
    sl.async_set_value(tensor, 0)

    def index() -> tuple[Any, ...]:
        parts: list[Any] = []
        for size in shape:
            start = data.draw(st.integers(0, size - 1))
            stop = data.draw(st.integers(start + 1, size))
            parts.append(data.draw(st.just(start) | st.just(slice(start, stop, data.draw(st.integers(1, 3))))))
        return tuple(parts)

    for _ in range(data.draw(st.integers(1, 8))):
        to = index()
        if data.draw(st.booleans()):
            source = np.array(data.draw(st.integers(-99, 99)) + np.arange(want[to].size)).reshape(want[to].shape)
            sl.async_set_value(tensor[to], source)
            want[to] = source
            source[...] = 7777
        else:
            start = index()
            if want[start].shape == want[to].shape:
                sl.async_set_value(tensor[to], tensor[start])
                want[to] = want[start].copy()
    assert backend.read(tensor).tolist() == want.tolist()
    assert backend.retained == 0
    backend.close()
