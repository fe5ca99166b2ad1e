"""Committing a step's tokens: the table "What a commit writes" (rules L4, T, S2), on whole columns.

``commit_rows`` works on arrays of all slots with masks, so no shape depends on device data (L2); the host brings the
map from the rows that hold the step's epochs now to the rows that they were when the step was prepared.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slotline.core.stop import FinishReason, scan

if TYPE_CHECKING:
    from slotline.core.batch import SlotBatch
    from slotline.core.ticket import Ticket

Arrays = Mapping[str, NDArray[Any]]

READS = (
    "prompt_lens",
    "stop_seqs",
    "stop_seqs_len",
    "ignore_eos",
    "min_dec_len",
    "max_dec_len",
)  # fmt: skip
WRITES = (
    "token_ids_all",
    "step_idx",
    "seq_lens_encoder",
    "seq_lens_decoder",
    "seq_lens_this_time",
    "input_ids",
    "next_tokens",
    "draft_tokens",
    "actual_draft_token_num",
    "accept_tokens",
    "accept_num",
    "stop_flags",
    "finish_reason",
    "stop_match",
)
"""The keys that a commit works on; a layout without one of them cannot be committed by slotline."""


class Committed(NamedTuple):
    """What a commit leaves for ``fetch``; all by slot at prepare time, nothing later changes it (L6)."""

    tokens: NDArray[Any]
    """[S, K + 1]; of stale rows as accepted, uncut."""
    counts: NDArray[Any]
    """[S]"""
    reason: NDArray[Any]
    """[S]; 0 for stale rows."""
    match: NDArray[Any]
    """[S, 2]"""
    step_idx: NDArray[Any]
    """[S], before the commit."""
    goes_on: NDArray[np.bool_]
    """[S]; the row decodes on."""
    stale: NDArray[np.bool_]
    """[S]; the row's epoch had ended."""
    drafts: NDArray[Any]
    """[S, K], -1 = none; drafts of rows that a handover ended."""


def commit_step(batch: SlotBatch, step: Ticket, accept_tokens: Any, accept_num: Any) -> None:
    """Write a step's accepted tokens into the rows that hold its epochs now (L4).

    - ``accept_tokens``: token ids [S, K + 1] and ``accept_num``: int32 [S], both by slot when the step was prepared;
      the count includes the bonus token. A prefill's last chunk accepts 1, a decode row 1 to its length; anything
      else is the caller's error and undefined. Rows outside the step, and chunks that are not last, are ignored.

    Both are read before the call returns. Rows whose epoch has ended are applied to nothing and counted
    (``stats["stale_results"]``). Raises ``TaskError`` if the step was committed or discarded, ``ValueError`` for
    arrays of another shape.
    """
    step.require("open", "commit_step", batch)
    config = batch.config
    tokens = _block("accept_tokens", batch, accept_tokens, (config.max_num_seqs, config.num_drafts + 1))
    count = _block("accept_num", batch, accept_num, (config.max_num_seqs,)).astype(np.int32)
    source, now = step.sources(), step.current()
    stale = np.zeros(config.max_num_seqs, bool)
    stale[[e.slot for e in step.entries if e.epoch not in now]] = True
    yields = np.zeros(config.max_num_seqs, bool)
    yields[[e.slot for e in step.entries if e.last]] = True
    result = _empty_result(tokens, count, stale & yields & (step.lengths > 0), stale)

    def run(reads: Arrays, writes: Arrays) -> None:
        commit_rows(reads, writes, result, tokens, count, source, config.eos_token_ids, config.spec_method != "none",
                    config.role == "prefill")  # fmt: skip

    batch.buffers.run_step(run, READS, WRITES, np.flatnonzero(source >= 0), "commit_step")
    step.result = result
    step.state = "committed"
    if stale.any():
        batch.stats.add("stale_results", "commit", int(stale.sum()))
    _tell_host(batch, step)


def _block(name: str, batch: SlotBatch, value: Any, shape: tuple[int, ...]) -> NDArray[Any]:
    array = batch.to_host(value)
    if array.shape != shape or array.dtype.kind not in "iu":
        raise ValueError(f"{name} is {array.dtype} {array.shape}, allowed: whole numbers of shape {shape}")
    return array.copy()


def _empty_result(
    tokens: NDArray[Any], count: NDArray[Any], told: NDArray[np.bool_], stale: NDArray[np.bool_]
) -> Committed:
    """A result in which only the stale rows that accepted something (``told``) are filled."""
    size, width = tokens.shape
    return Committed(
        tokens=np.where(told[:, None], tokens, -1),
        counts=np.where(told, np.clip(count, 0, width), 0).astype(np.int32),
        reason=np.zeros(size, np.int32),
        match=np.full((size, 2), -1, np.int32),
        step_idx=np.zeros(size, np.int32),
        goes_on=np.zeros(size, bool),
        stale=stale,
        drafts=np.full((size, width - 1), -1, np.int64),
    )


