"""Committing draft tokens for the next step (rules L5, M9)."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from slotline.core import result
from slotline.core.errors import Fault, TaskError
from slotline.core.namespace import Array, put, whole
from slotline.core.stop import FinishReason
from slotline.core.ticket import SOURCE, Ticket, require_ids, require_step

if TYPE_CHECKING:
    from slotline.core.batch import SlotBatch

WRITES = ("draft_tokens", "actual_draft_token_num", "seq_lens_this_time")


def commit_drafts(batch: SlotBatch, step: Ticket, draft_tokens: Any) -> None:
    """Keep drafts for the next step of the rows that go on (L5).

    ``draft_tokens``: token ids [S, K] by slot when the step was prepared, -1 = none; a tensor of the backend, or a
    host array, which is uploaded. Of each row the leading run of ids >= 0 is kept, at most
    min(K, max_dec_len - step_idx - 1) (M9). Drafts of rows that a handover ended go to results that are fetched from
    now on, cut the same way. Nothing is read back.

    Raises ``TaskError`` if the step is not committed or one of its rows is in a later step already, ``ValueError``
    for another shape or dtype, and for a host array with an id outside the vocabulary.
    """
    require_step(step, "committed", "commit_drafts", batch)
    num_drafts = batch.config.num_drafts
    drafts = batch.argument("draft_tokens", draft_tokens, (batch.config.max_num_seqs, num_drafts))
    require_ids("draft_tokens", drafts, step)
    require_newest(step, "commit_drafts")
    if not num_drafts:
        return
    recorder = batch.recorder
    said = [] if recorder is None else recorder.hosts(drafts)

    def run(xp: Any, reads: Any, writes: Any) -> None:
        _commit(xp, reads, writes, num_drafts)

    batch.buffers.run_step(
        run,
        "commit_drafts",
        writes=WRITES,
        given={"drafts": drafts, "places": step.places()},
        live="places",
        changed={"result": step.result},
    )
    if recorder is not None:
        recorder.committed_drafts(step, *said)


def require_newest(step: Ticket, doing: str, slots: Collection[int] | None = None) -> None:
    """``TaskError`` if a row of the step that lives is in a later step already; ``slots``: only these, as they were."""
    now = step.current()
    later = sorted(
        e.occupant.request_id
        for e in step.entries
        if e.epoch in now and e.occupant.ticket is not step and (slots is None or e.slot in slots)
    )
    if later:
        hint = f"{doing} comes before the next prepare of its rows"
        raise TaskError([Fault(r, "step", "in a later step", "committed") for r in later], [hint] * len(later))


def _commit(xp: Any, reads: Mapping[str, Array], writes: Mapping[str, Array], num_drafts: int) -> None:
    drafts, decided, source = whole(xp, reads["drafts"]), writes["result"], reads["places"][SOURCE]
    column = xp.arange(num_drafts, dtype=xp.int32)
    missing = xp.cumulative_sum(xp.astype(drafts < 0, xp.int32), axis=1, dtype=xp.int32)
    leading = xp.sum(xp.astype(missing == 0, xp.int32), axis=1, dtype=xp.int32)
    number = xp.minimum(leading, result.column(decided, "room"))
    ids = xp.where(column < number[:, None], drafts, -1)  # [S, K] by slot when the step was prepared
    at = xp.clip(source, 0, None)
    on = (source >= 0) & (xp.take(result.column(decided, "on"), at, axis=0) > 0)
    kept = xp.take(number, at, axis=0)
    put(xp, writes["draft_tokens"][:, 1 : num_drafts + 1], on, xp.take(ids, at, axis=0))
    put(xp, writes["actual_draft_token_num"], on, kept)
    put(xp, writes["seq_lens_this_time"], on, kept + 1)
    handed = result.column(decided, "reason") == int(FinishReason.HANDOVER)
    put(xp, result.drafts(decided, num_drafts), handed, ids)
