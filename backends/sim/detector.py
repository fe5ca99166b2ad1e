"""The race detector: vector clocks over streams and the host, and for each byte who touched it last.

It works when an operation is queued: the order that streams, events and synchronisations make is known then, whatever
is executed when. The host counts as one thread, so that locks between its threads, which nobody tells, raise no alarm.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slotline.backends.sim.memory import Allocation
from slotline.backends.sim.report import Operation, Race

HOST = -1
Clock = dict[int, int]
"""For each stream the newest of its operations that is known to come before."""


class Access(NamedTuple):
    """Exact cells of one allocation: a strided region, or cells by their offsets."""

    allocation: Allocation
    offset: int
    """Of the first byte."""
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    itemsize: int = 1
    cells: NDArray[np.int64] | None = None
    """Byte offsets of cells, instead of shape and strides."""

    def of(self, shadow: NDArray[Any]) -> NDArray[Any]:
        """The part of ``shadow``, which has an entry for each byte."""
        return np.lib.stride_tricks.as_strided(
            shadow[self.offset :],
            (*self.shape, self.itemsize),
            (*(s * shadow.itemsize for s in self.strides), shadow.itemsize),
        )

    def index(self) -> NDArray[np.int64]:
        assert self.cells is not None
        found: NDArray[np.int64] = self.cells[:, None] + np.arange(self.itemsize)
        return found

    @property
    def is_empty(self) -> bool:
        return 0 in self.shape if self.cells is None else not self.cells.size


class _Shadow:
    """What one stream did to the bytes of one allocation: the clock of its last write and read of each."""

    __slots__ = ("newest_read", "newest_write", "reads", "writes")

    def __init__(self) -> None:
        self.reads: NDArray[np.int64] | None = None
        self.writes: NDArray[np.int64] | None = None
        self.newest_read = self.newest_write = 0


class Detector:
    """Who knows of whom. ``streams`` maps a stream to the clock of what is queued on it."""

    def __init__(self) -> None:
        self.host: Clock = {}
        self.streams: dict[int, Clock] = {}
        self._log: dict[int, deque[tuple[int, Operation]]] = {}

    def add(self, stream: int) -> None:
        self.streams[stream] = {stream: 0}
        self._log[stream] = deque()

    # -- the order

    def recorded(self, stream: int) -> Clock:
        """The point behind what is queued on ``stream``."""
        self._join(self.streams[stream], self.host)
        return dict(self.streams[stream])

    def waits(self, stream: int, point: Clock) -> None:
        self._join(self.streams[stream], point)

    def host_knows(self, point: Clock) -> None:
        """The host has seen that ``point`` passed."""
        self._join(self.host, point)
        for stream, log in self._log.items():
            known = self.host.get(stream, 0)
            while log and log[0][0] <= known:  # all that comes will be ordered behind it
                log.popleft()

    def host_knows_all(self) -> None:
        for clock in list(self.streams.values()):
            self.host_knows(clock)

    @staticmethod
    def _join(clock: Clock, other: Clock) -> None:
        for stream, count in other.items():
            if clock.get(stream, 0) < count:
                clock[stream] = count

    # -- accesses

    def queued(
        self, stream: int, operation: Operation, reads: Iterable[Access], writes: Iterable[Access]
    ) -> Race | None:
        """An operation on ``stream``; the first race that it makes, if it makes one."""
        clock = self.streams[stream]
        self._join(clock, self.host)
        clock[stream] += 1
        now = clock[stream]
        self._log[stream].append((now, operation))
        race = None
        for access in reads:
            race = race or self._check(access, stream, clock, operation, writing=False)
            self._note(access, stream, now, writing=False)
        for access in writes:
            race = race or self._check(access, stream, clock, operation, writing=True)
            self._note(access, stream, now, writing=True)
        return race

    def on_host(self, operation: Operation, access: Access, *, writing: bool) -> Race | None:
        """The host touches memory now. What is queued later comes after it, so nothing needs to be noted."""
        return self._check(access, HOST, self.host, operation, writing=writing)

    def _check(self, access: Access, me: int, clock: Clock, doing: Operation, *, writing: bool) -> Race | None:
        if access.is_empty:
            return None
        for stream, shadow in access.allocation.shadow.items():
            if stream == me:
                continue
            known = clock.get(stream, 0)
            if shadow.newest_write > known:
                found = self._unordered(access, shadow.writes, known)
                if found is not None:
                    return self._race(access, stream, found, "writes", doing, writing)
            if writing and shadow.newest_read > known:
                found = self._unordered(access, shadow.reads, known)
                if found is not None:
                    return self._race(access, stream, found, "reads", doing, writing)
        return None

    @staticmethod
    def _unordered(access: Access, clocks: NDArray[np.int64], known: int) -> tuple[int, int] | None:
        """The clock of an access that is not known to come before, and the byte."""
        if access.cells is None:
            part = access.of(clocks)
            if part.max() <= known:
                return None
            at = np.unravel_index(int(part.argmax()), part.shape)
            byte = access.offset + sum(int(i) * s for i, s in zip(at[:-1], access.strides, strict=True)) + int(at[-1])
            return int(part[at]), byte
        index = access.index()
        part = clocks[index]
        if part.max() <= known:
            return None
        at = np.unravel_index(int(part.argmax()), part.shape)
        return int(part[at]), int(index[at])

    def _race(
        self, access: Access, stream: int, found: tuple[int, int], did: str, doing: Operation, writing: bool
    ) -> Race:
        count, byte = found
        before = next((o for n, o in self._log[stream] if n == count), None)
        if before is None:
            before = Operation("an operation", f"stream {stream}", ())
        allocation = access.allocation
        return Race(allocation.name, allocation.where(byte), before, did, doing, "writes" if writing else "reads")

    def _note(self, access: Access, stream: int, now: int, *, writing: bool) -> None:
        if access.is_empty:
            return
        shadow = access.allocation.shadow.get(stream)
        if shadow is None:
            shadow = access.allocation.shadow[stream] = _Shadow()
        if writing:
            shadow.newest_write = now
            if shadow.writes is None:
                shadow.writes = np.zeros(len(access.allocation.bytes), np.int64)
            clocks = shadow.writes
        else:
            shadow.newest_read = now
            if shadow.reads is None:
                shadow.reads = np.zeros(len(access.allocation.bytes), np.int64)
            clocks = shadow.reads
        if access.cells is None:
            access.of(clocks)[...] = now
        else:
            clocks[access.index()] = now

    @property
    def logged(self) -> int:
        """Operations that are remembered, for reports to come."""
        return sum(len(log) for log in self._log.values())
