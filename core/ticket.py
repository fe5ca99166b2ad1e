"""Ticket: the rows that a step runs on, and whose they were (rules L3, S2)."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slotline.core.errors import Fault, TaskError
from slotline.core.packing import row_lengths
from slotline.core.segments import counted
from slotline.core.slots import Occupant

if TYPE_CHECKING:
    from slotline.core.batch import SlotBatch

SOURCE, PLACE, TAKEN, LAST = range(4)
"""Rows of ``Ticket.places``. For each slot now: the slot that its row had when the step was prepared, -1 if it is not
in the step. For each slot then: where its row is now, -1 if its epoch has ended; whether it is in the step; whether it
yields tokens."""


class Entry(NamedTuple):
    """A row of a step, as the host knew it when the step was prepared."""

    slot: int
    epoch: int
    occupant: Occupant
    last: bool
    """It yields tokens: a decode row, or the last chunk of a prefill."""
    end: int
    """Where its chunk ends in the history."""


class Taken(NamedTuple):
    """Which slots a step looks at, and which of them it runs on."""

    slots: list[int]
    inside: NDArray[np.intp]
    """The slots that it runs on, in its order."""
    occupants: list[Occupant]
    """Theirs."""
    bound: int
    """Tokens at most."""
    is_whole: bool
    """Every slot, in order."""


def take_rows(batch: SlotBatch, rows: Iterable[str] | None = None, skip: Iterable[str] = ()) -> Taken:
    """The rows that a step would run on: launch bound above 0, in no open step, not skipped (L1).

    ``TaskError`` for an unknown or doubled id; opens nothing.
    """
    table = batch.slots
    ready = (table.bound > 0) & ~table.in_open_step
    if rows is None:
        slots = list(range(table.size))
        left_out = _named(batch, "skip", skip)
        if left_out:
            ready[left_out] = False
        inside = np.flatnonzero(ready)
    else:
        slots = _named(batch, "rows", rows)
        left_out = _named(batch, "skip", skip)
        ready[left_out] = False
        order = np.array(slots, np.intp)
        inside = order[ready[order]]
    # Who has a launch bound has an owner.
    occupants = [o for slot in inside.tolist() if (o := table.occupants[slot]) is not None]
    return Taken(slots, inside, occupants, int(table.bound[inside].sum()), rows is None)


class Ticket:
    """The (row, epoch) pairs of one step. Open until it is committed or discarded.

    ``slots``: host list, the slot of each position (of ``rows``, else every slot in order).
    """

    def __init__(self, batch: SlotBatch, taken: Taken) -> None:
        self.batch = batch
        self.state = "open"
        self.result: Any = None
        """int32 [S, n], a tensor: what the commit decided of each row, see ``core.result``."""
        self.fetches = 0
        """Fetches of its result that were started."""
        self.taken = 0
        """The newest of them whose result was taken."""
        self.stale: frozenset[int] = frozenset()
        """Epochs that had ended at the commit."""
        self._former: list[Ticket | None] = []
        """The steps before, of its rows."""
        self.slots, self.inside, self.occupants, bound, self.is_whole = taken
        self._epochs = batch.slots.epochs[self.inside]
        self.epochs: list[int] = self._epochs.tolist()
        """Of the requests in the step, in the order of its rows."""
        self.last: NDArray[np.bool_] = np.array([o.last for o in self.occupants], bool)
        """Whether each of them yields tokens: a decode row, or the last chunk of a prefill."""
        self.ends = [o.end for o in self.occupants]
        """Where the newest chunk of each ended in the history."""
        self.num_tokens = 1 << max(0, bound - 1).bit_length()
        """T': the launch bound of its rows, rounded up to a power of two."""
        self.lengths: Any = None
        """int32 [S], a tensor: row lengths by slot when the step was prepared (rows outside the step: 0)."""

    @functools.cached_property
    def entries(self) -> list[Entry]:
        """The rows of the step, in its order."""
        numbers = (self.inside.tolist(), self.epochs, self.occupants, self.last.tolist(), self.ends)
        rows = zip(*numbers, strict=True)
        return [Entry(*row) for row in rows]

    def open(self) -> None:
        """From now on its rows are in an open step; last, so that a device that fails leaves nothing open."""
        self._former = [o.ticket for o in self.occupants]
        for occupant in self.occupants:
            occupant.ticket = self
        self.batch.slots.in_open_step[self.inside] = True

    def close(self, state: str) -> None:
        """It is committed or discarded; discarded, its rows' newest step is again the one before."""
        self.state = state
        if state == "discarded":
            self.batch.slots.in_open_step[list(self.current().values())] = False
            for occupant, former in zip(self.occupants, self._former, strict=True):
                if occupant.ticket is self:
                    occupant.ticket = former
        self._former = []

    def record_lengths(self) -> None:
        """Note on the device which rows have tokens."""

        def run(xp: Any, reads: Any, writes: Any) -> None:
            writes["lengths"][...] = row_lengths(xp, reads["seq_lens_this_time"], reads["rows"])

        out = self.batch.buffers.run_step(
            run, "ticket", reads=("seq_lens_this_time",), given={"rows": self.rows()}, made=[self.record]
        )
        self.lengths = out["lengths"]

    @property
    def record(self) -> tuple[str, tuple[int, ...], str]:
        """Name, shape and dtype of ``lengths``."""
        return ("lengths", (self.batch.slots.size,), "int32")

    def rows(self) -> NDArray[np.int32]:
        """int32 [3, S]: the slot of each position (0 where there is none); by slot, then by position: in the step."""
        rows = np.zeros((3, self.batch.slots.size), np.int32)
        used = slice(0, len(self.slots))
        rows[1, self.inside] = 1
        if self.is_whole:
            rows[0], rows[2] = counted(len(self.slots)), rows[1]
        else:
            rows[0, used] = self.slots
            rows[2, used] = rows[1, rows[0, used]]
        return rows

    @property
    def request_ids(self) -> list[str]:
        """The requests in the step, in the order of its rows."""
        return [o.request_id for o in self.occupants]

    def current(self) -> dict[int, int]:
        """For each epoch of the step that lives, the slot that it is in now."""
        by_epoch = self.batch.slots.by_epoch
        return {epoch: by_epoch[epoch] for epoch in self.epochs if epoch in by_epoch}

    def places(self) -> NDArray[np.int32]:
        """int32 [4, S]: ``SOURCE``, ``PLACE``, ``TAKEN``, ``LAST``, what the host knows of the rows."""
        places = np.zeros((4, self.batch.slots.size), np.int32)
        places[: PLACE + 1] = -1
        by_epoch = self.batch.slots.by_epoch
        then = now = self.inside
        if (self.batch.slots.epochs[then] != self._epochs).any():  # some moved, or ended
            now = np.array([by_epoch.get(epoch, -1) for epoch in self.epochs], np.intp)
        lives = now >= 0
        places[PLACE, then], places[SOURCE, now[lives]] = now, then[lives]
        places[TAKEN, then], places[LAST, then] = 1, self.last
        return places

    def discard(self) -> None:
        """Give the step up: its rows are as if it had never been prepared. ``TaskError`` if it is not open."""
        self.require("open", "discard")
        self.close("discarded")
        if self.batch.recorder is not None:
            self.batch.recorder.discarded(self)

    def require(self, state: str, doing: str) -> None:
        """``TaskError`` unless the ticket is in ``state``."""
        if self.state != state:
            hint = f"{doing} needs a step that is {state}"
            raise TaskError([Fault("", "step", self.state, state)], [hint])

    def __repr__(self) -> str:
        return f"Ticket({len(self.inside)} rows, {self.state})"


