"""What is queued on the simulated streams, and when it executes: as late as the rules allow, in a seeded order."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple

MODES = ("late", "random", "eager")
MOST_PENDING = 256
"""Operations after which some execute without being asked for; that is legal at any time."""


class Point:
    """A place in a stream that an event stands for."""

    __slots__ = ("done", "number", "stream")

    def __init__(self, stream: int, number: int, done: bool) -> None:
        self.stream, self.number, self.done = stream, number, done


class _Item(NamedTuple):
    number: int
    run: Callable[[], None] | None
    """None: a wait or a mark."""
    waits_for: Point | None
    marks: Point | None


class Schedule:
    """Streams of items. Each stream runs in order; a wait holds its stream until the point has passed."""

    def __init__(self, seed: int, mode: str, late: int | None = None) -> None:
        self.mode, self.draw = mode, random.Random(seed)
        self.late = late
        """Only so many operations run late, the rest at once; None: all. For shrinking."""
        self._luck = self.draw.choice((0.01, 0.05, 0.2))
        """How often a query makes something execute. A query that answers yes orders what comes, so it hides races."""
        self.queued = self.executed = 0
        self._streams: dict[int, deque[_Item]] = {}
        self._number = 0
        self._pending = 0

    @property
    def pending(self) -> int:
        """Operations that were queued and have not executed."""
        return self._pending

    def add(self, stream: int) -> None:
        self._streams[stream] = deque()

    def remove(self, stream: int) -> None:
        """Give a stream back; what is queued on it executes now."""
        self._run_to({stream: self._last(stream)})
        del self._streams[stream]

    def put(self, stream: int, run: Callable[[], None]) -> None:
        """Queue an operation."""
        self._append(stream, run=run)
        self.queued += 1
        self._pending += 1
        self._let_some_run()

    def mark(self, stream: int) -> Point:
        """The point behind what is queued on ``stream`` now."""
        queue = self._streams[stream]
        point = Point(stream, self._number + 1, done=not queue)
        if queue:
            self._append(stream, marks=point)
        return point

    def hold(self, stream: int, point: Point) -> None:
        """What is queued on ``stream`` from now on runs after ``point``."""
        if not point.done:
            self._append(stream, waits_for=point)

    def poll(self, point: Point) -> bool:
        """Whether the point has passed. Now and then something executes, so that one who asks on and on gets on."""
        if not point.done and self.draw.random() < self._luck:
            self._run_some(self.draw.randint(1, 4))
        return point.done

    def run_to(self, point: Point) -> None:
        """Execute what must come before ``point``, and no more, in any order that the streams allow."""
        if not point.done:
            self._run_to({point.stream: point.number})

    def run_all(self) -> None:
        self._run_to({stream: self._last(stream) for stream in self._streams})

    def clear(self) -> None:
        """Drop what is queued."""
        for queue in self._streams.values():
            queue.clear()
        self._pending = 0

    def _append(
        self,
        stream: int,
        run: Callable[[], None] | None = None,
        waits_for: Point | None = None,
        marks: Point | None = None,
    ) -> None:
        self._number += 1
        self._streams[stream].append(_Item(self._number, run, waits_for, marks))

    def _last(self, stream: int) -> int:
        queue = self._streams[stream]
        return queue[-1].number if queue else 0

    def _let_some_run(self) -> None:
        if self.mode == "eager" or (self.late is not None and self.queued > self.late):
            self.run_all()
        elif self.mode == "random" and self.draw.random() < 0.5:
            self._run_some(self.draw.randint(1, 4))
        elif self._pending > MOST_PENDING:
            self._run_some(self._pending - MOST_PENDING // 2)

    def _run_some(self, count: int) -> None:
        while count:
            ready = self._ready(self._streams)
            if not ready:
                return
            count -= self._step(self.draw.choice(ready))

    def _run_to(self, targets: dict[int, int]) -> None:
        """Up to the given items, and what these wait for on other streams."""
        waiting = list(targets)
        while waiting:
            stream = waiting.pop()
            for item in self._streams[stream]:
                if item.number > targets[stream]:
                    break
                point = item.waits_for
                if point is not None and not point.done and targets.get(point.stream, 0) < point.number:
                    targets[point.stream] = point.number
                    waiting.append(point.stream)
        while ready := self._ready(targets, targets):
            self._step(self.draw.choice(ready))

    def _ready(self, streams: Iterable[int], targets: dict[int, int] | None = None) -> list[int]:
        """Streams whose next item can go, below its target if there are targets."""
        found = []
        for stream in streams:
            queue = self._streams.get(stream)
            if not queue or (targets is not None and queue[0].number > targets[stream]):
                continue
            point = queue[0].waits_for
            if point is None or point.done:
                found.append(stream)
        return found

    def _step(self, stream: int) -> bool:
        """The next item of a stream, and the marks behind it; True if it was an operation."""
        queue = self._streams[stream]
        item = queue.popleft()
        if item.run is not None:
            self._pending -= 1
            self.executed += 1
            item.run()
        if item.marks is not None:
            item.marks.done = True
        while queue and (mark := queue[0].marks) is not None:
            queue.popleft()
            mark.done = True
        return item.run is not None
