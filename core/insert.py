"""insert_tasks: the scheduler's tasks into the rows, all or nothing (rules I)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from slotline.core.backend import DONE, Event
from slotline.core.checks import Prefills
from slotline.core.errors import Fault, TaskError
from slotline.core.plan import quantities
from slotline.core.quantities import Ended, Quantities, Span
from slotline.core.segments import Spans
from slotline.core.slots import Occupant, SlotTable
from slotline.core.tasks import Task
from slotline.core.validate import Checked, check

if TYPE_CHECKING:
    from slotline.core.batch import SlotBatch

_ID = attrgetter("request_id")


@dataclass(frozen=True, kw_only=True, slots=True)
class InsertReceipt:
    """What an insertion did (I7)."""

    slots: dict[str, int] = field(default_factory=dict)
    """Of the requests that the tasks name: the slot of each that owns one now."""
    epochs: dict[str, int] = field(default_factory=dict)
    ended: dict[str, Ended] = field(default_factory=dict)
    """Requests that their handed-over token ended (D4); release them."""
    released: tuple[str, ...] = ()
    """Ids, ascending."""
    cut: dict[str, int] = field(default_factory=dict)
    """Requests whose max_dec_len was more than the model's length leaves, with the one that is used."""
    refused: tuple[Fault, ...] = ()
    """With ``on_invalid="skip"``: why tasks were left out."""
    event: Event = DONE
    """The insertion's place in the stream."""
    num_active: int = 0
    """Rows with a launch bound above 0."""
    has_prefill: bool = False
    """Some row of the next step prefills; rows in an open step do not count."""
    launch_tokens: int = 0
    """Tokens of the next step at most."""


def validate(batch: SlotBatch, tasks: Iterable[Task]) -> tuple[Fault, ...]:
    """The faults that ``insert_tasks`` would find, ascending by request id; nothing is inserted (I1)."""
    return check(batch, tasks).faults


def insert_tasks(
    batch: SlotBatch, tasks: Iterable[Task], *, stream: Any = None, on_invalid: str = "raise"
) -> InsertReceipt:
    """Insert tasks into their rows as one transaction.

    Everything is validated first. Bad tasks refuse the whole call with ``TaskError``, whose ``.errors`` lists every
    fault, and nothing has changed; with ``on_invalid="skip"`` the good tasks are inserted as if the others were not
    in the call, and the receipt lists the faults. Tasks of different requests commute (I3). ``stream``: where the
    writes are queued; None: the current one. Requests and tasks are read, never changed or kept waiting for: they may
    be reused when the call returns.

    Raises ``TaskError``; ``TypeError`` for something that is not a task; ``DeviceError`` if the device fails: what the
    host knows is as before, cells on the device may be written in part; the same call again, or a reset, mends them.
    """
    if on_invalid not in ("raise", "skip"):
        raise ValueError(f"on_invalid is {on_invalid!r}, allowed: 'raise', 'skip'")
    recorder, table = batch.recorder, batch.slots
    if recorder is not None:
        tasks = list(tasks)
    checked = check(batch, tasks)
    if checked.faults and on_invalid == "raise":
        raise TaskError(checked.faults, checked.hints)
    takes, chunks = quantities(checked, takes=True), quantities(checked, takes=False)
    packet, marks = batch.planner.plan(checked, takes, chunks)
    made = batch.sides.make(takes.p.requests if takes is not None else [])
    event = batch.buffers.apply(packet, stream) if len(packet) else DONE
    told = packet if recorder is not None else None
    del packet  # its memory, before more is taken
    batch.planner.note(checked, marks)
    del marks
    if checked.releases:
        slots = [slot for _, slot in checked.releases]
        table.vacate(slots)
        batch.sides.drop(slots)
    for group, rows in ((takes, checked.take_slots), (chunks, checked.chunk_slots)):
        if group is not None:
            _set_rows(table, rows, group)
    ended, cut = (_ended(takes), _cut(takes)) if takes is not None else ({}, {})
    del takes, chunks, group
    if checked.takes is not None and checked.take_slots:
        _take(table, checked.takes, checked.take_slots)
    if checked.chunks is not None:
        _continue(table, checked.chunks, checked.chunk_slots)
    if len(checked.tables.slots):
        _decode(batch, checked)
    batch.sides.put(checked.take_slots, made)
    if recorder is not None and told is not None:
        recorder.inserted(list(tasks), checked, told)
    if batch.sides.released or batch.sides.inserted:
        _tell(batch, checked)
    by_id, occupants = table.by_id, table.occupants
    owned = {r: by_id[r] for r in checked.named if r in by_id}
    return InsertReceipt(
        slots=owned,
        epochs={r: occupants[slot].epoch for r, slot in owned.items()},  # type: ignore[union-attr]  # it is owned
        ended=ended,
        released=tuple(sorted([request_id for request_id, _ in checked.releases])),
        cut=cut,
        refused=checked.faults,
        event=event,
        num_active=batch.num_active,
        has_prefill=batch.has_prefill,
        launch_tokens=batch.launch_tokens,
    )


