"""When things run on the simulated device: late, in a seeded order (rules W5, W10, B9)."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from simulated import simulated

import slotline as sl
from slotline.backends.sim.machine import Machine
from slotline.testing.simulate import SimulationError, simulate


def queue(machine: Machine, did: list[Any], stream: int, name: Any) -> None:
    machine.enqueue(stream, str(name), lambda: did.append(name))


def test_late_is_as_late_as_it_may_be() -> None:
    machine = Machine(0)
    did: list[Any] = []
    side = machine.add_stream()
    event, other = machine.add_event(), machine.add_event()
    queue(machine, did, side, "before")
    machine.record(event, side)
    queue(machine, did, side, "behind")
    machine.wait(0, event)
    queue(machine, did, 0, "waits")
    machine.record(other, 0)
    queue(machine, did, 0, "last")
    assert did == []
    machine.sync_event(other)  # W5: what comes before it, on both streams, and no more
    assert did == ["before", "waits"]
    machine.synchronize()
    assert sorted(did[2:]) == ["behind", "last"]


def test_eager_runs_at_once_and_random_in_between() -> None:
    eager = Machine(0, "eager")
    did: list[Any] = []
    queue(eager, did, 0, 1)
    assert did == [1]
    seen = set()
    for seed in range(20):
        machine = Machine(seed, "random")
        did = []
        for n in range(6):
            queue(machine, did, 0, n)
        seen.add(len(did))
        assert did == list(range(len(did)))
    assert len(seen) > 2


def order_of(seed: int, mode: str = "late") -> list[tuple[int, int]]:
    machine = Machine(seed, mode)
    did: list[Any] = []
    streams = [machine.add_stream() for _ in range(3)]
    for n in range(5):
        for stream in streams:
            queue(machine, did, stream, (stream, n))
    machine.synchronize()
    return did


@pytest.mark.parametrize("mode", ["late", "random"])
def test_one_seed_is_one_order_and_streams_keep_theirs(mode: str) -> None:
    orders = {tuple(order_of(seed, mode)) for seed in range(30)}
    assert len(orders) > 20
    for seed in range(5):
        assert order_of(seed, mode) == order_of(seed, mode)
    for order in orders:
        for stream in {s for s, _ in order}:
            assert [n for s, n in order if s == stream] == list(range(5))


def test_a_loop_that_asks_on_and_on_comes_to_its_end() -> None:
    for seed in range(10):
        machine = Machine(seed)
        did: list[Any] = []
        for n in range(100):
            queue(machine, did, 0, n)
        event = machine.add_event()
        machine.record(event, 0)
        asked = 1
        while not machine.is_done(event):
            asked += 1
        assert did == list(range(100))
        assert asked > 100  # and not at once


def test_a_loop_that_never_asks_has_its_bound() -> None:
    machine = Machine(0)
    did: list[Any] = []
    for n in range(2000):
        queue(machine, did, 0, n)
        assert machine.schedule.pending <= 256
    assert did == list(range(len(did)))


def test_an_event_that_was_never_recorded_holds_nobody() -> None:
    machine = Machine(0)
    did: list[Any] = []
    event = machine.add_event()
    assert machine.is_done(event)
    machine.wait(0, event)
    machine.sync_event(event)
    queue(machine, did, 0, 1)
    machine.synchronize()
    assert did == [1]


def test_an_event_recorded_again_leaves_who_waits_where_they_were() -> None:
    machine = Machine(0)
    did: list[Any] = []
    first, second = machine.add_stream(), machine.add_stream()
    event = machine.add_event()
    queue(machine, did, first, "a")
    machine.record(event, first)
    machine.wait(second, event)
    queue(machine, did, second, "waits for a")
    queue(machine, did, first, "b")
    machine.record(event, first)
    done = machine.add_event()
    machine.record(done, second)
    machine.sync_event(done)
    assert did == ["a", "waits for a"]


def test_a_stream_that_is_given_back_still_runs_and_is_no_stream_any_more() -> None:
    machine = Machine(0)
    did: list[Any] = []
    stream, event = machine.add_stream(), machine.add_event()
    queue(machine, did, stream, 1)
    machine.record(event, stream)
    machine.remove_stream(stream)
    machine.wait(0, event)
    machine.synchronize()
    assert did == [1]
    with pytest.raises(sl.DeviceError, match=f"use of stream {stream}"):
        machine.record(event, stream)
    with pytest.raises(sl.DeviceError, match=f"use of stream {stream}"):
        queue(machine, did, stream, 2)
    machine.remove_event(event)
    with pytest.raises(sl.DeviceError, match=f"use of event {event}"):
        machine.sync_event(event)


def test_only_so_many_run_late() -> None:
    machine = Machine(0, late=2)
    did: list[Any] = []
    for n in range(2):
        queue(machine, did, 0, n)
    assert did == []
    queue(machine, did, 0, 2)
    assert did == [0, 1, 2]


def test_a_race_is_told_before_the_failure_that_comes_of_it() -> None:
    """Whether the operation fails as it is queued, or in what cleans up after the race."""

    def breaks(*arrays: Any) -> None:
        raise IndexError("on what was not there yet")

    sim = simulated(0, "eager")
    x = sim.empty([("x", (2,), "int32")])["x"]
    sim.engine.write(x, stream=sim.new_stream())
    with pytest.raises(sl.SlotlineError, match="race on 'x'") as caught:
        sim.engine.kernel("early", breaks, reads=[x])
    assert isinstance(caught.value.__context__, IndexError)

    def loop(sim: Any) -> None:
        x = sim.empty([("x", (2,), "int32")])["x"]
        sim.engine.write(x, stream=sim.new_stream())
        try:
            sim.engine.kernel("early", breaks, reads=[x])
        finally:
            sim.synchronize()  # as slotline does before it gives memory back

    with pytest.raises(SimulationError, match=r"^seed 0, mode 'late': Race: race on 'x'") as found:
        simulate(loop, seeds=1)
    assert "the loop was at test_sim_machine.py" in str(found.value)
    with pytest.raises(SimulationError, match="IndexError"):
        simulate(lambda sim: sim.engine.kernel("breaks", breaks), seeds=1)


def test_modes_are_named() -> None:
    with pytest.raises(sl.ConfigError, match="mode is 'lazy', allowed: late, random, eager"):
        Machine(0, "lazy")


def test_w10_calls_may_come_from_several_threads() -> None:
    sim = simulated(3)
    tensors = list(sim.empty([(str(n), (16,), "int64") for n in range(4)]).values())
    failed: list[BaseException] = []

    def work(number: int) -> None:
        try:
            stream = sim.new_stream()
            with sim.on_stream(stream):
                assert sim.stream() == stream  # each thread has its own
                for n in range(100):
                    sl.async_set_value(tensors[number], n * number)
                    sim.empty([("short", (4,), "int32")])
                assert sim.read(tensors[number]).tolist() == [99 * number] * 16
        except BaseException as error:  # noqa: BLE001  (shown below)
            failed.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    assert sim.stream() == 0