def commit_rows(
    reads: Arrays,
    writes: Arrays,
    result: Committed,
    tokens: NDArray[Any],
    count: NDArray[Any],
    source: NDArray[np.intp],
    eos_token_ids: tuple[int, ...],
    speculative: bool,
    hands_over: bool,
) -> None:
    """The table of L4 on arrays of all slots. ``source`` [S]: for each slot the row of ``tokens``, -1: not in it."""
    w = writes
    slots = np.arange(len(source))
    live = source >= 0
    at = np.where(live, source, 0)
    length = np.where(live, w["seq_lens_this_time"], 0)
    step_idx, prompt = w["step_idx"].copy(), reads["prompt_lens"]
    accepted = tokens[at].astype(w["token_ids_all"].dtype)  # [S, K + 1]
    width = accepted.shape[1]
    in_step = length > 0
    last = in_step & (w["seq_lens_decoder"] + length >= prompt + step_idx)
    prefilled = w["seq_lens_encoder"] > 0
    given = np.where(last, np.clip(count[at], 0, width), 0)
    before = reads["stop_seqs"].shape[2] - 1
    history = prompt + step_idx
    longest = w["token_ids_all"].shape[1]
    behind = np.clip(history[:, None] - before + np.arange(before), 0, longest - 1)
    found = scan(
        accepted,
        given,
        step_idx,
        np.take_along_axis(w["token_ids_all"], behind, axis=1),
        min_dec_len=reads["min_dec_len"],
        max_dec_len=reads["max_dec_len"],
        ignore_eos=reads["ignore_eos"],
        stop_seqs=reads["stop_seqs"],
        stop_seqs_len=reads["stop_seqs_len"],
        eos_token_ids=eos_token_ids,
    )
    kept = np.where(last, found.kept, 0).astype(np.int32)
    reason = np.where(last, found.reason, 0).astype(np.int32)
    if hands_over:
        reason = np.where(last & (reason == 0), int(FinishReason.HANDOVER), reason).astype(np.int32)
    ended = reason > 0
    on = last & ~ended
    final = accepted[slots, np.maximum(kept - 1, 0)]
    columns = np.arange(width)
    cut = np.where(columns < kept[:, None], accepted, -1)  # [S, K + 1]

    target = history[:, None] + columns
    write = (columns < kept[:, None]) & (target < longest)
    rows, cols = np.nonzero(write)
    w["token_ids_all"][rows, target[rows, cols]] = accepted[rows, cols]
    _put(w["step_idx"], last, step_idx + kept)
    moved = np.where(~last | prefilled, length, kept)
    _put(w["seq_lens_decoder"], in_step, np.where(ended, 0, w["seq_lens_decoder"] + moved))
    _put(w["seq_lens_encoder"], in_step, 0)
    _put(w["seq_lens_this_time"], in_step, np.where(on, 1, 0))
    _put(w["input_ids"][:, 0], on, final)
    _put(w["next_tokens"], last, final)
    drafts = np.full_like(cut, -1)
    if speculative:
        drafts[:, 0] = np.where(on, final, -1)
    _put(w["draft_tokens"][:, :width], in_step, drafts)
    _put(w["actual_draft_token_num"], in_step, 0)
    _put(w["accept_tokens"][:, :width], in_step, cut)
    _put(w["accept_num"], in_step, kept)
    _put(w["stop_flags"], ended, True)
    _put(w["finish_reason"], ended, reason)
    _put(w["stop_match"], ended, found.match)

    here = np.flatnonzero(live)
    there = source[here]
    result.tokens[there], result.counts[there] = cut[here], kept[here]
    result.reason[there], result.match[there] = reason[here], found.match[here]
    result.step_idx[there], result.goes_on[there] = step_idx[here], on[here]


def _put(array: NDArray[Any], mask: NDArray[np.bool_], value: Any) -> None:
    """``array[mask] = value[mask]`` without a shape that depends on the mask."""
    array[...] = np.where(mask if array.ndim == 1 else mask[:, None], value, array)


def _tell_host(batch: SlotBatch, step: Ticket) -> None:
    """I7's launch bounds, and which chunks may be continued."""
    table, config = batch.slots, batch.config
    for entry in step.entries:
        slot = table.by_epoch.get(entry.epoch)
        if slot is None:
            continue
        entry.occupant.committed = True
        goes_on = entry.last and config.role != "prefill" and not entry.occupant.finished
        table.bound[slot] = 1 + config.num_drafts if goes_on else 0
