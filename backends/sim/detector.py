"""The race detector: vector clocks over streams and the host, and for each byte who touched it last.

It works when an operation is queued: the order that streams, events and synchronisations make is known then, whatever
is executed when. The host counts as one thread, so that locks between its threads, which nobody tells, raise no alarm.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from slotline.backends.sim.access import Access
from slotline.backends.sim.report import Operation, Race, stack
from slotline.backends.sim.shadow import Shadow

HOST = -1
MOST_LOGGED = 1 << 14
"""Operations of one stream that are remembered for reports, where the host never learns that they are done."""

Clock = dict[int, int]
"""For each stream the newest of its operations that is known to come before."""


class Detector:
    """Who knows of whom. ``streams`` maps a stream to the clock of what is queued on it."""

    def __init__(self) -> None:
        self.host: Clock = {}
        self.streams: dict[int, Clock] = {}
        self._log: dict[int, deque[tuple[int, Operation]]] = {}

    def add(self, stream: int) -> None:
        self.streams[stream] = {stream: 0}
        self._log[stream] = deque(maxlen=MOST_LOGGED)

    def remove(self, stream: int) -> None:
        """No more is queued on ``stream``; what was queued still counts."""
        del self.streams[stream]
        self._forget(stream)

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
        for stream in list(self._log):
            self._forget(stream)

    def host_knows_all(self) -> None:
        for clock in list(self.streams.values()):
            self._join(self.host, clock)
        for stream, log in list(self._log.items()):
            if log:  # of a stream that was given back, too
                self._join(self.host, {stream: log[-1][0]})
            self._forget(stream)

    def _forget(self, stream: int) -> None:
        """Drop what the host knows to be done: all that comes is ordered behind it."""
        log, known = self._log[stream], self.host.get(stream, 0)
        while log and log[0][0] <= known:
            log.popleft()
        if not log and stream not in self.streams:
            del self._log[stream]

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
        for writing, accesses in ((False, reads), (True, writes)):
            for access in accesses:
                race = race or self._check(access, stream, clock, lambda: operation, writing=writing)
                self._note(access, stream, now, writing=writing)
        return race

    def on_host(self, what: str, access: Access, *, writing: bool) -> Race | None:
        """The host touches memory now. What is queued later comes after it, so nothing needs to be noted."""
        return self._check(access, HOST, self.host, lambda: Operation(what, "the host", stack()), writing=writing)

    def _check(
        self, access: Access, me: int, clock: Clock, doing: Callable[[], Operation], *, writing: bool
    ) -> Race | None:
        if access.is_empty:
            return None
        for stream, shadow in access.allocation.shadow.items():
            if stream == me:
                continue
            known = clock.get(stream, 0)
            for did, clocks in (("writes", shadow.writes), ("reads", shadow.reads if writing else None)):
                found = None if clocks is None else clocks.after(access, known)
                if found is not None:
                    return self._race(access, stream, found, did, doing(), writing)
        return None

    def _race(
        self, access: Access, stream: int, clocks: NDArray[np.int64], did: str, doing: Operation, writing: bool
    ) -> Race:
        """With the newest of the operations that are not known to come before, and all bytes that both touch."""
        count = int(clocks.max())
        before = next((o for n, o in self._log.get(stream, ()) if n == count), None)
        if before is None:
            before = Operation("an operation long ago", f"stream {stream}", ())
        where = access.allocation.where(access.touched()[clocks == count])
        return Race(where, before, did, doing, "writes" if writing else "reads")

    def _note(self, access: Access, stream: int, now: int, *, writing: bool) -> None:
        if access.is_empty:
            return
        allocation = access.allocation
        shadow = allocation.shadow.get(stream)
        if shadow is None:
            shadow = allocation.shadow[stream] = Shadow(len(allocation.bytes))
        shadow.note(access, now, self.host.get(stream, 0), writing=writing)

    @property
    def logged(self) -> int:
        """Operations that are remembered, for reports to come."""
        return sum(len(log) for log in self._log.values())
