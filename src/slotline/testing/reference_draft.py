"""The arrays of a draft level, token by token (rules L5, M1 to M5)."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from slotline.testing.reference_commit import plain
from slotline.testing.reference_rows import HANDOVER

if TYPE_CHECKING:
    from slotline.testing.reference import ReferenceBatch
    from slotline.testing.reference_rows import RefEntry, RefTicket

ANY_ID = None
"""A cell whose id nobody gave (a draft of -1): it must hold some id, whichever (M5)."""


@dataclass
class DraftRow:
    """What one row of a step gives a draft level to read; length 0: it takes no part."""

    tokens: list[int | None] = field(default_factory=list)
    start: int = 0
    """Position of the first token."""
    predicts: bool = False
    """The prediction behind its last token is wanted."""

    @property
    def positions(self) -> list[int]:
        return [self.start + j for j in range(len(self.tokens))]


def takes_part(ref: ReferenceBatch, entry: RefEntry, level: int) -> bool:
    """Whether a committed row is read at ``level``: its epoch lives, and T did not end it (L5)."""
    living = entry.row.epoch in ref.epochs.values()
    if not living or entry.stale or entry.length == 0:
        return False
    above = level > ref.config.num_levels
    if entry.goes_on:
        return True
    if entry.reason == HANDOVER:
        return not above
    continued = entry.row.end != entry.end
    return not entry.last and not continued and not above


def is_late(ref: ReferenceBatch, ticket: RefTicket, rows: Collection[str] | None) -> bool:
    """Whether a living row that is asked for is in a later step already: too late to draft for it."""
    living = set(ref.epochs.values())
    asked = [e for e in ticket.entries if e.row.epoch in living and (e.last or e.row.end == e.end)]
    return any(e.row.ticket is not ticket for e in asked if rows is None or e.row.request_id in rows)


def draft_row(ref: ReferenceBatch, entry: RefEntry, level: int, drafted: Sequence[int]) -> DraftRow:
    """The tokens and positions of one row; ``drafted``: its ids of the levels before, -1 = none."""
    if not takes_part(ref, entry, level):
        return DraftRow()
    row, levels = entry.row, ref.config.num_levels
    predicts = entry.last
    if level > levels:
        token = drafted[level - 2]
        return DraftRow([token if token >= 0 else ANY_ID], row.decoder - 1 + level - levels, predicts)
    known: list[int | None] = [*row.prompt, *row.output]
    known += [token if token >= 0 else ANY_ID for token in drafted]
    length = entry.length if entry.prefill else len(entry.tokens)
    first = entry.start + level
    return DraftRow(known[first : first + length], entry.start, predicts)


def draft_rows(
    ref: ReferenceBatch, ticket: RefTicket, level: int, drafted: Any = None, rows: Collection[str] | None = None
) -> list[DraftRow]:
    """One for each position of the step."""
    given = plain(drafted) if drafted is not None else [[]] * ref.config.max_num_seqs
    by_slot = {entry.slot: entry for entry in ticket.entries}
    found = []
    for slot in ticket.slots:
        entry = by_slot.get(slot)
        if entry is None or (rows is not None and entry.row.request_id not in rows):
            found.append(DraftRow())
        else:
            found.append(draft_row(ref, entry, level, given[slot]))
    return found


def packed_draft(
    ref: ReferenceBatch,
    ticket: RefTicket,
    level: int,
    num_tokens: int,
    drafted: Any = None,
    rows: Collection[str] | None = None,
) -> dict[str, list[int | None]]:
    """What ``prepare_draft`` must give for a committed ticket, as lists (``ANY_ID``: any id)."""
    config = ref.config
    now = {row.epoch: slot for slot, row in ref.occupied()}
    entries = {entry.slot: entry for entry in ticket.entries}
    found = draft_rows(ref, ticket, level, drafted, rows)
    before = _former(ref, ticket, level, found, drafted, rows)
    out: dict[str, list[int | None]] = {
        name: [] for name in ("input_ids", "positions", "batch_id_per_token", "hidden_rows", "logits_rows")
    }
    slots: list[int | None] = []
    q, k = [0], [0]
    for slot, row, hidden in zip(ticket.slots, found, before, strict=True):
        size = len(row.tokens)
        out["input_ids"] += row.tokens
        out["positions"] += row.positions
        out["hidden_rows"] += hidden
        q.append(q[-1] + size)
        k.append(k[-1] + (row.start + size if size else 0))
        if size:
            out["batch_id_per_token"] += [now[entries[slot].row.epoch]] * size
        if size and row.predicts:
            out["logits_rows"].append(q[-1] - 1)
            slots.append(slot)
    pads = {"input_ids": config.pad_token_id, "positions": 0, "batch_id_per_token": -1, "hidden_rows": 0}
    for name, pad in pads.items():
        out[name] += [pad] * (num_tokens - len(out[name]))
    size = config.max_num_seqs
    out["num_logits"] = [len(slots)]
    out["logits_rows"] += [0] * (size - len(slots))
    out["logits_slots"] = slots + [-1] * (size - len(slots))
    out["cu_seqlens_q"] = [*q, *[q[-1]] * (size + 1 - len(q))]
    out["cu_seqlens_k"] = [*k, *[k[-1]] * (size + 1 - len(k))]
    return out


def _former(
    ref: ReferenceBatch,
    ticket: RefTicket,
    level: int,
    found: Sequence[DraftRow],
    drafted: Any,
    rows: Collection[str] | None,
) -> list[list[int | None]]:
    """For each position, where its tokens' hidden states lie: in the step, or in the level before."""
    if level == 1:
        by_slot = {entry.slot: entry.length for entry in ticket.entries}
        sizes = [by_slot.get(slot, 0) for slot in ticket.slots]
    else:
        sizes = [len(row.tokens) for row in draft_rows(ref, ticket, level - 1, drafted, rows)]
    where: list[list[int | None]] = []
    first = 0
    for size, row in zip(sizes, found, strict=True):
        # Level M + 1 reads the last token's state alone; every other level one state for each token.
        skipped = size - 1 if level > ref.config.num_levels else 0
        where.append([first + skipped + j for j in range(len(row.tokens))])
        first += size
    return where


def same(got: Sequence[int], wanted: Sequence[int | None]) -> bool:
    """Equal, where ``ANY_ID`` stands for any id that is none below 0."""
    return len(got) == len(wanted) and all(g >= 0 if w is ANY_ID else g == w for g, w in zip(got, wanted, strict=True))
