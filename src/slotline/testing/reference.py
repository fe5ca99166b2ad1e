"""ReferenceBatch: what a batch must hold, written again in plain Python from the contract's tables.

It shares no code with the planner, the packets or the step functions, so that a difference between the two is a bug in
one of them. It assumes valid tasks unless it is asked for their faults.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from slotline.core.layout import BufferLayout
from slotline.core.tasks import AbortTask, DecodeTask, FinishTask, PreemptTask, PrefillTask, Task
from slotline.testing import reference_commit as commit_rules
from slotline.testing import reference_insert as insert_rules
from slotline.testing.reference_arrays import RefArrays, bits
from slotline.testing.reference_faults import Judge, RefFault
from slotline.testing.reference_rows import (
    HANDOVER,
    Mismatch,
    RefEnded,
    RefEntry,
    RefOutput,
    RefReceipt,
    RefRow,
    RefTicket,
    stop_rule,
)

if TYPE_CHECKING:
    from slotline.core.batch import SlotBatch

__all__ = ["Mismatch", "RefOutput", "RefReceipt", "RefTicket", "ReferenceBatch", "stop_rule"]


class ReferenceBatch:
    """The oracle: ``arrays`` holds every field of the layout, ``rows`` who owns which slot."""

    def __init__(self, layout: BufferLayout) -> None:
        self.layout, self.config = layout, layout.config
        self.num_blocks = layout.config.num_blocks
        self._arrays = RefArrays(layout)
        self.arrays: dict[str, NDArray[Any]] = self._arrays.by_name
        self.rows: list[RefRow | None] = [None] * layout.config.max_num_seqs
        self.next_epoch = 1
        self.stale_results = 0
        """Rows of committed tickets whose epoch had ended (S2)."""

    # -- looking at it

    def occupied(self) -> Iterator[tuple[int, RefRow]]:
        return ((slot, row) for slot, row in enumerate(self.rows) if row is not None)

    def slot_map(self) -> dict[str, int]:
        return {row.request_id: slot for slot, row in self.occupied()}

    @property
    def epochs(self) -> dict[str, int]:
        return {row.request_id: row.epoch for _, row in self.occupied()}

    @property
    def launch_tokens(self) -> int:
        return sum(row.bound for _, row in self.occupied())

    @property
    def num_active(self) -> int:
        return sum(row.bound > 0 for _, row in self.occupied())

    @property
    def has_prefill(self) -> bool:
        return any(row.encoder > 0 and not row.in_open_step for _, row in self.occupied())

    def _row(self, slot: int) -> RefRow:
        row = self.rows[slot]
        if row is None:
            raise LookupError(f"slot {slot} is free")
        return row

    def _slot_of_epoch(self, epoch: int) -> int | None:
        return next((slot for slot, row in self.occupied() if row.epoch == epoch), None)

    # -- inserting

    def faults(self, tasks: Iterable[Task]) -> list[RefFault]:
        """What is wrong with ``tasks``, ascending by request id (I1)."""
        return Judge(self, tasks).faults

    def insert_skip(self, tasks: Iterable[Task]) -> RefReceipt:
        """Insert the good ones, as if the refused were not in the call."""
        named = list(tasks)
        return self.insert(Judge(self, named).good, named=named)

    def insert(self, tasks: Iterable[Task], named: Iterable[Task] | None = None) -> RefReceipt:
        """Insert valid tasks. ``named``: the tasks that the receipt speaks of, if more than these."""
        todo = list(tasks)
        gone = sorted(t.request_id for t in todo if isinstance(t, (PreemptTask, AbortTask, FinishTask)))
        owned = self.slot_map()
        for request_id in gone:
            self._vacate(owned[request_id])
        ended, cut = self._prefills([t for t in todo if isinstance(t, PrefillTask)])
        owned = self.slot_map()
        for task in todo:
            if isinstance(task, DecodeTask):
                self._decode(owned[task.request_id], task)
        names = {t.request_id for t in (todo if named is None else named)}
        return RefReceipt(
            slots={r: s for r, s in self.slot_map().items() if r in names},
            epochs={r: e for r, e in self.epochs.items() if r in names},
            ended=ended,
            released=tuple(gone),
            cut=cut,
            launch_tokens=self.launch_tokens,
            num_active=self.num_active,
            has_prefill=self.has_prefill,
        )

    def _vacate(self, slot: int) -> None:
        self.rows[slot] = None
        self._arrays.clear(slot)

    def _prefills(self, tasks: list[PrefillTask]) -> tuple[dict[str, RefEnded], dict[str, int]]:
        owned = self.slot_map()
        takes = sorted((t for t in tasks if t.request_id not in owned), key=lambda t: t.request_id)
        named = {t.slot for t in takes if t.slot is not None}
        free = iter([s for s, row in enumerate(self.rows) if row is None and s not in named])
        ended: dict[str, RefEnded] = {}
        cut: dict[str, int] = {}
        for task in takes:
            slot = next(free) if task.slot is None else task.slot
            row = self.rows[slot] = insert_rules.new_row(self.config, task.request, self.next_epoch)
            self.next_epoch += 1
            fate = insert_rules.take(self._arrays, self.config, slot, row, task)
            if fate is not None:
                ended[task.request_id] = fate
            given = task.request.sampling.max_dec_len
            if given is not None and given > row.max_dec_len:
                cut[task.request_id] = row.max_dec_len
        for task in tasks:
            if task.request_id in owned:
                self._continue(owned[task.request_id], task)
        return ended, cut

    def _continue(self, slot: int, task: PrefillTask) -> None:
        row = self._row(slot)
        row.blocks = task.block_table.tolist()
        insert_rules.write_blocks(self._arrays, slot, row)
        insert_rules.write_chunk(self._arrays, self.config, slot, row, task)
        insert_rules.own_fields(self._arrays, self.config, slot, row, task, "chunk")

    def _decode(self, slot: int, task: DecodeTask) -> None:
        row = self._row(slot)
        if task.block_table is not None:
            row.blocks = task.block_table.tolist()
        else:
            assert task.new_blocks is not None
            row.blocks = row.blocks + task.new_blocks.tolist()
        insert_rules.write_blocks(self._arrays, slot, row)
        insert_rules.own_fields(self._arrays, self.config, slot, row, None, "decode")

    # -- steps

    def ticket(self, rows: Iterable[str] | None = None) -> RefTicket:
        """Open a step over ``rows`` (request ids), else over every slot (L3)."""
        slots = list(range(len(self.rows))) if rows is None else [self.slot_map()[r] for r in rows]
        ticket = RefTicket(slots, [])
        for slot in slots:
            row = self.rows[slot]
            if row is None or row.bound == 0 or row.in_open_step:
                continue
            ticket.entries.append(
                RefEntry(
                    slot, row, row.length, row.last, len(row.output), row.encoder > 0, row.decoder, row.end,
                    former=row.ticket,
                )
            )  # fmt: skip
            row.ticket = ticket
        return ticket

    def commit(self, ticket: RefTicket, accept_tokens: Any, accept_num: Any) -> None:
        """Apply a step's tokens to the rows that hold its epochs now (L4, S2)."""
        ticket.state = "committed"
        tokens, counts = commit_rules.plain(accept_tokens), commit_rules.plain(accept_num)
        for entry in ticket.entries:
            accepted = tokens[entry.slot][: counts[entry.slot]]
            slot = self._slot_of_epoch(entry.row.epoch)
            if slot is not None:
                commit_rules.commit_row(self._arrays, self.config, slot, entry, accepted)
                continue
            self.stale_results += 1
            entry.stale = True
            entry.tokens = accepted if entry.last and entry.length else []

    def drafts_are_late(self, ticket: RefTicket) -> bool:
        """Whether a row of the step is in a later step already (L5)."""
        living = set(self.epochs.values())
        return any(e.row.ticket is not ticket for e in ticket.entries if e.row.epoch in living)

    def commit_drafts(self, ticket: RefTicket, draft_tokens: Any) -> None:
        """Keep drafts for the rows that go on, and for the result of those that a handover ended (L5)."""
        drafts = commit_rules.plain(draft_tokens)
        for entry in ticket.entries:
            slot = self._slot_of_epoch(entry.row.epoch)
            mine = drafts[entry.slot]
            if entry.goes_on and slot is not None:
                commit_rules.commit_drafts_row(self._arrays, self.config, slot, entry, mine)
            elif entry.reason == HANDOVER:
                after = entry.step_idx + len(entry.tokens)
                entry.drafts = commit_rules.kept_drafts(self.config, entry.row, after, mine)

    def outputs(self, ticket: RefTicket) -> list[RefOutput]:
        """What ``fetch`` gives (L6)."""
        return [
            RefOutput(e.row.request_id, e.tokens, e.reason, e.match, e.drafts, e.stale)
            for e in ticket.entries
            if e.length > 0
        ]

    def taken(self, ticket: RefTicket) -> None:
        """The host has taken the result: ended rows are known, ``input_ids_cpu`` is filled (I7, M7)."""
        for entry in ticket.entries:
            slot = self._slot_of_epoch(entry.row.epoch)
            if slot is not None:
                commit_rules.take_result(self._arrays, slot, entry)

    # -- slots

    def swap(self, i: int, j: int) -> None:
        self._arrays.swap(i, j)
        self.rows[i], self.rows[j] = self.rows[j], self.rows[i]

    def condense(self) -> list[tuple[int, int]]:
        """The highest occupied row moves into the lowest free one, until no row below is free (S5)."""
        moves: list[tuple[int, int]] = []
        while True:
            used = [slot for slot, _ in self.occupied()]
            free = [slot for slot in range(len(used)) if self.rows[slot] is None]
            if not free:
                return moves
            moves.append((used[-1], free[0]))
            self.swap(used[-1], free[0])
            self._arrays.clear(used[-1])

    def release(self, request_ids: Iterable[str]) -> RefReceipt:
        return self.insert([FinishTask(r) for r in request_ids])

    def reset(self) -> None:
        """As new; epochs go on counting (S2, S6)."""
        self._arrays.fill_all()
        self.rows = [None] * len(self.rows)

    # -- comparing

    def compare(self, batch: SlotBatch) -> Mismatch | None:
        """The first difference to ``batch``: its map, its epochs, what the host knows, every byte of every field."""
        seen: dict[str, Any] = {
            "slot_map": {batch.owner(s): s for s in batch.occupied},
            "epochs": {batch.owner(s): batch.epoch_of(batch.owner(s) or "") for s in batch.occupied},
            "launch_tokens": batch.launch_tokens,
            "num_active": batch.num_active,
            "has_prefill": batch.has_prefill,
        }
        for name, got in seen.items():
            expected = self.slot_map() if name == "slot_map" else getattr(self, name)
            if got != expected:
                return Mismatch(name, None, None, None, expected, got)
        for f in self.layout:
            tensor = batch[f.name]
            read = batch.backend.read if f.on_device else batch.backend.host_view
            copies = [tensor if isinstance(tensor, np.ndarray) else read(tensor)]
            if f.residency == "mirrored":
                copies.append(batch.mirror(f.name))
            for copy in copies:
                found = self._difference(f.name, f.slot_axis, copy)
                if found is not None:
                    return found
        return None

    def _difference(self, name: str, axis: int | None, got: NDArray[Any]) -> Mismatch | None:
        expected = self.arrays[name]
        if (got.dtype, got.shape) != (expected.dtype, expected.shape):
            return Mismatch(name, None, None, None, (expected.dtype, expected.shape), (got.dtype, got.shape))
        if np.array_equal(bits(expected), bits(got)):
            return None
        left = expected[None] if axis is None else np.moveaxis(expected, axis, 0)
        right = got[None] if axis is None else np.moveaxis(got, axis, 0)
        left, right = left.reshape(len(left), -1), right.reshape(len(right), -1)
        unlike = bits(left) != bits(right)
        slot = int(np.argmax(unlike.any(axis=1)))
        cell = int(np.argmax(unlike[slot]))
        owner = None if axis is None else self.rows[slot]
        return Mismatch(
            name, None if axis is None else slot, owner.request_id if owner else None, cell,
            left[slot, cell].item(), right[slot, cell].item(),
        )  # fmt: skip
