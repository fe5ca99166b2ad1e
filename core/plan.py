"""From checked tasks to a packet: per field one group of rows, never a loop over fields times tasks.

The planner holds no field's name: it reads each field's rules (F1) and the quantities that they name.
"""

from __future__ import annotations

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
        self.layout, self.only = layout, only
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
        slots = np.array(checked.take_slots, np.intp)
        released = {slot for _, slot in checked.releases}
        cleared = np.array(sorted(released - set(checked.take_slots)), np.intp)
        dirty = np.isin(slots, list(released)) if released else np.zeros(len(slots), bool)
        out: list[Segment] = []
        if len(slots) or len(cleared):
            any_dirty = bool(dirty.any())
            for p in self.fields:
                if p.cells:
                    self._clear(out, p, takes, slots, dirty if any_dirty else None, cleared)
                    if len(slots):
                        self._rules(out, p, "take", takes, slots, takes.all_rows if p.whole else dirty)
        if checked.chunk_slots:
            rows = np.array(checked.chunk_slots, np.intp)
            for p in self.chunked:
                if p.cells:
                    self._rules(out, p, "chunk", chunks, rows, chunks.all_rows)
        if len(checked.tables.slots):
            for p in self.decoded:
                if p.cells:
                    self._decode(out, p, checked.tables)
        self._casts.clear()  # what was cast lives on in the packet only
        return Packet(self.layout, out, "insert")

    def _cast(self, data: NDArray[Any], p: FieldPlan) -> NDArray[Any]:
        """``data`` in the field's dtype; fields of one dtype share the result, so that a packet carries it once."""
        if data.dtype == p.dtype:
            return data
        key = (id(data), p.dtype)
        if key not in self._casts:
            self._casts[key] = (data, data.astype(p.dtype))
        return self._casts[key][1]

    def _clear(
        self,
        out: list[Segment],
        p: FieldPlan,
        q: Quantities,
        slots: Rows,
        dirty: NDArray[np.bool_] | None,
        cleared: Rows,
    ) -> None:
        """Fill for rows that fall free, and for taken ones that no rule writes and that may not hold the fill."""
        stale = cleared
        if p.whole or dirty is not None:
            kept = ~self._written(p, "take", q)
            if not p.whole and dirty is not None:
                kept &= dirty
            stale = np.sort(np.concatenate((cleared, slots[kept])))
        if len(stale):
            out.append(Fill(p.index, stale, 0, p.cells, p.fill))

    @staticmethod
    def _written(p: FieldPlan, kind: str, q: Quantities) -> NDArray[np.bool_]:
        """For which tasks some rule writes the field: their own, or that of a decode task behind them."""
        if p.rules[kind] is not KEEP:
            return q.all_rows
        return q.decoded if p.rules["decode"] is not KEEP else ~q.all_rows

    def _rules(
        self, out: list[Segment], p: FieldPlan, kind: str, q: Quantities, slots: Rows, dirty: NDArray[np.bool_]
    ) -> None:
        """The rule of ``kind``; of a request with decode tasks behind it in this call, theirs, which come last."""
        if p.rules["decode"] is KEEP or not q.has_decodes:
            if p.rules[kind] is not KEEP:
                self._rule(out, p, p.rules[kind], q, q.all_rows, slots, dirty)
            return
        for rule, rows in ((p.rules[kind], ~q.decoded), (p.rules["decode"], q.decoded)):
            if rule is not KEEP and rows.any():
                self._rule(out, p, rule, q, rows, slots[rows], dirty[rows])

    def _rule(
        self,
        out: list[Segment],
        p: FieldPlan,
        rule: Rule,
        q: Quantities,
        rows: NDArray[np.bool_],
        slots: Rows,
        dirty: NDArray[np.bool_],
    ) -> None:
        """``rows``: which of ``q``'s tasks; ``slots`` and ``dirty`` are theirs already."""
        if isinstance(rule, Extra):
            self._spans(out, p, self._extras(p, rule, q), rows, slots, dirty)
        elif not isinstance(rule, Column):
            if rule != p.fill or p.whole:
                out.append(Fill(p.index, slots, 0, p.cells, rule))  # type: ignore[arg-type]  # KEEP never comes here
            elif dirty.any():
                out.append(Fill(p.index, slots[dirty], 0, p.cells, p.fill))
        elif q.is_scalar(rule.name):
            self._scalar(out, p, q.scalar(rule.name)[rows], slots, dirty)
        else:
            self._spans(out, p, q.span(rule.name), rows, slots, dirty)

    def _scalar(
        self, out: list[Segment], p: FieldPlan, column: NDArray[Any], slots: Rows, dirty: NDArray[np.bool_]
    ) -> None:
        data = column.astype(p.dtype)
        differs = data != p.dtype.type(p.fill)
        if not (differs | dirty).any():
            return
        out.append(_every_cell(p, data, slots))

    def _spans(
        self,
        out: list[Segment],
        p: FieldPlan,
        span: Span,
        rows: NDArray[np.bool_],
        slots: Rows,
        dirty: NDArray[np.bool_],
    ) -> None:
        source, length = span.source[rows], span.length[rows]
        wanted = (length > 0) | dirty
        if not wanted.any():
            return
        tail = np.where(dirty, p.cells, length)
        if not wanted.all():
            slots, source, length, tail = slots[wanted], source[wanted], length[wanted], tail[wanted]
        data = self._cast(span.data, p)
        out.append(Spans(p.index, slots, data, source, np.zeros_like(length), length, tail, p.fill))

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
            out.append(_every_cell(p, (tables.first + tables.length).astype(p.dtype), tables.slots))
        elif isinstance(rule, Column) and rule.name == "block_table":
            out.append(tables.spans(p.index, self._cast(tables.ids, p), p.cells, p.fill, p.whole))
        elif not isinstance(rule, (Column, Extra)):
            out.append(Fill(p.index, tables.slots, 0, p.cells, rule))  # type: ignore[arg-type]


def _every_cell(p: FieldPlan, data: NDArray[Any], slots: Rows) -> Block:
    """One number for each row, in all of its cells."""
    return Block(p.index, slots, 0, np.repeat(data[:, None], p.cells, axis=1) if p.cells > 1 else data[:, None])


def quantities(checked: Checked, takes: bool) -> Quantities:
    """The quantities of a call's takes or chunks, with the tables that its decode tasks leave them."""
    return Quantities(checked.takes if takes else checked.chunks, checked.tables.prefilled, takes)
