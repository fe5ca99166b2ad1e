"""Committing a step's tokens: the table "What a commit writes" (rules L4, T, S2), on whole columns.

``commit_rows`` works on arrays of all slots with masks, so no shape depends on device data (L2); the host brings the
map from the rows that hold the step's epochs now to the rows that they were when the step was prepared.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from slotline.core import result
from slotline.core.namespace import Array, put, whole
from slotline.core.reach import ALL, HISTORY
from slotline.core.scan import LIMITS, history_tail, scan
from slotline.core.stop import FinishReason
from slotline.core.ticket import LAST, PLACE, SOURCE, TAKEN, Ticket, require_ids, require_step

if TYPE_CHECKING:
    from slotline.core.batch import SlotBatch
    from slotline.core.config import BatchConfig

READS = ("prompt_lens", *LIMITS)
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
REACHES: Mapping[str, int | str] = {
    **dict.fromkeys(WRITES, ALL),
    "token_ids_all": HISTORY,
    "input_ids": 1,
}
"""How many cells of a row it writes; ``commit_rows`` below says the same."""


def commit_step(batch: SlotBatch, step: Ticket, accept_tokens: Any, accept_num: Any) -> None:
    """Write a step's accepted tokens into the rows that hold its epochs now (L4).

    - ``accept_tokens``: token ids [S, K + 1] and ``accept_num``: [S], whole numbers, both by slot when the step was
      prepared; the count includes the bonus token. A prefill's last chunk accepts 1, a decode row 1 to its length;
      anything else is the caller's error and undefined. Rows outside the step, and chunks that are not last, are
      ignored. Tensors of the backend, or host arrays (lists too), which are uploaded.

    Runs where the buffers are and reads nothing back; host arrays are read before the call returns, tensors at this
    point of the stream. Rows whose epoch has ended are applied to nothing and counted (``stats["stale_results"]``).
    Raises ``TaskError`` if the step was committed or discarded, ``ValueError`` for arrays of another shape or dtype,
    and for host arrays that accept an id outside the vocabulary.
    """
    require_step(step, "open", "commit_step", batch)
    config = batch.config
    places = step.places()
    tokens = batch.argument("accept_tokens", accept_tokens, (config.max_num_seqs, config.num_drafts + 1))
    count = batch.argument("accept_num", accept_num, (config.max_num_seqs,))
    require_ids("accept_tokens", tokens, step, count)
    recorder = batch.recorder
    said = [] if recorder is None else recorder.hosts(tokens, count)
    moved = bool(((places[SOURCE] >= 0) & (places[SOURCE] != np.arange(config.max_num_seqs))).any())
    gone = (places[TAKEN] > 0) & (places[PLACE] < 0)
    stale = frozenset(e.epoch for e in step.entries if gone[e.slot]) if gone.any() else frozenset[int]()

    def run(xp: Any, reads: Any, writes: Any) -> None:
        commit_rows(xp, reads, writes, config, moved or bool(stale))

    out = batch.buffers.run_step(
        run,
        "commit_step",
        reads=READS,
        writes=WRITES,
        given={"tokens": tokens, "count": count, "places": places},
        held={"lengths": step.lengths},
        made=[("result", result.shape(config.max_num_seqs, config.num_drafts), "int32")],
        live="places",
    )
    step.result = out["result"]
    step.stale = stale
    step.close("committed")
    if stale:
        batch.stats.add("stale_results", "commit", len(stale))
    _tell_host(batch, step, places)
    if recorder is not None:
        recorder.committed(step, *said)


def commit_rows(xp: Any, reads: Mapping[str, Array], w: Mapping[str, Array], config: BatchConfig, moved: bool) -> None:
    """The table of L4 on arrays of all slots. ``moved``: a row lies elsewhere than at prepare time, or is gone."""
    places = reads["places"]
    live = places[SOURCE] >= 0
    # Copies: an engine may have sampled into the very buffers that are written below.
    tokens, count = xp.astype(reads["tokens"], xp.int32), xp.astype(reads["count"], xp.int32)
    at = xp.clip(places[SOURCE], 0, None)
    accepted = xp.take(tokens, at, axis=0) if moved else tokens  # [S, K + 1]
    width = accepted.shape[1]
    column = xp.arange(width, dtype=xp.int32)

    length = xp.where(live, whole(xp, w["seq_lens_this_time"]), 0)
    step_idx, start = whole(xp, w["step_idx"]) + 0, whole(xp, w["seq_lens_decoder"]) + 0  # as they were
    history = whole(xp, reads["prompt_lens"]) + step_idx
    in_step = length > 0
    prefills = in_step & (w["seq_lens_encoder"] > 0)
    last = in_step & (start + length >= history)
    given = xp.where(last, xp.clip(xp.take(count, at, axis=0) if moved else count, 0, width), 0)
    tail = history_tail(xp, w["token_ids_all"], history, max(reads["stop_seqs"].shape[2] - 1, 0))
    found = scan(xp, accepted, given, step_idx, tail, reads, config.eos_token_ids)
    kept, reason = found.kept, found.reason
    if config.role == "prefill":
        reason = xp.where(last & (reason == 0), int(FinishReason.HANDOVER), reason)
    ended = reason > 0
    on = last & ~ended
    final = xp.take_along(accepted, xp.clip(kept - 1, 0, None)[:, None], 1)[:, 0]
    cut = xp.where(column < kept[:, None], accepted, -1)

    _append(xp, w["token_ids_all"], history, accepted, kept)
    put(xp, w["step_idx"], last, step_idx + kept)
    after = xp.where(ended, 0, start + xp.where(last & ~prefills, kept, length))
    put(xp, w["seq_lens_decoder"], in_step, after)
    put(xp, w["seq_lens_encoder"], in_step, 0)
    put(xp, w["seq_lens_this_time"], in_step, xp.astype(on, xp.int32))
    put(xp, w["input_ids"][:, 0], on, final)
    put(xp, w["next_tokens"], last, final)
    drafts = xp.full(cut.shape, -1, dtype=xp.int32)
    if config.spec_method != "none":
        drafts = xp.where(on[:, None] & (column == 0), final[:, None], drafts)
    put(xp, w["draft_tokens"][:, :width], in_step, drafts)
    put(xp, w["actual_draft_token_num"], in_step, 0)
    put(xp, w["accept_tokens"][:, :width], in_step, cut)
    put(xp, w["accept_num"], in_step, kept)
    put(xp, w["stop_flags"], ended, True)
    put(xp, w["finish_reason"], ended, reason)
    put(xp, w["stop_match"], ended, found.match)

    columns = {
        "length": length,
        "count": kept,
        "reason": reason,
        "match": found.match[:, 0],
        "match_start": found.match[:, 1],
        "step_idx": step_idx,
        "start": start,
        "prefill": prefills,
        "on": on,
        "room": xp.clip(whole(xp, reads["max_dec_len"]) - step_idx - kept - 1, 0, None),
    }
    result.fill(xp, w["result"], columns, cut)
    if moved:
        _as_prepared(xp, w["result"], tokens, count, places, whole(xp, reads["lengths"]))


def _append(xp: Any, token_ids_all: Array, history: Array, accepted: Array, kept: Array) -> None:
    """``accepted[:kept]`` behind each row's history; what would lie behind the row's end is dropped.

    The cells of a row are a window that never passes its end, so they are distinct and in range.
    """
    width, longest = accepted.shape[1], token_ids_all.shape[1]
    if width > longest:
        accepted, width = accepted[:, :longest], longest
    window = xp.clip(history, 0, longest - width)[:, None] + xp.arange(width, dtype=xp.int32)
    j = window - history[:, None]  # which accepted token belongs into the cell
    mask = (j >= 0) & (j < kept[:, None])
    values = xp.take_along(accepted, xp.clip(j, 0, width - 1), 1)
    xp.scatter_rows(token_ids_all, window, xp.astype(values, token_ids_all.dtype), mask)


def _as_prepared(xp: Any, rows: Array, tokens: Array, count: Array, places: Array, lengths: Array) -> None:
    """Rows of slots now become rows of slots then; those whose epoch has ended say what was accepted, uncut."""
    taken, width = places[TAKEN] > 0, tokens.shape[1]
    told = taken & (places[LAST] > 0) & (lengths > 0)
    number = xp.where(told, xp.clip(count, 0, width), 0)
    said = xp.where(xp.arange(width, dtype=xp.int32) < number[:, None], tokens, -1)
    there = xp.take(rows, xp.clip(places[PLACE], 0, None), axis=0)
    zero = xp.zeros_like(number)
    columns = dict.fromkeys(result.COLUMNS, zero) | {
        "length": xp.where(taken, lengths, 0),
        "count": number,
        "match": zero - 1,
        "match_start": zero - 1,
    }
    result.fill(xp, rows, columns, said)
    put(xp, rows, places[PLACE] >= 0, there)


def _tell_host(batch: SlotBatch, step: Ticket, places: NDArray[np.int32]) -> None:
    """I7's launch bounds, and which chunks may be continued."""
    config = batch.config
    most = 1 + config.num_drafts if config.role != "prefill" else 0
    now = places[PLACE, step.inside]
    lives = now >= 0
    batch.slots.commit(step.occupants, now[lives])
    on = [last and not occupant.finished for last, occupant in zip(step.last, step.occupants, strict=True)]
    batch.slots.bound[now[lives]] = np.where(on, most, 0)[lives]
    batch.planner.reach.grow(now[lives], config.num_drafts + 1)
