"""Committing draft tokens for the next step (rules L5, M9)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from slotline.core.errors import Fault, TaskError
from slotline.core.stop import FinishReason

if TYPE_CHECKING:
    from slotline.core.batch import SlotBatch
    from slotline.core.ticket import Ticket

READS = ("step_idx", "max_dec_len")
WRITES = ("draft_tokens", "actual_draft_token_num", "seq_lens_this_time")


def commit_drafts(batch: SlotBatch, step: Ticket, draft_tokens: Any) -> None:
    """Keep drafts for the next step of the rows that go on (L5).

    ``draft_tokens``: token ids [S, K] by slot when the step was prepared, -1 = none. Of each row the leading run of
    ids >= 0 is kept, at most min(K, max_dec_len - step_idx - 1) (M9). Drafts of rows that a handover ended go to the
    fetched result, cut the same way. Read before the call returns.

    Raises ``TaskError`` if the step is not committed or one of its rows is in a later step already, ``ValueError``
    for another shape.
    """
    step.require("committed", "commit_drafts", batch)
    result = step.result
    assert result is not None
    config = batch.config
    shape = (config.max_num_seqs, config.num_drafts)
    drafts = batch.to_host(draft_tokens).copy()
    if drafts.shape != shape or drafts.dtype.kind not in "iu":
        raise ValueError(f"draft_tokens is {drafts.dtype} {drafts.shape}, allowed: whole numbers of shape {shape}")
    now = step.current()
    later = [e.occupant.request_id for e in step.entries if e.epoch in now and e.occupant.ticket is not step]
    if later:
        hint = "commit_drafts comes before the next prepare of its rows"
        raise TaskError([Fault(r, "step", "in a later step", "committed") for r in sorted(later)], [hint] * len(later))
    source = step.sources()
    kept = _leading(drafts)

    def run(reads: Mapping[str, NDArray[Any]], writes: Mapping[str, NDArray[Any]]) -> None:
        on = (source >= 0) & result.goes_on[np.maximum(source, 0)]
        at = np.maximum(source, 0)
        room = reads["max_dec_len"] - reads["step_idx"] - 1
        number = np.clip(np.minimum(kept[at], room), 0, config.num_drafts).astype(np.int32)
        columns = np.arange(config.num_drafts)
        ids = np.where(columns < number[:, None], drafts[at], -1)
        rows = writes["draft_tokens"][:, 1 : config.num_drafts + 1]
        rows[...] = np.where(on[:, None], ids, rows)
        for key, value in (("actual_draft_token_num", number), ("seq_lens_this_time", number + 1)):
            writes[key][...] = np.where(on, value, writes[key])

    if config.num_drafts:
        batch.buffers.run_step(run, READS, WRITES, np.flatnonzero(source >= 0), "commit_drafts")
    _keep_handed_over(batch, step, drafts, kept)


def _leading(drafts: NDArray[Any]) -> NDArray[Any]:
    """[S]: how many ids >= 0 each row begins with."""
    ids: NDArray[Any] = np.cumprod(drafts >= 0, axis=1).sum(axis=1)
    return ids


def _keep_handed_over(batch: SlotBatch, step: Ticket, drafts: NDArray[Any], kept: NDArray[Any]) -> None:
    """What a prefill side hands over beside the first token."""
    result = step.result
    assert result is not None
    for entry in step.entries:
        s = entry.slot
        if result.reason[s] != FinishReason.HANDOVER or result.stale[s]:
            continue
        limit = batch.max_dec_len(entry.occupant.request)
        room = limit - int(result.step_idx[s] + result.counts[s]) - 1
        number = max(0, min(int(kept[s]), room))
        result.drafts[s] = -1
        result.drafts[s, :number] = drafts[s, :number]
