"""What the simulated device calls a race: exactly what no stream order, event or synchronisation orders (rules W5, B9).

Random programs are held against reachability in a graph, written here; loops that are right raise no alarm, and each
of their edges, left out, does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from simulated import simulated

from slotline.testing import simulate

BYTES = 48
Cells = tuple[int, tuple[int, ...], tuple[int, ...], int]
"""Offset, shape, strides and bytes of an item."""


class Call(NamedTuple):
    """One call of a program; what it means stands in ``run`` and in ``Oracle``."""

    what: str
    stream: int = 0
    event: int = 0
    reads: tuple[Cells, ...] = ()
    writes: tuple[Cells, ...] = ()


def bytes_of(cells: Cells) -> set[int]:
    offset, shape, strides, itemsize = cells
    starts = [offset]
    for size, stride in zip(shape, strides, strict=True):
        starts = [start + n * stride for start in starts for n in range(size)]
    return {start + b for start in starts for b in range(itemsize)}


@st.composite
def some_cells(draw: st.DrawFn) -> Cells:
    """A strided region inside of the memory, with steps over cells, backwards too."""
    itemsize = draw(st.sampled_from([1, 2, 4]))
    shape = tuple(draw(st.lists(st.integers(1, 3), max_size=2)))
    strides = tuple(draw(st.sampled_from([-8, -6, -4, -1, 1, 2, 4, 5, 8, 12])) for _ in shape)
    region = bytes_of((0, shape, strides, itemsize))
    assume(max(region) - min(region) < BYTES)
    return draw(st.integers(-min(region), BYTES - 1 - max(region))), shape, strides, itemsize


STREAMS, EVENTS = 4, 4
_stream, _event = st.integers(0, STREAMS - 1), st.integers(0, EVENTS - 1)
_cells = st.lists(some_cells(), max_size=2).map(tuple)
_ranges = st.tuples(st.integers(0, BYTES - 8), st.integers(1, 8)).map(lambda r: ((r[0], (r[1],), (1,), 1),))


def calls(what: str, **parts: st.SearchStrategy[Any]) -> st.SearchStrategy[Call]:
    return st.fixed_dictionaries({"what": st.just(what), **parts}).map(lambda given: Call(**given))


KERNEL = calls("kernel", stream=_stream, reads=_cells, writes=_cells)
CALLS = st.one_of(
    KERNEL,
    KERNEL,
    KERNEL,
    calls("record", stream=_stream, event=_event),
    calls("wait", stream=_stream, event=_event),
    calls("sync", event=_event),
    calls("query", event=_event),
    calls("synchronize"),
    calls("host", reads=_ranges),
    calls("host", writes=_ranges),
)


class Oracle:
    """A node for each call on its stream and one for each moment of the host; what can be reached comes later."""

    def __init__(self) -> None:
        self.before: dict[tuple[str, int], list[tuple[str, int]]] = {}
        self.last: dict[int, tuple[str, int]] = {}
        self.recorded: dict[int, tuple[str, int]] = {}
        self.accesses: list[tuple[tuple[str, int], set[int], set[int]]] = []

    def call(self, index: int, call: Call, answer: bool) -> list[int]:
        """The calls before, with which this one races."""
        host, node = ("host", index), ("queued", index)
        self.before[host] = [("host", index - 1)] if index else []
        if call.what in ("kernel", "record", "wait"):
            self.before[node] = [host, *([self.last[call.stream]] if call.stream in self.last else [])]
            if call.what == "wait" and call.event in self.recorded:
                self.before[node].append(self.recorded[call.event])
            self.last[call.stream] = node
        if call.what == "record":
            self.recorded[call.event] = node
        if (call.what == "sync" or (call.what == "query" and answer)) and call.event in self.recorded:
            self.before[host].append(self.recorded[call.event])
        if call.what == "synchronize":
            self.before[host] += self.last.values()
        return self._races(host if call.what == "host" else node, call) if call.what in ("kernel", "host") else []

    def _races(self, me: tuple[str, int], call: Call) -> list[int]:
        reads = set().union(*map(bytes_of, call.reads))
        writes = set().union(*map(bytes_of, call.writes))
        ordered = self._all_before(me)
        found = [
            node[1]
            for node, others_reads, others_writes in self.accesses
            if node not in ordered and (writes & (others_reads | others_writes) or reads & others_writes)
        ]
        self.accesses.append((me, reads, writes))
        return found

    def _all_before(self, node: tuple[str, int]) -> set[tuple[str, int]]:
        found, ahead = set(), [node]
        while ahead:
            for earlier in self.before[ahead.pop()]:
                if earlier not in found:
                    found.add(earlier)
                    ahead.append(earlier)
        return found


def run(calls: list[Call], seed: int, mode: str, scattered: bool, behind: int = 0) -> None:
    """A program and its oracle, on cells ``behind`` so many bytes of the memory."""
    machine = simulated(seed, mode, collect=True).machine
    memory = machine.memory.allocate(BYTES + behind, "device", "the memory")
    base = memory.base + behind
    streams = [machine.add_stream() for _ in range(STREAMS)]
    events = [machine.add_event() for _ in range(EVENTS)]
    oracle = Oracle()

    def access(cells: Cells) -> Any:
        offset, shape, strides, itemsize = cells
        if scattered and all(start % itemsize == 0 for start in (offset, *strides)):
            starts = sorted(b for b in bytes_of(cells) if b % itemsize == 0)
            return machine.scattered(base + np.array(starts, np.int64), itemsize)[0]
        return machine.region(base + offset, shape, strides, itemsize)

    for index, call in enumerate(calls):
        answer, known = False, len(machine.races)
        if call.what == "kernel":
            reads, writes = map(access, call.reads), map(access, call.writes)
            machine.enqueue(streams[call.stream], str(index), lambda: None, [*reads], [*writes])
        elif call.what == "record":
            machine.record(events[call.event], streams[call.stream])
        elif call.what == "wait":
            machine.wait(streams[call.stream], events[call.event])
        elif call.what == "sync":
            machine.sync_event(events[call.event])
        elif call.what == "query":
            answer = machine.is_done(events[call.event])
        elif call.what == "synchronize":
            machine.synchronize()
        else:
            ((offset, (nbytes,), _, _),) = call.writes or call.reads
            machine.host_access(base + offset, nbytes, writing=bool(call.writes))
        wanted = oracle.call(index, call, answer)
        races = machine.races[known:]
        assert bool(races) == bool(wanted), (index, wanted, races)
        assert {int(race.before.name) for race in races} <= set(wanted)


@given(st.lists(CALLS, max_size=24), st.integers(0, 2**16), st.sampled_from(["late", "random", "eager"]), st.booleans())
@settings(max_examples=4 * settings().max_examples)
def test_a_race_is_reported_exactly_where_nothing_orders_two_accesses(
    program: list[Call], seed: int, mode: str, scattered: bool
) -> None:
    run(program, seed, mode, scattered)


@given(some_cells())
@example((24, (2, 2), (-8, 4), 4))
@example((0, (2, 2), (8, 4), 4))
@example((0, (3, 2), (2, 2), 4))  # cells that overlap
def test_an_access_touches_its_own_bytes_and_no_others(cells: Cells) -> None:  # W1
    machine = simulated().machine
    memory = machine.memory.allocate(BYTES, "device", "the memory")
    offset, shape, strides, itemsize = cells
    machine.enqueue(0, "kernel", lambda: None, writes=[machine.region(memory.base + offset, shape, strides, itemsize)])
    touched = {b for b in range(BYTES) if machine.clashes(machine.region(memory.base + b, (), (), 1))}
    assert touched == bytes_of(cells)


# -- loops that are right


class Edges:
    """The orders that a loop makes, one by one; the one with number ``without`` is left out."""

    def __init__(self, without: int | None = None) -> None:
        self.without, self.count = without, 0

    def make(self, order: Callable[..., None], *arguments: Any) -> None:
        if self.count != self.without:
            order(*arguments)
        self.count += 1


STEPS = 5


def two_streams(sim: Any, edges: Edges) -> None:
    """Uploads run ahead of the steps that read them, by the two buffers that there are."""
    upload, compute = sim.new_stream(), sim.new_stream()
    tensors = sim.empty([("first", (4, 8), "int32"), ("second", (4, 8), "int32"), ("sum", (8,), "int64")])
    ring, total = [tensors["first"], tensors["second"]], tensors["sum"]
    sim.engine.write(total, stream=compute)
    used: list[Any] = [None, None]
    for step in range(STEPS):
        buffer = ring[step % 2]
        if used[step % 2] is not None:
            edges.make(used[step % 2].wait, upload)
        edges.make(sim.engine.write(buffer, source=step + 1, stream=upload).wait, compute)

        def add(source: Any, into: Any) -> None:
            into += source.sum(0)

        used[step % 2] = sim.engine.kernel("add", add, reads=[buffer], writes=[total], stream=compute)
    edges.make(used[(STEPS - 1) % 2].sync)
    assert total.tolist() == [4 * sum(range(1, STEPS + 1))] * 8


def diamond(sim: Any, edges: Edges) -> None:
    """One stream hands on to two, and waits for both."""
    first, left, right = (sim.new_stream() for _ in range(3))
    tensors = sim.empty([(name, (8,), "int64") for name in ("x", "y", "z")])
    x, y, z = tensors.values()
    sim.engine.write(x, source=1, stream=first)
    for _ in range(STEPS):
        made = sim.record(first)
        edges.make(made.wait, left)
        edges.make(made.wait, right)
        on_left = sim.engine.kernel("left", double, reads=[x], writes=[y], stream=left)
        on_right = sim.engine.kernel("right", double, reads=[x], writes=[z], stream=right)
        edges.make(on_left.wait, first)
        edges.make(on_right.wait, first)
        done = sim.engine.kernel("join", add, reads=[y, z], writes=[x], stream=first)
    edges.make(done.sync)
    assert x.tolist() == [4**STEPS] * 8


def double(source: Any, into: Any) -> None:
    into[...] = 2 * source


def add(left: Any, right: Any, into: Any) -> None:
    into[...] = left + right


def host_only(sim: Any, edges: Edges) -> None:
    """Two streams hand a buffer to and fro, and only the host orders them."""
    here, there = sim.new_stream(), sim.new_stream()
    tensors = sim.empty([("x", (8,), "int64"), ("y", (8,), "int64")])
    x, y = tensors.values()
    for step in range(STEPS):
        edges.make(sim.engine.write(x, source=step, stream=here).sync)
        edges.make(sim.engine.kernel("copy", double, reads=[x], writes=[y], stream=there).sync)
        assert y.tolist() == [2 * step] * 8
    sim.synchronize()


LOOPS = {"two streams": two_streams, "diamond": diamond, "host only": host_only}


def number_of_edges(name: str) -> int:
    edges = Edges()
    LOOPS[name](simulated(), edges)
    return edges.count


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_that_is_right_raises_no_alarm(name: str) -> None:
    simulate(lambda sim: LOOPS[name](sim, Edges()), seeds=1000)


@pytest.mark.parametrize("name", LOOPS)
def test_each_edge_that_is_left_out_is_an_alarm(name: str) -> None:
    for without in range(number_of_edges(name)):
        for seed in range(5):
            with pytest.raises(Exception, match="race on"):
                LOOPS[name](simulated(seed), Edges(without))
