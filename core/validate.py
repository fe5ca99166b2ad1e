"""Looking at all tasks of a call before anything is written (rules I1 to I3, S1).

``check`` gives what may be done and what is wrong. With bad tasks taken away the rest is checked as if they had not
been in the call, so "raise" and "skip" see the same faults.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from slotline.core.checks import PrefillChecks, Prefills
from slotline.core.errors import Fault
from slotline.core.extras import extra_row
from slotline.core.faults import Faults
from slotline.core.field import Extra
from slotline.core.sampling_checks import SamplingChecks
from slotline.core.tables import Tables, settle_tables
from slotline.core.tasks import AbortTask, DecodeTask, FinishTask, PreemptTask, PrefillTask, ReleaseTask, Task

if TYPE_CHECKING:
    from slotline.core.batch import SlotBatch


class Group:
    """The tasks of one request in one call."""

    __slots__ = ("broken", "decodes", "prefill", "release")

    def __init__(self) -> None:
        self.release: ReleaseTask | None = None
        self.prefill: PrefillTask | None = None
        self.decodes: list[DecodeTask] = []
        self.broken = False

    def add(self, task: Task) -> None:
        if isinstance(task, DecodeTask):
            self.decodes.append(task)
        elif isinstance(task, PrefillTask):
            self.broken |= self.prefill is not None or bool(self.decodes)
            self.prefill = task
        elif isinstance(task, (PreemptTask, AbortTask, FinishTask)):
            self.broken |= self.release is not None or self.prefill is not None or bool(self.decodes)
            self.release = task
        else:
            raise TypeError(
                f"a task is {task!r} ({type(task).__name__}), allowed: PrefillTask, DecodeTask, PreemptTask, "
                "AbortTask, FinishTask"
            )


class Checked:
    """What a call may do. Takes and chunks are sorted by slot, releases too."""

    def __init__(self) -> None:
        self.releases: list[tuple[str, int]] = []
        self.takes: Prefills | None = None
        self.take_slots: list[int] = []
        self.chunks: Prefills | None = None
        self.chunk_slots: list[int] = []
        self.tables: Tables
        self.named: list[str] = []
        self.faults: tuple[Fault, ...] = ()
        self.hints: tuple[str, ...] = ()


def check(batch: SlotBatch, tasks: Iterable[Task]) -> Checked:
    """Check every task; changes nothing."""
    given, checked = tasks if isinstance(tasks, list) else list(tasks), Checked()
    return checked if batch.usual.look(given, checked) else _Check(batch, given).result


class _Check:
    def __init__(self, batch: SlotBatch, tasks: Iterable[Task]) -> None:
        self.batch, self.config, self.table = batch, batch.config, batch.slots
        self.faults = Faults()
        self.result = Checked()
        self.groups: dict[str, Group] = {}
        for task in tasks:
            request_id = getattr(task, "request_id", "")
            group = self.groups.get(request_id)
            if group is None:
                group = self.groups[request_id] = Group()
            group.add(task)
        self.result.named = list(self.groups)
        self._order()
        self._releases()
        takes, chunks = self._prefills()
        self._slots(takes)
        self._arrange_chunks(chunks)
        self._decodes()
        self.result.faults, self.result.hints = self.faults.sorted()

    def _order(self) -> None:
        for request_id in [r for r, g in self.groups.items() if g.broken]:
            allowed = "one release, then one prefill, then decodes"
            self.faults.add(request_id, "request_id", request_id, allowed, "the order of one request's tasks")
            del self.groups[request_id]

    def _releases(self) -> None:
        for request_id, group in self.groups.items():
            if group.release is None:
                continue
            slot = self.table.by_id.get(request_id)
            if slot is None:
                self._unknown(request_id)
                group.release = None
            else:
                self.result.releases.append((request_id, slot))
        self.result.releases.sort(key=lambda pair: pair[1])

    def _unknown(self, request_id: str) -> None:
        self.faults.add(request_id, "request_id", request_id, "a request that owns a slot", "it owns no slot")

    def _prefills(self) -> tuple[Prefills, Prefills]:
        """The good takes, and the good chunks of requests that continue in their slots."""
        takes: list[PrefillTask] = []
        known: list[PrefillTask] = []  # chunks of the very request that was checked when it took its slot
        other: list[PrefillTask] = []
        for request_id, group in self.groups.items():
            task = group.prefill
            if task is None:
                continue
            slot = self.table.by_id.get(request_id)
            if slot is None or group.release is not None:
                takes.append(task)
            else:
                (known if task.request is self.table.occupant(slot).request else other).append(task)
        good = self._content(takes, fresh=True, named=True)
        chunks = self._content(known, fresh=False) + self._content(other, fresh=True)
        continuing = [t for t in (*known, *other) if self._continues(t)]
        kept = {id(t) for t in chunks}
        return self._columns(good), self._columns([t for t in continuing if id(t) in kept])

    def _content(self, tasks: list[PrefillTask], fresh: bool, named: bool = False) -> list[PrefillTask]:
        """The tasks without a fault of their own."""
        if not tasks:
            return []
        checks = PrefillChecks(self._columns(tasks), self.faults, self.batch.num_blocks)
        checks.chunk_range()
        checks.blocks()
        if fresh:
            checks.lengths()
            checks.token_ids()
            checks.drafts()
            SamplingChecks(checks).run()
            checks.hidden_state()
        self._extras(checks, "chunk" if not named else "handover" if checks.p.handover else "prefill")
        if named:
            self._named_slots(checks)
        return [t for t, bad in zip(tasks, checks.bad.tolist(), strict=True) if not bad]

    def _columns(self, tasks: Sequence[PrefillTask]) -> Prefills:
        return Prefills(self.config, tasks, self.batch.planner.words.of(tasks))

    def _extras(self, checks: PrefillChecks, kind: str) -> None:
        layout = self.batch.layout
        for f in layout:
            rule = f.rule(kind)
            if not isinstance(rule, Extra):
                continue
            for i, request in enumerate(checks.p.requests):
                if rule.name not in request.extra:
                    continue
                try:
                    extra_row(request.extra[rule.name], f.dtype, layout.row_shape(f.name), f.fill)
                except (TypeError, ValueError) as error:
                    checks.bad[i] = True
                    hint = f"extra[{rule.name!r}] for field {f.name!r}: {error}"
                    self.faults.add(request.request_id, "extra", rule.name, layout.row_shape(f.name), hint)

    def _free(self) -> set[int]:
        return set(self.table.free_slots()) | {slot for _, slot in self.result.releases}

    def _named_slots(self, checks: PrefillChecks) -> None:
        """A slot that a task names exists and belongs to no other request."""
        free = self._free()
        for i, task in enumerate(checks.p.tasks):
            if task.slot is None or task.slot in free:
                continue
            checks.bad[i] = True
            if not 0 <= task.slot < self.config.max_num_seqs:
                self.faults.add(task.request_id, "slot", task.slot, self.config.max_num_seqs, "slots are 0 to S - 1")
            else:
                owner = self.table.occupant(task.slot).request_id
                self.faults.add(task.request_id, "slot", task.slot, owner, "another request owns it")

    def _slots(self, takes: Prefills) -> None:
        """S1: releases first, then named slots, then the lowest free ones in ascending request id."""
        free = self._free()
        slot_of: dict[str, int] = {}
        claims: dict[int, list[str]] = {}
        unnamed = []
        for task in takes.tasks:
            if task.slot is None:
                unnamed.append(task.request_id)
            else:
                claims.setdefault(task.slot, []).append(task.request_id)
        for slot, claimants in claims.items():
            if len(claimants) == 1:
                slot_of[claimants[0]] = slot
                free.discard(slot)
                continue
            for request_id in claimants:
                self.faults.add(request_id, "slot", slot, tuple(sorted(claimants)), "two requests claim it")
        lowest = sorted(free)
        unnamed.sort()
        slot_of.update(zip(unnamed, lowest, strict=False))
        for request_id in unnamed[len(lowest) :]:
            self.faults.add(request_id, "slot", None, len(lowest), "no slot is free; release some first")
        order = sorted((slot_of[t.request_id], i) for i, t in enumerate(takes.tasks) if t.request_id in slot_of)
        self.result.take_slots = [slot for slot, _ in order]
        self.result.takes = _arranged(takes, [i for _, i in order])

    def _arrange_chunks(self, chunks: Prefills) -> None:
        order = sorted((self.table.by_id[t.request_id], i) for i, t in enumerate(chunks.tasks))
        self.result.chunk_slots = [slot for slot, _ in order]
        self.result.chunks = _arranged(chunks, [i for _, i in order])

    def _continues(self, task: PrefillTask) -> bool:
        """A request that owns a slot continues where its committed chunk ended, with the same history."""
        slot = self.table.by_id[task.request_id]
        occupant = self.table.occupant(slot)
        add, before = self.faults.add, len(self.faults)
        if self.config.role == "decode":
            add(task.request_id, "start", task.start, None, "role decode never continues; abort or preempt first")
        elif occupant.in_open_step:
            add(task.request_id, "start", task.start, occupant.end, "commit the step first")
        elif occupant.last or not occupant.committed:
            add(task.request_id, "start", task.start, occupant.end, "abort or preempt first")
        elif task.start != occupant.end:
            add(task.request_id, "start", task.start, occupant.end, "a chunk continues where the last one ended")
        if not _same_history(task, occupant.request):
            add(task.request_id, "prompt_token_ids", len(task.request.history), len(occupant.request.history),
                "another history than at the start; abort or preempt first")  # fmt: skip
        if task.slot is not None and task.slot != slot:
            add(task.request_id, "slot", task.slot, slot, "a request continues in its own slot")
        return len(self.faults) == before

    def _decodes(self) -> None:
        """Whose tables change, with the tables of takes and chunks as what decode tasks start from."""
        owned: dict[str, Any] = {}
        for prefills in (self.result.takes, self.result.chunks):
            if prefills is not None:
                owned.update((t.request_id, t.block_table) for t in prefills.tasks)
        released = {request_id for request_id, _ in self.result.releases}
        decodes: list[tuple[str, list[DecodeTask]]] = []
        for request_id, group in self.groups.items():
            if not group.decodes:
                continue
            if request_id in owned or (request_id in self.table.by_id and request_id not in released):
                decodes.append((request_id, group.decodes))
            else:
                for _ in group.decodes:
                    self._unknown(request_id)
        self.result.tables = settle_tables(decodes, owned, self.table, self.config, self.batch.num_blocks, self.faults)


def _same_history(task: PrefillTask, other: Any) -> bool:
    new = task.request
    return new is other or (
        new.num_prompt_tokens == other.num_prompt_tokens and np.array_equal(new.history, other.history)
    )


def _arranged(prefills: Prefills, order: Sequence[int]) -> Prefills:
    if list(order) == list(range(len(prefills.tasks))):
        return prefills
    rows = list(order)
    return Prefills(prefills.config, [prefills.tasks[i] for i in rows], prefills.words[rows])
