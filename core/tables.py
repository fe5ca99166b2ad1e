"""Block tables after the decode tasks of a call: appended to, or replaced (rules I2, I3)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slotline.core.checks import check_table, in_range
from slotline.core.config import BatchConfig
from slotline.core.faults import Faults
from slotline.core.ids import EMPTY, Ids
from slotline.core.segments import Spans
from slotline.core.tasks import DecodeTask

if TYPE_CHECKING:
    from slotline.core.slots import SlotTable

_FEW = 4
"""Rows up to which a loop over them is quicker."""
_ROWS = 128
"""Rows whose tables are compared with new ids at once."""


class Tables(NamedTuple):
    """What decode tasks do to block tables."""

    prefilled: dict[str, Ids]
    """The whole table of a request that is also prefilled in this call."""
    slots: NDArray[np.intp]
    """Rows [n] of other requests, ascending."""
    first: NDArray[np.int64]
    """Where each row's new ids begin [n]; 0: the whole table is new."""
    length: NDArray[np.int64]
    """How many there are [n]."""
    held: NDArray[np.int64]
    """How many blocks each row holds then [n]."""
    source: NDArray[np.int64]
    """Where each row's new ids begin in ``ids`` [n]."""
    ids: NDArray[Any]
    """They, row after row."""
    known: dict[Any, Any]
    """What segments of these rows share, see ``Spans``."""

    def spans(self, field: int, ids: NDArray[Any], cells: int, fill: Any, reach: NDArray[np.int64] | None) -> Spans:
        """The change as a segment: ``ids`` in the field's dtype, and fill behind it.

        ``reach`` [n]: how far the rows may differ from the fill already; None: anywhere.
        """
        tail, known = self.held, self.known
        if reach is None:
            tail, known = np.full(len(tail), cells), {}
        elif (reach > tail).any():
            tail, known = np.maximum(tail, reach), {}
        return Spans(field, self.slots, ids, self.source, self.first, self.length, tail, fill, known)


def tables_of(
    prefilled: dict[str, Ids],
    slots: NDArray[np.intp],
    first: NDArray[np.int64],
    length: NDArray[np.int64],
    ids: NDArray[Any],
) -> Tables:
    """With what follows from the rest."""
    return Tables(prefilled, slots, first, length, first + length, np.cumsum(length) - length, ids, {})


def settle_tables(
    decodes: Sequence[tuple[str, list[DecodeTask]]],
    prefilled: dict[str, Ids],
    table: SlotTable,
    config: BatchConfig,
    num_blocks: int | None,
    faults: Faults,
) -> Tables:
    """Fold the decode tasks of each request over its table. A bad task is flagged and left out of the fold."""
    settled: dict[str, Ids] = {}
    rows: list[tuple[int, int, Ids]] = []  # slot, first, ids
    simple, folded = _split(decodes, prefilled)
    if simple and not _good(simple, table, config, num_blocks):
        folded, simple = [*folded, *((r, [t]) for r, t in simple)], []
    for request_id, task in simple:
        slot = table.by_id[request_id]
        ids = task.new_blocks if task.new_blocks is not None else EMPTY
        rows.append((slot, int(table.num_blocks[slot]), ids))
    for request_id, tasks in folded:
        slot = table.by_id.get(request_id, -1)
        base = prefilled.get(request_id)
        if base is None:
            base = table.blocks[slot, : table.num_blocks[slot]].astype(np.int64)
        result = _fold(base, tasks, request_id, config, num_blocks, faults)
        if result is None:
            continue
        whole, ids = result
        if request_id in prefilled:
            settled[request_id] = ids
        elif whole:
            rows.append((slot, 0, ids))
        else:
            rows.append((slot, len(base), ids[len(base) :]))
    rows.sort(key=lambda row: row[0])
    return tables_of(
        settled,
        np.array([slot for slot, _, _ in rows], np.intp),
        np.array([first for _, first, _ in rows], np.int64),
        np.array([len(ids) for _, _, ids in rows], np.int64),
        np.concatenate([ids for _, _, ids in rows]) if rows else EMPTY,
    )


