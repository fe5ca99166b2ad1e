"""Ticket: the rows that a step runs on, and whose they were (rules L3, S2)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slotline.core.errors import Fault, TaskError
from slotline.core.slots import Occupant

if TYPE_CHECKING:
    from slotline.core.batch import SlotBatch
    from slotline.core.commit import Committed


class Entry(NamedTuple):
    """A row of a step, as the host knew it when the step was prepared."""

    slot: int
    epoch: int
    occupant: Occupant
    last: bool
    """It yields tokens: a decode row, or the last chunk of a prefill."""


class Taken(NamedTuple):
    """Which slots a step looks at, and which of them it runs on."""

    slots: list[int]
    entries: list[Entry]


def take_rows(batch: SlotBatch, rows: Iterable[str] | None = None, skip: Iterable[str] = ()) -> Taken:
    """The rows that a step would run on: launch bound above 0, in no open step, not skipped (L1).

    ``TaskError`` for an unknown or doubled id; opens nothing.
    """
    table = batch.slots
    slots = list(range(table.size)) if rows is None else _named(batch, rows)
    left_out = set(_named(batch, skip))
    entries = []
    for slot in slots:
        occupant = table.occupants[slot]
        if occupant is None or occupant.in_open_step or table.bound[slot] <= 0 or slot in left_out:
            continue
        entries.append(Entry(slot, occupant.epoch, occupant, occupant.last))
    return Taken(slots, entries)


class Ticket:
    """The (row, epoch) pairs of one step. Open until it is committed or discarded.

    ``slots``: host list, the slot of each position (of ``rows``, else every slot in order).
    """

    def __init__(self, batch: SlotBatch, taken: Taken) -> None:
        self.batch = batch
        self.state = "open"
        self.result: Committed | None = None
        self.slots, self.entries = taken
        for entry in self.entries:
            entry.occupant.ticket = self
        self.lengths: NDArray[Any] = batch.snapshot("seq_lens_this_time")
        """Row lengths [S] by slot, as they were when the step was prepared (rows outside the step: 0)."""
        inside = np.zeros(batch.slots.size, bool)
        inside[[e.slot for e in self.entries]] = True
        self.lengths[~inside] = 0

    @property
    def request_ids(self) -> list[str]:
        """The requests in the step, in the order of its rows."""
        return [e.occupant.request_id for e in self.entries]

    @property
    def epochs(self) -> list[int]:
        """Their epochs, in the same order."""
        return [e.epoch for e in self.entries]

    def current(self) -> dict[int, int]:
        """For each epoch of the step that lives, the slot that it is in now."""
        by_epoch = self.batch.slots.by_epoch
        return {e.epoch: by_epoch[e.epoch] for e in self.entries if e.epoch in by_epoch}

    def sources(self) -> NDArray[np.intp]:
        """[S]: for each slot now the slot that its row had when the step was prepared; -1: not in the step."""
        source = np.full(self.batch.slots.size, -1, np.intp)
        now = self.current()
        for entry in self.entries:
            if entry.epoch in now:
                source[now[entry.epoch]] = entry.slot
        return source

    def discard(self) -> None:
        """Give the step up: its rows are as if it had never been prepared. ``TaskError`` if it is not open."""
        self.require("open", "discard")
        self.state = "discarded"

    def require(self, state: str, doing: str, batch: SlotBatch | None = None) -> None:
        """``TaskError`` unless the ticket is in ``state``, and of ``batch``, if given: epochs are a batch's own."""
        if batch is not None and batch is not self.batch:
            raise TaskError(
                [Fault("", "step", "of another batch", "of this batch")], [f"{doing}: the step is another's"]
            )
        if self.state != state:
            hint = f"{doing} needs a step that is {state}"
            raise TaskError([Fault("", "step", self.state, state)], [hint])

    def __repr__(self) -> str:
        return f"Ticket({len(self.entries)} rows, {self.state})"


def _named(batch: SlotBatch, rows: Iterable[str]) -> list[int]:
    if isinstance(rows, str):
        raise TypeError(f"rows is {rows!r}, allowed: a list of request ids")
    ids = list(rows)
    doubled = sorted({r for r in ids if ids.count(r) > 1})
    if doubled:
        raise TaskError([Fault(r, "request_id", r, "each row once") for r in doubled])
    return [batch.slot_of(r) for r in ids]
