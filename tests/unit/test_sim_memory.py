"""Memory of the simulated device: read late, poisoned where nobody may look, and nothing is kept (rules W1, W4, W9)."""

from __future__ import annotations

import gc
import tracemalloc

import numpy as np
import pytest
from simulated import simulated

import slotline as sl
from slotline.backends.sim.machine import Machine
from slotline.backends.sim.memory import POISON
from slotline.backends.sim.runtime import SimRuntime
from slotline.core.runtime import Copy


def test_new_and_released_memory_is_poisoned() -> None:
    runtime = SimRuntime(Machine(0))
    address = runtime.allocate_host(100)
    allocation = runtime.machine.memory.find(address)
    assert allocation is not None
    assert (allocation.bytes == POISON).all()
    allocation.bytes[:] = 0
    runtime.released(address + 10, 5)
    assert np.flatnonzero(allocation.bytes).tolist() == [10, 11, 12, 13, 14]
    for dtype in ("int32", "int64"):
        assert np.full(8, POISON, np.uint8).view(dtype)[0] < -1  # no token id, and no pad


def test_w4_a_host_source_is_read_when_the_copy_runs_page_locked_or_not() -> None:
    for pinned in (True, False):
        runtime = SimRuntime(Machine(0))
        target, pageable = runtime.allocate(8), np.array([7], np.int64)
        source = runtime.allocate_host(8) if pinned else pageable.ctypes.data
        memory = runtime.machine.memory.find(source).array((1,), np.int64) if pinned else pageable  # type: ignore[union-attr]
        memory[:] = 7
        runtime.copy(target, source, 8, Copy.HOST_TO_DEVICE, 0)
        memory[:] = 8  # too early
        runtime.synchronize()
        assert runtime.machine.memory.find(target).array((1,), np.int64).tolist() == [8]  # type: ignore[union-attr]


def test_what_a_copy_brings_cannot_be_seen_before_it_has_landed() -> None:
    runtime, result = SimRuntime(Machine(0)), np.zeros(8, np.uint8)
    source = runtime.allocate(8)
    runtime.machine.memory.find(source).bytes[:] = 3  # type: ignore[union-attr]
    runtime.copy(result.ctypes.data, source, 8, Copy.DEVICE_TO_HOST, 0)
    assert (result == POISON).all()
    runtime.synchronize()
    assert (result == 3).all()


@pytest.mark.parametrize("pinned", [True, False])
def test_poison_spoils_nothing_that_a_queued_copy_still_reads(pinned: bool) -> None:
    runtime, pageable = SimRuntime(Machine(0)), np.full(8, 5, np.uint8)
    one, two = runtime.allocate(8), runtime.allocate(8)
    find = runtime.machine.memory.find
    host = runtime.allocate_host(8) if pinned else pageable.ctypes.data
    cells = find(host).bytes if pinned else pageable  # type: ignore[union-attr]
    cells[:], find(two).bytes[:] = 5, 6  # type: ignore[union-attr]
    runtime.copy(one, host, 8, Copy.HOST_TO_DEVICE, 0)
    runtime.copy(host, two, 8, Copy.DEVICE_TO_HOST, 0)  # behind it in the stream: allowed
    runtime.synchronize()
    assert (find(one).bytes == 5).all()  # type: ignore[union-attr]
    assert (cells == 6).all()


def test_copies_of_rows_leave_what_lies_between() -> None:  # W1
    runtime = SimRuntime(Machine(0))
    target, source = runtime.allocate(32), np.arange(1, 13, dtype=np.uint8)
    cells = runtime.machine.memory.find(target).bytes  # type: ignore[union-attr]
    cells[:] = 0
    runtime.copy_2d(target + 1, 8, source.ctypes.data, 4, 3, 3, Copy.HOST_TO_DEVICE, 0)
    runtime.synchronize()
    assert cells.reshape(4, 8)[:3, 1:4].tolist() == [[1, 2, 3], [5, 6, 7], [9, 10, 11]]
    assert cells.sum() == sum([1, 2, 3, 5, 6, 7, 9, 10, 11])


def test_errors_of_a_driver() -> None:  # W9
    runtime = SimRuntime(Machine(0))
    address, host = runtime.allocate(16), np.zeros(64, np.uint8)
    with pytest.raises(sl.DeviceError, match="pitch 4 is less than the width 8"):
        runtime.copy_2d(address, 4, host.ctypes.data, 8, 8, 2, Copy.HOST_TO_DEVICE, 0)
    with pytest.raises(sl.DeviceError, match="48 bytes behind device memory"):
        runtime.copy(address, host.ctypes.data, 64, Copy.HOST_TO_DEVICE, 0)
    with pytest.raises(sl.DeviceError, match="8 bytes before device memory"):
        runtime.machine.region(address + 8, (3,), (-8,), 8)
    with pytest.raises(sl.DeviceError, match="no memory of the device at 0x"):
        runtime.copy(host.ctypes.data, address, 16, Copy.HOST_TO_DEVICE, 0)
    with pytest.raises(sl.DeviceError, match="nothing was allocated"):
        runtime.free(address + 1)
    runtime.copy_2d(address, 8, host.ctypes.data, 8, 8, 0, Copy.HOST_TO_DEVICE, 0)  # nothing to do
    assert runtime.machine.schedule.pending == 0