def _set_rows(table: SlotTable, slots: list[int], q: Quantities) -> None:
    """The host's block tables and launch bounds of the rows."""
    span, rows = q.span("block_table"), np.array(slots, np.intp)
    assert isinstance(span, Span)
    tail = span.length if q.takes else np.maximum(span.length, table.num_blocks[rows])
    known = span.known if q.takes else {}
    Spans(0, rows, span.data, span.source, q.zeros, span.length, tail, -1, known).write(table.blocks)
    table.num_blocks[rows] = span.length
    table.bound[rows] = q.launch_bound


def _take(table: SlotTable, takes: Prefills, slots: list[int]) -> None:
    """Epochs go in ascending request id over all that take a slot (S1)."""
    decodes, epoch = takes.handover, table.next_epoch
    occupants = [
        Occupant(t.request, 0, t.end, decodes or t.end == len(t.request.history), decodes) for t in takes.tasks
    ]
    for occupant in sorted(occupants, key=_ID) if len(occupants) > 1 else occupants:
        occupant.epoch = epoch
        epoch += 1
    table.next_epoch = epoch
    table.take(slots, occupants)


def _continue(table: SlotTable, chunks: Prefills, slots: list[int]) -> None:
    for task, slot in zip(chunks.tasks, slots, strict=True):
        occupant = table.occupant(slot)
        occupant.end, occupant.committed = task.end, False
        occupant.last = task.end == len(task.request.history)
    table.to_prefill[slots] = True


def _decode(batch: SlotBatch, checked: Checked) -> None:
    table, change = batch.slots, checked.tables
    cells, before = table.blocks.shape[1], table.num_blocks[change.slots].astype(np.int64)
    change.spans(0, change.ids, cells, -1, before).write(table.blocks)
    table.num_blocks[change.slots] = change.held


def _ended(takes: Quantities) -> dict[str, Ended]:
    if not takes.p.handover:
        return {}
    fates = zip(takes.p.tasks, takes.ended, strict=True)
    return {task.request_id: fate for task, fate in fates if fate is not None}


def _cut(takes: Quantities) -> dict[str, int]:
    p = takes.p
    if all(t.request.sampling.max_dec_len is None for t in p.tasks):
        return {}
    return {p.tasks[i].request_id: int(p.max_dec_len[i]) for i in np.flatnonzero(p.cut).tolist()}


def _tell(batch: SlotBatch, checked: Checked) -> None:
    """The engine's callbacks, last: everything is in place when they run."""
    taken = [
        (t.request_id, s, batch.epoch_of(t.request_id))
        for t, s in zip(checked.takes.tasks if checked.takes else (), checked.take_slots, strict=True)
    ]
    for request_id, slot in checked.releases:
        for released in batch.sides.released:
            released(request_id, slot)
    for request_id, slot, epoch in taken:
        for inserted in batch.sides.inserted:
            inserted(request_id, slot, epoch)
