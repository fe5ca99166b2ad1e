"""Machine: the simulated device, its memory, its streams and its race detector, by calls as a driver has them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slotline.backends.sim.access import Access, region, scattered
from slotline.backends.sim.detector import Clock, Detector
from slotline.backends.sim.memory import Allocation, Memory
from slotline.backends.sim.report import Operation, Race, stack
from slotline.backends.sim.schedule import MODES, Point, Schedule
from slotline.core.errors import ConfigError, DeviceError


class Machine:
    """One simulated device.

    - ``seed``: the order in which what may run in any order does run.
    - ``mode``: ``late`` (everything as late as the rules allow), ``random`` (now and then something runs early), or
      ``eager`` (all at once, as without streams).
    - ``collect``: races are kept in ``races`` instead of being raised where they are made.
    - ``late``: only the first so many operations run late.

    Its calls may come from several threads. Stream 0 is there from the beginning.
    """

    def __init__(self, seed: int = 0, mode: str = "late", *, collect: bool = False, late: int | None = None) -> None:
        if mode not in MODES:
            raise ConfigError(f"mode is {mode!r}, allowed: {', '.join(MODES)}")
        self.seed, self.mode, self.collect, self.late = seed, mode, collect, late
        self.last_late: Operation | None = None
        """The last of the operations that ``late`` lets run late."""
        self.races: list[Race] = []
        self.memory = Memory()
        self.lock = threading.RLock()
        self.schedule = Schedule(seed, mode, late)
        self.detector = Detector()
        self._events: dict[int, tuple[Point, Clock] | None] = {}
        self._next = 1
        self._known: set[int] = set()
        self.add_stream(0)

    # -- streams and events

    def add_stream(self, stream: int | None = None) -> int:
        with self.lock:
            handle = self._number() if stream is None else stream
            self.schedule.add(handle)
            self.detector.add(handle)
            self._known.add(handle)
            return handle

    def remove_stream(self, stream: int) -> None:
        with self.lock:
            self.require_stream(stream)
            self.schedule.remove(stream)
            self.detector.remove(stream)
            self._known.discard(stream)

    def require_stream(self, stream: int) -> None:
        """``DeviceError`` for a handle that is none."""
        if stream not in self._known:
            raise DeviceError("sim", f"use of stream {stream}", 400, "invalid handle", "no such stream")

    def add_event(self) -> int:
        with self.lock:
            handle = self._number()
            self._events[handle] = None
            return handle

    def remove_event(self, event: int) -> None:
        with self.lock:
            self._point(event)
            del self._events[event]

    def record(self, event: int, stream: int) -> None:
        with self.lock:
            self._point(event)
            self.require_stream(stream)
            self._events[event] = (self.schedule.mark(stream), self.detector.recorded(stream))

    def wait(self, stream: int, event: int) -> None:
        with self.lock:
            found = self._point(event)
            self.require_stream(stream)
            if found is not None:  # one that was never recorded holds nobody
                self.schedule.hold(stream, found[0])
                self.detector.waits(stream, found[1])

    def is_done(self, event: int) -> bool:
        with self.lock:
            found = self._point(event)
            if found is None:
                return True
            if self.schedule.poll(found[0]):
                self.detector.host_knows(found[1])
                return True
            return False

    def sync_event(self, event: int) -> None:
        with self.lock:
            found = self._point(event)
            if found is not None:
                self.schedule.run_to(found[0])
                self.detector.host_knows(found[1])

    def synchronize(self) -> None:
        with self.lock:
            self.schedule.run_all()
            self.detector.host_knows_all()

    def abandon(self) -> None:
        """Forget what is queued; it never runs."""
        with self.lock:
            self.schedule.clear()

    def _point(self, event: int) -> tuple[Point, Clock] | None:
        if event not in self._events:
            raise DeviceError("sim", f"use of event {event}", 400, "invalid handle", "no such event")
        return self._events[event]

    def _number(self) -> int:
        self._next += 1
        return self._next

    # -- operations

    def enqueue(
        self,
        stream: int,
        name: str,
        run: Callable[[], None],
        reads: Sequence[Access] = (),
        writes: Sequence[Access] = (),
    ) -> None:
        """Queue ``run``, which touches these cells and no others."""
        with self.lock:
            self.require_stream(stream)
            operation = Operation(name, f"stream {stream}", stack())
            race = self.detector.queued(stream, operation, reads, writes)
            if self.schedule.queued + 1 == self.late:
                self.last_late = operation

            def execute() -> None:
                for access in (*reads, *writes):
                    if access.allocation.freed:
                        raise DeviceError(
                            "sim", name, 700, "illegal address", f"{access.allocation.name} was freed before it ran"
                        )
                run()

            try:
                self.schedule.put(stream, execute)
            finally:  # what runs at once may fail because of the race, which is the thing to tell
                self._found(race)

    def host_access(self, address: int, nbytes: int, *, writing: bool) -> None:
        """The host is about to touch memory of the device or page-locked memory."""
        allocation = self.memory.find(address)
        if allocation is not None and nbytes:
            self.host_touches(self.region(address, (nbytes,), (1,), 1), writing=writing)

    def host_touches(self, access: Access, *, writing: bool) -> None:
        with self.lock:
            what = "a write by the host" if writing else "a read by the host"
            self._found(self.detector.on_host(what, access, writing=writing))

    def _found(self, race: Race | None) -> None:
        if race is None:
            return
        if not self.collect:
            raise race
        self.races.append(race)

    def clashes(self, access: Access) -> bool:
        """The host may not write these cells now: something queued that it does not know to be done touches them."""
        with self.lock:
            return self.detector.on_host("", access, writing=True) is not None

    def released(self, address: int, nbytes: int) -> None:
        """The host gives memory of the device or page-locked memory up; it is poisoned, which is a write."""
        with self.lock:
            found = self.memory.find(address)
            if found is not None and nbytes:
                access = self.region(address, (nbytes,), (1,), 1)
                self._found(self.detector.on_host("the release of the memory", access, writing=True))
                found.poison(address - found.base, nbytes)

    # -- cells

    def region(self, address: int, shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> Access:
        """Strided cells that begin at ``address``; ``DeviceError`` if they do not lie in one piece of memory."""
        allocation = self._require(address)
        found = region(allocation, address - allocation.base, shape, strides, itemsize)
        if not found.is_empty:
            self._inside(found)
        return found

    def scattered(self, addresses: NDArray[np.int64], itemsize: int) -> list[Access]:
        """Cells at ``addresses``, all of one allocation."""
        if not addresses.size:
            return []
        allocation = self._require(int(addresses[0]))
        found = scattered(allocation, addresses - allocation.base, itemsize)
        self._inside(found)
        return [found]

    def array(self, array: NDArray[Any]) -> Access:
        """The cells of an array over the device's memory."""
        return self.region(array.__array_interface__["data"][0], array.shape, array.strides, array.itemsize)

    def _inside(self, access: Access) -> None:
        low, high = access.bounds
        outside = max(-low, high - len(access.allocation.bytes))
        if outside > 0:
            where = f"{outside} bytes {'before' if -low == outside else 'behind'} {access.allocation.name}"
            raise DeviceError("sim", "access", 700, "illegal address", where)

    def _require(self, address: int) -> Allocation:
        found = self.memory.find(address)
        if found is None or found.freed:
            what = f"no memory of the device at {address:#x}" if found is None else f"{found.name} was freed before"
            raise DeviceError("sim", "access", 700, "illegal address", what)
        return found

    def name(self, address: int, name: str, row_nbytes: int = 0) -> None:
        """What the memory at ``address`` is called in reports, and how many bytes its rows have."""
        allocation = self._require(address)
        allocation.call(address - allocation.base, name, row_nbytes)