def test_memory_that_is_freed_waits_for_its_users_and_is_nobodys_then() -> None:
    runtime = SimRuntime(Machine(0))
    address, host = runtime.allocate(16), np.arange(16, dtype=np.uint8)
    machine, seen = runtime.machine, []
    access = machine.region(address, (16,), (1,), 1)
    machine.enqueue(0, "kernel", lambda: seen.append(access.allocation.bytes[0]), [access])
    runtime.free(address)
    assert seen == [POISON]  # it ran before the memory was given back
    for use in (
        lambda: runtime.copy(address, host.ctypes.data, 16, Copy.HOST_TO_DEVICE, 0),
        lambda: machine.region(address, (1,), (1,), 1),
    ):
        with pytest.raises(sl.DeviceError, match="device memory was freed before"):
            use()
    machine.enqueue(0, "late kernel", lambda: None, [access])
    with pytest.raises(sl.DeviceError, match=r"late kernel.*device memory was freed before it ran"):
        machine.synchronize()


# -- what is kept


def test_nothing_is_kept_of_many_writes() -> None:
    """W4: neither operations nor memory of the detector; only what has not run."""
    sim = simulated(1, staging_bytes=1 << 16)
    tensors = sim.empty([("x", (8, 4), "int64"), ("own", (8, 4), "int64")])
    source, logged, retained = np.arange(4), 0, 0
    for n in range(3000):
        sl.async_set_value(tensors["x"][n % 8], source)
        if n % 10 == 0:
            sl.async_set_value(tensors["own"], tensors["x"])
        logged, retained = max(logged, sim.machine.detector.logged), max(retained, sim.retained)
    assert logged < 1000
    assert retained < 1000
    sim.synchronize()
    assert (sim.retained, sim.machine.schedule.pending, sim.machine.detector.logged) == (0, 0, 0)
    before = len(sim.machine.memory)
    del tensors
    gc.collect()
    assert len(sim.machine.memory) == before - 2


def test_a_large_ring_leaves_no_large_shadow() -> None:
    """Its clocks are dropped once the host knows them, else they would be eight times the ring; the rest stays."""
    machine = Machine(0)
    size, step, event = 8 << 20, 1 << 16, machine.add_event()
    ring = machine.memory.allocate(size, "host", "the ring")
    known = -1
    for n in range(256):  # twice around
        machine.enqueue(0, str(n), lambda: None, [machine.region(ring.base + n * step % size, (step,), (1,), 1)])
        if n % 20 == 9:
            machine.record(event, 0)
            machine.sync_event(event)
            known = n
        for earlier in range(max(0, n - 30), n + 1):
            place = machine.region(ring.base + earlier * step % size, (1,), (1,), 1)
            assert machine.clashes(place) == (earlier > known)
    clocks = ring.shadow[0].reads
    assert clocks is not None
    assert np.count_nonzero(clocks._clocks) < size // 4


def test_clocks_of_large_memory_are_never_copied() -> None:
    """Not where nothing can go, since nobody waits, nor where most can: eight bytes for each byte, again and again."""
    machine, size = Machine(0), 4 << 20
    memory, event = machine.memory.allocate(size, "device", "x"), machine.add_event()
    whole, row = ((size,), (1,), 1), ((1 << 16,), (1,), 1)
    tracemalloc.start()
    try:
        for waits in (False, True):
            for n in range(40):
                cells = whole if n % 2 else row
                machine.enqueue(0, str(n), lambda: None, writes=[machine.region(memory.base, *cells)])
                if waits:
                    machine.record(event, 0)
                    machine.sync_event(event)
        assert tracemalloc.get_traced_memory()[1] < size
    finally:
        tracemalloc.stop()


def test_cells_that_are_scattered_are_those_and_no_others() -> None:
    machine = Machine(0)
    memory, side = machine.memory.allocate(64, "device", "x"), machine.add_stream()
    machine.enqueue(0, "k", lambda: None, writes=machine.scattered(memory.base + np.array([0, 8, 8, 24]), 8))
    machine.enqueue(side, "between", lambda: None, writes=[machine.region(memory.base + 16, (1,), (8,), 8)])
    machine.enqueue(side, "behind", lambda: None, writes=[machine.region(memory.base + 32, (4,), (8,), 8)])
    with pytest.raises(sl.SlotlineError, match="race on x, byte 31: "):
        machine.enqueue(side, "on it", lambda: None, writes=machine.scattered(memory.base + np.array([31, 40]), 1))
    assert machine.scattered(np.empty(0, np.int64), 8) == []