def _split(
    decodes: Sequence[tuple[str, list[DecodeTask]]], prefilled: dict[str, Ids]
) -> tuple[list[tuple[str, DecodeTask]], list[tuple[str, list[DecodeTask]]]]:
    """Requests with one appending task and nothing else, which are settled together, and all others."""
    simple, folded = [], []
    for request_id, tasks in decodes:
        one = tasks[0]
        if len(tasks) == 1 and one.block_table is None and one.new_blocks is not None and request_id not in prefilled:
            simple.append((request_id, one))
        else:
            folded.append((request_id, tasks))
    return simple, folded


def _good(
    appends: Sequence[tuple[str, DecodeTask]], table: SlotTable, config: BatchConfig, num_blocks: int | None
) -> bool:
    slots = np.array([table.by_id[r] for r, _ in appends], np.intp)
    lists = [t.new_blocks for _, t in appends if t.new_blocks is not None]
    lens = np.array([len(ids) for ids in lists], np.int64)
    return appends_are_good(slots, lens, np.concatenate(lists), table, config, num_blocks)


def appends_are_good(
    slots: NDArray[np.intp],
    lens: NDArray[np.int64],
    flat: Ids,
    table: SlotTable,
    config: BatchConfig,
    num_blocks: int | None,
) -> bool:
    """Whether all ids that are appended to the tables of ``slots`` exist, fit and are new in their rows."""
    top = np.iinfo(np.int32).max if num_blocks is None else num_blocks
    if len(slots) <= _FEW:
        return _few_are_good(slots, lens, flat.tolist(), table, config, top)
    held = table.num_blocks[slots]
    if not in_range(flat, top) or (held + lens > config.max_blocks_per_seq).any():
        return False
    ones = len(flat) == len(slots)
    rows = slots if ones else np.repeat(slots, lens)
    doubled: Any = False
    width, narrow = int(held.max()), flat.astype(np.int32)  # of one dtype, so that comparing takes no more memory
    for part in range(0, len(flat) if width else 0, _ROWS):  # bounded memory, however many ids
        at = slice(part, part + _ROWS)
        same = (table.blocks[rows[at], :width] == narrow[at, None]).any(axis=1)
        if config.null_block is not None:
            same &= flat[at] != config.null_block
        doubled |= same.any()
    if doubled:
        return False
    if ones:
        return True
    keys = (rows << 32) | flat
    if config.null_block is not None:
        keys = keys[flat != config.null_block]
    keys.sort()
    return not (keys[1:] == keys[:-1]).any()


def _few_are_good(
    slots: NDArray[np.intp], lens: NDArray[np.int64], ids: list[int], table: SlotTable, config: BatchConfig, top: int
) -> bool:
    begin = 0
    for slot, length in zip(slots.tolist(), lens.tolist(), strict=True):
        held, new = int(table.num_blocks[slot]), ids[begin : begin + length]
        begin += length
        real = [n for n in new if n != config.null_block]
        known = table.blocks[slot, :held].tolist()
        if held + length > config.max_blocks_per_seq or len(set(real)) < len(real):
            return False
        if not all(0 <= n < top for n in new) or any(n in known for n in real):
            return False
    return True


def _fold(
    base: Ids, tasks: Sequence[DecodeTask], request_id: str, config: BatchConfig, num_blocks: int | None, faults: Faults
) -> tuple[bool, Ids] | None:
    """(replaced, final table), or None if no task is good."""
    current, whole, changed = base, False, False
    for task in tasks:
        before = len(faults)
        if (task.block_table is None) == (task.new_blocks is None):
            given = "neither" if task.block_table is None else "both"
            faults.add(request_id, "block_table", given, "one", "give exactly one of block_table and new_blocks")
            continue
        appends = task.block_table is None
        field = "new_blocks" if appends else "block_table"
        ids = task.new_blocks if task.block_table is None else task.block_table
        assert ids is not None
        table = np.concatenate((current, ids)) if appends else ids
        if len(table) > config.max_blocks_per_seq:
            faults.add(request_id, field, len(table), config.max_blocks_per_seq, "ceil(max_model_len / block_size)")
        check_table(ids, table, request_id, field, faults, num_blocks, config.null_block)
        if len(faults) > before:
            continue
        current, whole, changed = table, whole or not appends, True
    return (whole, current) if changed else None
