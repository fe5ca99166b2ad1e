"""From checked tasks to a packet: per field one group of rows, never a loop over fields times tasks.

The planner holds no field's name: it reads each field's rules (F1) and the quantities that they name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from slotline.core.extras import extra_row
from slotline.core.field import KEEP, Column, Extra, Field, Rule
from slotline.core.ids import EMPTY
from slotline.core.layout import BufferLayout, numpy_dtype
from slotline.core.packet import Packet
from slotline.core.quantities import Quantities, Span, concatenated
from slotline.core.segments import Block, Fill, Rows, Segment, Spans
from slotline.core.tables import Tables

if TYPE_CHECKING:
    from slotline.core.validate import Checked


class FieldPlan:
    """What the planner needs of one field, worked out once for a batch."""

    __slots__ = ("cells", "dtype", "field", "fill", "index", "rules", "whole")

    def __init__(self, layout: BufferLayout, index: int, field: Field, whole: bool, kind: str) -> None:
        self.index, self.field, self.whole = index, field, whole
        self.cells = layout.row_cells(field.name)
        self.dtype = numpy_dtype(field.dtype)
        self.fill = field.fill
        self.rules: dict[str, Rule] = {
            "take": field.rule(kind),
            "chunk": field.rule("chunk"),
            "decode": field.rule("decode"),
        }


class Planner:
    """Plans for one layout. ``adopted``: fields whose tensors the engine owns, which are written whole (P2)."""

    def __init__(self, layout: BufferLayout, adopted: set[str], only: set[str] | None) -> None:
        self.layout = layout
        kind = "handover" if layout.config.role == "decode" else "prefill"
        self.fields: list[FieldPlan] = []
        for index, f in enumerate(layout):
            if f.slot_axis is None or (only is not None and f.name not in only):
                continue
            whole = f.name in adopted if f.engine_writes is None else f.engine_writes
            self.fields.append(FieldPlan(layout, index, f, whole, kind))
        self._casts: dict[tuple[int, np.dtype[Any]], tuple[NDArray[Any], NDArray[Any]]] = {}
        self.chunked = [p for p in self.fields if p.rules["chunk"] is not KEEP]
        self.decoded = [p for p in self.fields if p.rules["decode"] is not KEEP]

    def clear(self, rows: Rows, operation: str) -> Packet:
        """Every field of ``rows`` back to its fill."""
        return Packet(self.layout, [Fill(p.index, rows, 0, p.cells, p.fill) for p in self.fields if p.cells], operation)

    def plan(self, checked: Checked, takes: Quantities, chunks: Quantities) -> Packet:
        """The packet of an insertion. Segments of one field have no cell in common (I3)."""
        self._casts.clear()
        slots = np.array(checked.take_slots, np.intp)
        released = {slot for _, slot in checked.releases}
        cleared = np.array(sorted(released - set(checked.take_slots)), np.intp)
        dirty = np.isin(slots, list(released)) if released else np.zeros(len(slots), bool)
        out: list[Segment] = []
        if len(slots) or len(cleared):
            for p in self.fields:
                if p.cells:
                    self._take(out, p, takes, slots, np.ones(len(slots), bool) if p.whole else dirty, cleared)
        if checked.chunk_slots:
            rows = np.array(checked.chunk_slots, np.intp)
            every = np.ones(len(rows), bool)
            for p in self.chunked:
                if p.cells:
                    self._rule(out, p, p.rules["chunk"], chunks, rows, every)
        if len(checked.tables.slots):
            for p in self.decoded:
                if p.cells:
                    self._decode(out, p, checked.tables)
        return Packet(self.layout, out, "insert")

    def _cast(self, data: NDArray[Any], p: FieldPlan) -> NDArray[Any]:
        """``data`` in the field's dtype; fields of one dtype share the result, so that a packet carries it once."""
        if data.dtype == p.dtype:
            return data
        key = (id(data), p.dtype)
        if key not in self._casts:
            self._casts[key] = (data, data.astype(p.dtype))
        return self._casts[key][1]

    def _take(
        self, out: list[Segment], p: FieldPlan, q: Quantities, slots: Rows, dirty: NDArray[np.bool_], cleared: Rows
    ) -> None:
        """Rows that are taken, and rows that only fall free. ``dirty`` rows do not hold the fill yet."""
        rule = p.rules["take"]
        stale = cleared
        if rule is KEEP and dirty.any():
            stale = np.sort(np.concatenate((cleared, slots[dirty])))
        if len(stale):
            out.append(Fill(p.index, stale, 0, p.cells, p.fill))
        if len(slots) and rule is not KEEP:
            self._rule(out, p, rule, q, slots, dirty)

    def _rule(
        self, out: list[Segment], p: FieldPlan, rule: Rule, q: Quantities, slots: Rows, dirty: NDArray[np.bool_]
    ) -> None:
        if isinstance(rule, Extra):
            self._spans(out, p, self._extras(p, rule, q), slots, dirty)
        elif not isinstance(rule, Column):
            if rule != p.fill or p.whole:
                out.append(Fill(p.index, slots, 0, p.cells, rule))  # type: ignore[arg-type]  # KEEP never comes here
            elif dirty.any():
                out.append(Fill(p.index, slots[dirty], 0, p.cells, p.fill))
        elif q.is_scalar(rule.name):
            self._scalar(out, p, q.scalar(rule.name), slots, dirty)
        else:
            self._spans(out, p, q.span(rule.name), slots, dirty)

    def _scalar(
        self, out: list[Segment], p: FieldPlan, column: NDArray[Any], slots: Rows, dirty: NDArray[np.bool_]
    ) -> None:
        data = column.astype(p.dtype)
        differs = data != p.dtype.type(p.fill)
        if not (differs | dirty).any():
            return
        block = data[:, None] if p.cells == 1 else np.repeat(data[:, None], p.cells, axis=1)
        out.append(Block(p.index, slots, 0, block))

    def _spans(self, out: list[Segment], p: FieldPlan, span: Span, slots: Rows, dirty: NDArray[np.bool_]) -> None:
        wanted = (span.length > 0) | dirty
        if not wanted.any():
            return
        tail = np.where(dirty, p.cells, span.length)
        first = np.zeros_like(span.length)
        spans = (slots, span.source, first, span.length, tail)
        if not wanted.all():
            spans = tuple(a[wanted] for a in spans)  # type: ignore[assignment]
        out.append(Spans(p.index, spans[0], self._cast(span.data, p), *spans[1:], p.fill))

    def _extras(self, p: FieldPlan, rule: Extra, q: Quantities) -> Span:
        shape = self.layout.row_shape(p.field.name)
        rows: list[NDArray[Any]] = []
        for request in q.p.requests:
            if rule.name in request.extra:
                rows.append(extra_row(request.extra[rule.name], p.field.dtype, shape, p.fill))
            else:
                rows.append(EMPTY)
        return concatenated(rows)

    def _decode(self, out: list[Segment], p: FieldPlan, tables: Tables) -> None:
        rule = p.rules["decode"]
        if isinstance(rule, Column) and rule.name == "num_blocks":
            out.append(Block(p.index, tables.slots, 0, (tables.first + tables.length).astype(p.dtype)[:, None]))
        elif isinstance(rule, Column) and rule.name == "block_table":
            source = np.cumsum(tables.length) - tables.length
            stop = tables.first + tables.length
            tail = np.where((tables.first == 0) | p.whole, p.cells, stop)
            data = self._cast(tables.ids, p)
            out.append(Spans(p.index, tables.slots, data, source, tables.first, tables.length, tail, p.fill))
        elif not isinstance(rule, (Column, Extra)):
            out.append(Fill(p.index, tables.slots, 0, p.cells, rule))  # type: ignore[arg-type]


def quantities(checked: Checked, takes: bool) -> Quantities:
    """The quantities of a call's takes or chunks, with the tables that its decode tasks leave them."""
    prefills = checked.takes if takes else checked.chunks
    settled = checked.tables.prefilled
    tables: Sequence[Any] = [settled.get(t.request_id, t.block_table) for t in prefills.tasks]
    return Quantities(prefills, tables, takes)
