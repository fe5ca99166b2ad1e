"""From checked tasks to a packet: per field or group of fields one part, never a loop over fields times tasks.

The planner holds no field's name: it reads each field's rules (F1) and the quantities that they name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slotline.core import commit, handover
from slotline.core.extras import extra_row
from slotline.core.field import KEEP, Column, Extra, Rule
from slotline.core.ids import EMPTY
from slotline.core.layout import BufferLayout
from slotline.core.packet import Packet, Part
from slotline.core.quantities import Quantities, Span, Tokens, concatenated
from slotline.core.reach import Mark, Reach
from slotline.core.rules import Constants, FieldPlan, ScalarRules
from slotline.core.runs import Runs
from slotline.core.scalars import Scalars
from slotline.core.segments import Block, Fill, Rows, Spans
from slotline.core.tables import Tables
from slotline.core.words import WordTable

if TYPE_CHECKING:
    from slotline.core.validate import Checked

_SHORT = 64
"""Cells up to which all rows are cleared as far as the one that reaches furthest."""


class Plan(NamedTuple):
    """A packet, and how far it takes which rows; to be noted once it is on its way."""

    packet: Packet
    marks: list[Mark]


class Planner:
    """Plans for one layout. ``adopted``: fields whose tensors the engine owns, which are written whole (P2)."""

    def __init__(self, layout: BufferLayout, adopted: set[str], only: set[str] | None) -> None:
        self.layout, self.only = layout, only
        kind = "handover" if layout.config.role == "decode" else "prefill"
        self.fields: list[FieldPlan] = []
        for index, f in enumerate(layout):
            if f.slot_axis is None or (only is not None and f.name not in only):
                continue
            whole = f.name in adopted if f.engine_writes is None else f.engine_writes
            plan = FieldPlan(layout, index, f, whole, kind)
            if plan.cells:
                self.fields.append(plan)
        constants = Constants()
        self._casts: dict[tuple[int, np.dtype[Any]], tuple[NDArray[Any], NDArray[Any]]] = {}
        changed = [p for p in self.fields if p.rules["decode"] not in (KEEP, p.rules["take"])]
        self._take = ScalarRules(self.fields, "take", constants, keeps=True)
        self._take_decoded = ScalarRules([p for p in self.fields if p not in changed], "take", constants, keeps=True)
        self._take_decoded.others += changed
        chunked = [p for p in self.fields if p.rules["chunk"] is not KEEP]
        changed = [p for p in chunked if p.rules["decode"] not in (KEEP, p.rules["chunk"])]
        self._chunk = ScalarRules(chunked, "chunk", constants, keeps=False)
        self._chunk_decoded = ScalarRules([p for p in chunked if p not in changed], "chunk", constants, keeps=False)
        decoded_only = [p for p in self.fields if p.rules["chunk"] is KEEP and p.rules["decode"] is not KEEP]
        self._chunk_decoded.others += [*changed, *decoded_only]
        self._decoded = [p for p in self.fields if p.rules["decode"] is not KEEP]
        self._rows = [p for p in self.fields if p.cells > 1 or p in self._take.others]
        self.words = WordTable(layout.config, constants.words)
        steps = {**commit.REACHES, **handover.REACHES}
        self.reach = Reach(layout, [(p.index, p.field) for p in self._rows if not p.whole], steps)

    # -- clearing

    def clear(self, rows: Rows, operation: str) -> Packet:
        """Every field of ``rows`` back to its fill."""
        parts: list[Part] = []
        self._clear(parts, rows)
        return Packet(self.layout, parts, operation)

    def _clear(self, out: list[Part], rows: Rows) -> None:
        for group, _, _ in self._take.groups:
            out.append(Scalars(group, rows, group.fills[None], True))
        for p in self._rows:
            self._blank(out, p, rows)

    def _blank(self, out: list[Part], p: FieldPlan, rows: Rows) -> None:
        """The fill as far as ``rows`` may hold something else."""
        if p.whole or not self.reach.has(p.index):
            out.append(Fill(p.index, rows, 0, p.cells, p.fill))
            return
        reach = self.reach.of(p.index, rows)
        most = int(reach.max())
        if not most:
            return
        if most <= _SHORT or len(rows) == 1:
            out.append(Fill(p.index, rows, 0, most, p.fill))
        else:
            zeros = np.zeros_like(reach)
            out.append(Spans(p.index, rows, np.empty(0, p.dtype), zeros, zeros, zeros, reach, p.fill))

    # -- inserting

    def note(self, checked: Checked, marks: Sequence[Mark]) -> None:
        """The packet of this plan is on its way."""
        reach = self.reach
        if checked.releases:
            reach.clear([slot for _, slot in checked.releases])
        if checked.take_slots:
            reach.take(checked.take_slots)
        reach.note(marks)

    def plan(self, checked: Checked, takes: Quantities | None, chunks: Quantities | None) -> Plan:
        """The packet of an insertion. Segments of one field have no cell in common (I3)."""
        out: list[Part] = []
        marks: list[Mark] = []
        taken = {*checked.take_slots} if checked.releases else set()
        cleared = [slot for _, slot in checked.releases if slot not in taken]
        if cleared:
            self._clear(out, np.array(cleared, np.intp))
        if takes is not None:
            released = {slot for _, slot in checked.releases}
            slots = np.array(checked.take_slots, np.intp)
            dirty = np.array([s in released for s in checked.take_slots], bool) if released else None
            rules = self._take_decoded if takes.has_decodes else self._take
            self._group(out, marks, "take", rules, takes, slots, dirty)
        if chunks is not None:
            slots = np.array(checked.chunk_slots, np.intp)
            rules = self._chunk_decoded if chunks.has_decodes else self._chunk
            self._group(out, marks, "chunk", rules, chunks, slots, chunks.all_rows)
        if len(checked.tables.slots):
            self._decode(out, marks, checked.tables)
        self._casts.clear()  # what was cast lives on in the packet only
        return Plan(Packet(self.layout, out, "insert"), marks)

    def _group(
        self,
        out: list[Part],
        marks: list[Mark],
        kind: str,
        rules: ScalarRules,
        q: Quantities,
        slots: Rows,
        dirty: NDArray[np.bool_] | None,
    ) -> None:
        """Tasks that take their slots, or continue in them. ``dirty``: rows that may not hold the fill; None: none."""
        out += rules.read(q.words, slots, dirty is not None)
        for p in rules.others if dirty is not None else rules.named:
            if not q.has_decodes or p.rules["decode"] in (KEEP, p.rules[kind]):
                self._rule(out, marks, p, p.rules[kind], q, None, slots, dirty)
                continue
            # Of a request with decode tasks behind it in this call, theirs, which come last.
            for rule, rows in ((p.rules[kind], ~q.decoded), (p.rules["decode"], q.decoded)):
                if rows.any():
                    self._rule(out, marks, p, rule, q, rows, slots[rows], None if dirty is None else dirty[rows])

    def _rule(
        self,
        out: list[Part],
        marks: list[Mark],
        p: FieldPlan,
        rule: Rule,
        q: Quantities,
        rows: NDArray[np.bool_] | None,
        slots: Rows,
        dirty: NDArray[np.bool_] | None,
    ) -> None:
        """``rows``: which of ``q``'s tasks, None: all; ``slots`` and ``dirty`` are theirs already."""
        if rule is KEEP:
            stale = slots if p.whole else slots[:0] if dirty is None else slots[dirty]
            if q.takes and len(stale):
                self._blank(out, p, stale)
            return
        if isinstance(rule, Extra):
            self._span(out, marks, p, self._extras(p, rule, q), q, rows, slots, dirty)
        elif not isinstance(rule, Column):
            if rule == p.fill and not p.whole:
                if dirty is not None and dirty.any():
                    self._blank(out, p, slots[dirty])
                return
            out.append(Fill(p.index, slots, 0, p.cells, rule))
            self._mark(marks, p, slots, p.cells)
        elif q.is_scalar(rule.name):
            column = q.scalar(rule.name)
            out.append(_every_cell(p, (column if rows is None else column[rows]).astype(p.dtype), slots))
            self._mark(marks, p, slots, p.cells)
        else:
            found = q.span(rule.name)
            if isinstance(found, Tokens):
                self._tokens(out, marks, p, found, rows, slots, dirty)
            else:
                self._span(out, marks, p, found, q, rows, slots, dirty)

    def _mark(self, marks: list[Mark], p: FieldPlan, slots: Rows, cells: Any) -> None:
        if self.reach.has(p.index):
            marks.append((p.index, slots, cells))

    def _tails(
        self, p: FieldPlan, length: NDArray[np.int64], slots: Rows, dirty: NDArray[np.bool_] | None
    ) -> NDArray[np.int64]:
        """Where the fill behind runs of ``length`` ends."""
        if p.whole:
            return np.full(len(slots), p.cells)
        if dirty is None:
            return length
        if not self.reach.has(p.index):
            return np.where(dirty, p.cells, length)
        return np.where(dirty, np.maximum(length, self.reach.of(p.index, slots)), length)

    def _tokens(
        self,
        out: list[Part],
        marks: list[Mark],
        p: FieldPlan,
        found: Tokens,
        rows: NDArray[np.bool_] | None,
        slots: Rows,
        dirty: NDArray[np.bool_] | None,
    ) -> None:
        if rows is not None:
            found = found.of(rows)
        tail = self._tails(p, found.length, slots, dirty)
        out.append(Runs(p.index, slots, found.source, found.low, found.length, tail, p.fill, p.dtype))
        self._mark(marks, p, slots, found.length)

    def _span(
        self,
        out: list[Part],
        marks: list[Mark],
        p: FieldPlan,
        span: Span,
        q: Quantities,
        rows: NDArray[np.bool_] | None,
        slots: Rows,
        dirty: NDArray[np.bool_] | None,
    ) -> None:
        if not len(span.data) and not p.whole and dirty is None:
            return
        source, length = (span.source, span.length) if rows is None else (span.source[rows], span.length[rows])
        tail = self._tails(p, length, slots, dirty)
        wanted = tail > 0
        known = span.known if tail is span.length else {}
        if not wanted.all():
            if not wanted.any():
                return
            slots, source, length, tail = slots[wanted], source[wanted], length[wanted], tail[wanted]
            known = {}
        data, first = self._cast(span.data, p), q.zeros[: len(length)]
        out.append(Spans(p.index, slots, data, source, first, length, tail, p.fill, known))
        self._mark(marks, p, slots, length)

    def _extras(self, p: FieldPlan, rule: Extra, q: Quantities) -> Span:
        shape = self.layout.row_shape(p.field.name)
        rows: list[NDArray[Any]] = []
        for request in q.p.requests:
            if rule.name in request.extra:
                rows.append(extra_row(request.extra[rule.name], p.field.dtype, shape, p.fill))
            else:
                rows.append(EMPTY)
        return concatenated(rows)

    def _cast(self, data: NDArray[Any], p: FieldPlan) -> NDArray[Any]:
        """``data`` in the field's dtype; fields of one dtype share the result, so that a packet carries it once."""
        if data.dtype == p.dtype:
            return data
        key = (id(data), p.dtype)
        if key not in self._casts:
            self._casts[key] = (data, data.astype(p.dtype))
        return self._casts[key][1]

    def _decode(self, out: list[Part], marks: list[Mark], tables: Tables) -> None:
        for p in self._decoded:
            rule = p.rules["decode"]
            if isinstance(rule, Column) and rule.name == "num_blocks":
                out.append(_every_cell(p, tables.held.astype(p.dtype), tables.slots))
                self._mark(marks, p, tables.slots, p.cells)
            elif isinstance(rule, Column) and rule.name == "block_table":
                reach = self.reach.of(p.index, tables.slots) if self.reach.has(p.index) else None
                out.append(tables.spans(p.index, self._cast(tables.ids, p), p.cells, p.fill, reach))
                self._mark(marks, p, tables.slots, tables.held)
            elif not isinstance(rule, (Column, Extra)):
                out.append(Fill(p.index, tables.slots, 0, p.cells, rule))  # type: ignore[arg-type]
                self._mark(marks, p, tables.slots, p.cells)


def _every_cell(p: FieldPlan, data: NDArray[Any], slots: Rows) -> Block:
    """One number for each row, in all of its cells."""
    return Block(p.index, slots, 0, np.repeat(data[:, None], p.cells, axis=1) if p.cells > 1 else data[:, None])


def quantities(checked: Checked, takes: bool) -> Quantities | None:
    """The quantities of a call's takes or chunks, with the tables that decode tasks leave them; None: none."""
    prefills = checked.takes if takes else checked.chunks
    if prefills is None or not prefills.tasks:
        return None
    return Quantities(prefills, checked.tables.prefilled, takes)
