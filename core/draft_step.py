"""Preparing a draft: what the MTP heads read at each level, packed like the step before it (rules L5, M1 to M5)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slotline.core import result
from slotline.core.drafts import require_newest
from slotline.core.errors import Fault, TaskError
from slotline.core.mtp import resolve
from slotline.core.namespace import Array, cumulated, whole
from slotline.core.packing import Grid, spread, wanted_logits, write_all
from slotline.core.step import specs
from slotline.core.stop import FinishReason
from slotline.core.ticket import PLACE, Ticket, request_ids, require_ids, require_step

if TYPE_CHECKING:
    from slotline.core.batch import SlotBatch

THEN, NOW, ASKED, IS_ROW = range(4)
"""By position: the slot when the step was prepared (0 where the step has no row), the slot now, whether the row is
asked for and may take part, whether the step has a row there."""
READS = ("mtp.input_ids", "mtp.lookahead_tokens")


class Draft(NamedTuple):
    """A draft level's arrays, tensors of the backend; all int32 but the ids. T' is the step's.

    The rows lie at the step's positions; one that takes no part has length 0.
    """

    input_ids: Any
    """[T'], the pad token behind the last"""
    positions: Any
    """[T'], 0 behind the last"""
    batch_id_per_token: Any
    """[T'], the slot that the token's row is in now, -1 behind the last"""
    cu_seqlens_q: Any
    """[S + 1], by position"""
    cu_seqlens_k: Any
    """[S + 1], by position: what lies in the level's KV cache before, and the row's tokens"""
    hidden_rows: Any
    """[T'], where the token's hidden state is: among the step's packed tokens at level 1, else among the level's
    before; 0 behind the last"""
    logits_rows: Any
    """[S], the last token of each row that is drafted for, 0 behind the last"""
    logits_slots: Any
    """[S], for each of them its row in ``drafted`` and ``draft_tokens``: the slot when the step was prepared; -1
    behind"""
    num_logits: Any
    """[1]"""

    @property
    def num_tokens(self) -> int:
        """T'."""
        return int(self.input_ids.shape[0])


def prepare_draft(
    batch: SlotBatch, step: Ticket, level: int, drafted: Any = None, rows: Iterable[str] | None = None
) -> Draft:
    """The packed arrays of draft level ``level`` (1 to K), after the step's commit (L5).

    - Levels 1 to M: a prefill's chunk [start, end) reads history[start + level : end + level] (M1); where the history
      ends come the sample and the drafts. A decode row is the chunk [d, d + a), d its seq_lens_decoder before the
      commit and a the tokens accepted. Rows that a handover ended take part, rows that the stop rule ended do not.
    - Levels above M run head M on one token of each row that goes on: the draft before, one position further.
    - ``drafted`` [S, level - 1]: the drafts of the levels before, by slot when the step was prepared; a tensor of the
      backend or a host array; None at level 1. Where it says nothing (-1) the pad token stands: no id below 0 lies
      within the lengths (M5).
    - ``rows``: only these requests, the same at all levels of a step; None: all of the step.

    A row takes part while its epoch lives; a chunk that was continued since the commit does not. Nothing is read back;
    the arrays are new. Raises ``TaskError`` if the step is not committed or one of its rows is in a later step already,
    ``ValueError`` for a level or an array out of bounds, ``LayoutError`` without MTP fields.
    """
    require_step(step, "committed", "prepare_draft", batch)
    config = batch.config
    batch.buffers.require(READS, "prepare_draft")
    if isinstance(level, bool) or not isinstance(level, (int, np.integer)) or not 1 <= level <= config.num_drafts:
        raise ValueError(f"level is {level!r}, allowed: 1 to {config.num_drafts}")
    level = int(level)
    size, levels, num_drafts = config.max_num_seqs, config.num_levels, config.num_drafts
    if drafted is None and level > 1:
        raise ValueError(f"drafted is None, needed at level {level}: the drafts before, [{size}, {level - 1}]")
    shape = (size, level - 1)
    before = np.full(shape, -1, np.int32) if drafted is None else batch.argument("drafted", drafted, shape)
    require_ids("drafted", before, step)
    places = _places(step, rows)

    def run(xp: Any, reads: Any, writes: Any) -> None:
        decided = xp.take(reads["result"], reads["rows"][THEN], axis=0)  # by position
        known = xp.take(whole(xp, reads["drafted"]), reads["rows"][THEN], axis=0)
        tokens = result.tokens(decided, num_drafts)
        chain = _Chain(xp, decided, tokens, known, reads["rows"], levels)
        if level <= levels:
            out = _shifted(chain, reads, step.num_tokens, level)
        else:
            out = _single(chain, step.num_tokens, level)
        ids = xp.where(out["input_ids"] < 0, config.pad_token_id, out["input_ids"])  # M5
        inside = out["batch_id_per_token"] >= 0
        then = reads["rows"][THEN]
        logits = wanted_logits(xp, out["cu_seqlens_q"], out.pop("wanted"), size)
        write_all(xp, writes, out | {
            "input_ids": xp.where(inside, ids, config.pad_token_id),
            "logits_rows": logits.rows,
            "logits_slots": xp.where(logits.inside, xp.take(then, logits.of, axis=0), -1),
            "num_logits": logits.number,
        })  # fmt: skip

    made = specs(Draft._fields, config, step.num_tokens, size)
    given, held = {"drafted": before, "rows": places}, {"result": step.result, "lengths": step.lengths}
    return Draft(**batch.buffers.run_step(run, "prepare_draft", reads=READS, given=given, held=held, made=made))


def _places(step: Ticket, rows: Iterable[str] | None) -> NDArray[np.int32]:
    """int32 [4, S] by position: ``THEN``, ``NOW``, ``ASKED``, ``IS_ROW``."""
    chosen = None if rows is None else set(request_ids("rows", rows))
    unknown = sorted((chosen or set()) - set(step.request_ids))
    if unknown:
        raise TaskError([Fault(r, "request_id", r, "a request of the step") for r in unknown])
    live = step.places()[PLACE]
    out = np.zeros((4, len(live)), np.int32)
    used = slice(0, len(step.slots))
    out[THEN, used], out[IS_ROW, used] = step.slots, 1
    out[NOW] = np.maximum(live[out[THEN]], 0)
    asked = {
        e.slot
        for e in step.entries
        if live[e.slot] >= 0
        and (chosen is None or e.occupant.request_id in chosen)
        and (e.last or e.occupant.end == e.end)  # not a chunk that was continued since
    }
    require_newest(step, "prepare_draft", asked)
    out[ASKED, used] = [slot in asked for slot in step.slots]
    return out


class _Chain:
    """What a draft level builds on; all by position, int32."""

    def __init__(self, xp: Any, decided: Array, tokens: Array, drafted: Array, rows: Array, levels: int) -> None:
        self.xp, self.tokens, self.drafted, self.now, self.levels = xp, tokens, drafted, rows[NOW], levels
        asked = rows[ASKED] > 0
        self.count, self.length = result.column(decided, "count"), result.column(decided, "length")
        self.start, self.prefills = result.column(decided, "start"), result.column(decided, "prefill") > 0
        reason = result.column(decided, "reason")
        self.on = asked & (result.column(decided, "on") > 0)
        self.drafts_for = self.on | (asked & (reason == int(FinishReason.HANDOVER)))
        chunk = asked & self.prefills & (self.count == 0)
        tokens_in = xp.where(self.prefills, self.length, self.count)
        self.shifted = xp.where(self.drafts_for | chunk, tokens_in, 0)
        """[S], row lengths at levels 1 to M"""


def _shifted(chain: _Chain, reads: Mapping[str, Array], num_tokens: int, level: int) -> dict[str, Array]:
    """Levels 1 to M: every token of the step that stands, shifted by ``level``."""
    xp = chain.xp
    grid = spread(xp, chain.shifted, num_tokens)
    at = grid.at
    cell = grid.j + level - 1  # in the chunk shifted by one
    slot = xp.take(chain.now, at, axis=0)
    # A prefill: what the insertion left, then the lookahead, where it is not the model's to say.
    predicted = xp.concat((chain.tokens[:, :1], chain.drafted), axis=1)  # [S, level]
    lookahead = whole(xp, reads["mtp.lookahead_tokens"][:, :level])
    resolved = resolve(xp, xp.take(lookahead, chain.now, axis=0), predicted)
    behind = cell + 1 - xp.take(chain.length, at, axis=0)
    width = reads["mtp.input_ids"].shape[1]
    chunk = whole(xp, reads["mtp.input_ids"][slot, xp.clip(cell, 0, width - 1)])
    of_prefill = xp.where(behind < 0, chunk, resolved[at, xp.clip(behind, 0, level - 1)])
    # A decode row: the tokens accepted, then the drafts.
    said = xp.concat((chain.tokens, chain.drafted), axis=1)
    count = xp.take(chain.count, at, axis=0)
    number = chain.tokens.shape[1]
    of_decode = said[at, xp.clip(xp.where(cell < count, cell, number + cell - count), 0, said.shape[1] - 1)]
    ids = xp.where(xp.take(chain.prefills, at, axis=0), of_prefill, of_decode)
    hidden = xp.arange(num_tokens, dtype=xp.int32)
    if level == 1:  # the step's rows may be longer: rejected drafts, and rows that take no part
        lengths = xp.take(whole(xp, reads["lengths"]), reads["rows"][THEN], axis=0)
        lengths = xp.where(reads["rows"][IS_ROW] > 0, lengths, 0)
        hidden = xp.take(cumulated(xp, lengths), at, axis=0) + grid.j
    start = chain.start
    return _packed(xp, grid, ids, slot, start, hidden) | {
        "cu_seqlens_k": cumulated(xp, xp.where(chain.shifted > 0, start + chain.shifted, 0)),
        "wanted": xp.astype(chain.drafts_for, xp.int32),
    }


def _single(chain: _Chain, num_tokens: int, level: int) -> dict[str, Array]:
    """Levels above M: one token of each row that goes on, the draft before, run by head M."""
    xp = chain.xp
    lengths = xp.astype(chain.on, xp.int32)
    grid = spread(xp, lengths, num_tokens)
    position = chain.start + chain.shifted - 1 + (level - chain.levels)
    hidden = xp.arange(num_tokens, dtype=xp.int32)
    if level == chain.levels + 1:
        hidden = xp.take(cumulated(xp, chain.shifted), grid.at + 1, axis=0) - 1
    ids = xp.take(chain.drafted[:, level - 2], grid.at, axis=0)
    return _packed(xp, grid, ids, xp.take(chain.now, grid.at, axis=0), position, hidden) | {
        "cu_seqlens_k": cumulated(xp, xp.where(chain.on, position + 1, 0)),
        "wanted": lengths,
    }


def _packed(xp: Any, grid: Grid, ids: Array, slot: Array, start: Array, hidden: Array) -> dict[str, Array]:
    return {
        "input_ids": ids,
        "positions": xp.where(grid.inside, xp.take(start, grid.at, axis=0) + grid.j, 0),
        "batch_id_per_token": xp.where(grid.inside, slot, -1),
        "cu_seqlens_q": grid.cu_seqlens,
        "hidden_rows": xp.where(grid.inside, hidden, 0),
    }