def require_ids(name: str, block: Any, step: Ticket, counts: Any = None) -> None:
    """``ValueError`` naming the first id of a host array that is no token id, in the rows of the step.

    ``block`` [S, n] by slot when the step was prepared. ``counts`` [S]: how many of each row count; None: the leading
    run of ids that are not below 0. Tensors are not looked at: that would wait for the device.
    """
    if not isinstance(block, np.ndarray) or not (counts is None or isinstance(counts, np.ndarray)):
        return
    rows = step.inside[step.last]
    ids = block[rows]
    if counts is None:
        wrong = (ids >= step.batch.config.vocab_size) & ~np.logical_or.accumulate(ids < 0, axis=1)
    else:
        inside = np.arange(ids.shape[1]) < counts[rows][:, None]
        wrong = inside & ((ids < -1) | (ids >= step.batch.config.vocab_size))
    if wrong.any():
        row, column = (int(n[0]) for n in np.nonzero(wrong))
        where = f"{name}[{rows[row]}, {column}]"
        raise ValueError(
            f"{where} is {ids[row, column]}, allowed: 0 to vocab_size - 1 = {step.batch.config.vocab_size - 1}"
        )


def request_ids(name: str, given: Any) -> list[str]:
    """The argument ``name`` as request ids, each once; ``TypeError`` for anything else, ``TaskError`` for doubles."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise TypeError(f"{name} is {given!r}, allowed: a list of request ids")
    ids = list(given)
    for request_id in ids:
        if not isinstance(request_id, str):
            raise TypeError(f"{name} holds {request_id!r}, allowed: request ids, which are text")
    doubled = sorted({r for r in ids if ids.count(r) > 1}) if len(set(ids)) < len(ids) else []
    if doubled:
        raise TaskError([Fault(r, "request_id", r, "each row once") for r in doubled])
    return ids


def _named(batch: SlotBatch, name: str, given: Any) -> list[int]:
    return [batch.slot_of(r) for r in request_ids(name, given)]


def require_step(step: Any, state: str, doing: str, batch: SlotBatch) -> None:
    """``TypeError`` unless ``step`` is one; ``TaskError`` unless it is of ``batch`` (epochs are a batch's own), and in
    ``state``.
    """
    if not isinstance(step, Ticket):
        raise TypeError(f"{doing}: step is {step!r}, needed: what prepare_step or batch.ticket gave")
    if step.batch is not batch:
        raise TaskError([Fault("", "step", "of another batch", "of this batch")], [f"{doing}: the step is another's"])
    step.require(state, doing)
