"""What a commit writes, straight from the contract's table (rules L4, L5, T, D1, M7, M9)."""

from __future__ import annotations

from typing import Any

from slotline.core.config import BatchConfig
from slotline.testing.reference_arrays import RefArrays
from slotline.testing.reference_insert import write_lengths
from slotline.testing.reference_rows import HANDOVER, NONE, RefEntry, RefRow, stop_rule


def commit_row(arrays: RefArrays, config: BatchConfig, slot: int, entry: RefEntry, accepted: list[int]) -> None:
    """One row of a step, now in ``slot``, whose epoch lives."""
    row = entry.row
    row.committed = True
    if entry.length == 0:
        _bound(config, row, entry.last)
        return
    arrays.set("draft_tokens", slot, [])
    arrays.set("actual_draft_token_num", slot, 0)
    arrays.set("accept_tokens", slot, [])
    arrays.set("accept_num", slot, 0)
    if entry.last:
        _accept(arrays, config, slot, entry, accepted)
    else:
        row.decoder += row.length
        row.encoder = row.length = 0
    _bound(config, row, entry.last)
    write_lengths(arrays, slot, row)


def _accept(arrays: RefArrays, config: BatchConfig, slot: int, entry: RefEntry, accepted: list[int]) -> None:
    row = entry.row
    kept, reason, match = stop_rule(
        row.output, accepted, row.min_dec_len, row.max_dec_len, config.eos_token_ids, row.ignore_eos, row.stops
    )
    if reason == NONE and config.role == "prefill":
        reason = HANDOVER
    entry.tokens, entry.reason, entry.match = accepted[:kept], reason, match
    arrays.put("token_ids_all", slot, len(row.prompt) + len(row.output), entry.tokens)
    row.output += entry.tokens
    arrays.set_both("step_idx", slot, len(row.output))
    arrays.set("next_tokens", slot, row.output[-1])
    arrays.set("accept_tokens", slot, entry.tokens)
    arrays.set("accept_num", slot, kept)
    if reason != NONE:
        row.length = row.encoder = row.decoder = 0
        arrays.set_both("stop_flags", slot, True)
        arrays.set("finish_reason", slot, reason)
        arrays.set("stop_match", slot, match or (-1, -1))
        row.known_finished |= reason == HANDOVER
        return
    entry.goes_on = True
    row.decoder += row.length if row.encoder else kept
    row.encoder, row.length = 0, 1
    arrays.put("input_ids", slot, 0, [row.output[-1]])
    if config.spec_method != "none":
        arrays.set("draft_tokens", slot, [row.output[-1]])


def _bound(config: BatchConfig, row: RefRow, last: bool) -> None:
    """I7: what the host knows after a commit."""
    handed = config.role == "prefill"
    row.bound = 0 if not last or handed or row.known_finished else 1 + config.num_drafts


def commit_drafts_row(arrays: RefArrays, config: BatchConfig, slot: int, entry: RefEntry, drafts: list[int]) -> None:
    """Drafts for the next step of a row that goes on (L5, M9)."""
    row = entry.row
    kept = kept_drafts(config, row, len(row.output), drafts)
    arrays.put("draft_tokens", slot, 1, kept + [-1] * (config.num_drafts - len(kept)))
    arrays.set("actual_draft_token_num", slot, len(kept))
    row.length = 1 + len(kept)
    write_lengths(arrays, slot, row)


def kept_drafts(config: BatchConfig, row: RefRow, step_idx: int, drafts: list[int]) -> list[int]:
    """The leading run of ids, as long as the length limit leaves room."""
    room = max(0, min(config.num_drafts, row.max_dec_len - step_idx - 1))
    kept: list[int] = []
    for token in drafts[:room]:
        if token < 0:
            break
        kept.append(token)
    return kept


def take_result(arrays: RefArrays, slot: int, entry: RefEntry) -> None:
    """What the host learns when a fetched result is taken, for a row whose epoch lives (I7, M7)."""
    if entry.length == 0:
        return
    if entry.reason != NONE:
        entry.row.known_finished, entry.row.bound = True, 0
    arrays.put("input_ids_cpu", slot, len(entry.row.prompt) + entry.step_idx, entry.tokens)


def plain(values: Any) -> list[Any]:
    """Nested lists of Python numbers, from anything that is an array."""
    return values.tolist() if hasattr(values, "tolist") else list(values)
