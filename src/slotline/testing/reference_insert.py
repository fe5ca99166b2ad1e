"""What an insertion writes, straight from the contract's table (rules I, D, M, P)."""

from __future__ import annotations

from typing import Any

import numpy as np

from slotline.core.config import BatchConfig
from slotline.core.field import Column, Extra, Field, Keep
from slotline.core.tasks import PrefillTask, Request
from slotline.testing.reference_arrays import RefArrays
from slotline.testing.reference_rows import NONE, RefEnded, RefRow, stop_rule

SAMPLING = (
    "temperature", "top_p", "min_p", "penalty_score", "frequency_score", "presence_score", "top_k", "infer_seed",
    "min_dec_len", "max_think_lens", "max_reply_lens", "limit_think_status", "reasoning_status", "ignore_eos",
    "enable_thinking", "temp_scaled_logprobs", "top_p_normalized_logprobs",
)  # fmt: skip

TWINS = ("seq_lens_encoder", "seq_lens_decoder", "seq_lens_this_time", "step_idx", "stop_flags", "block_tables")

STANDARD = frozenset(
    (
        "token_ids_all", "input_ids", "prompt_lens", "is_chunk_step", "encoder_block_lens", "draft_tokens",
        "actual_draft_token_num", "accept_tokens", "accept_num", "next_tokens", "finish_reason", "stop_match",
        "stop_seqs", "stop_seqs_len", "max_dec_len", "bad_tokens", "bad_tokens_len", "mtp.input_ids",
        "mtp.lookahead_tokens", "mtp.recompute_token_num", "mtp.mask_rollback", "mtp.first_token_hidden_states",
        "input_ids_cpu", "step_draft_tokens", "step_seq_lens_this_time", "is_block_step", "mtp.batch_drop",
        *SAMPLING, *TWINS, *(f"mtp.{name}" for name in TWINS),
    )
)  # fmt: skip
"""Keys that the contract's tables speak of; every other field follows its own ``on``."""


def new_row(config: BatchConfig, request: Request, epoch: int) -> RefRow:
    """The row of a request that takes a slot."""
    limit = config.max_model_len - request.num_prompt_tokens
    given = request.sampling.max_dec_len
    history = request.history.tolist()
    return RefRow(
        request=request,
        epoch=epoch,
        prompt=history[: request.num_prompt_tokens],
        output=history[request.num_prompt_tokens :],
        blocks=[],
        stops=[stripped(seq) for seq in request.sampling.stop_lists],
        min_dec_len=request.sampling.min_dec_len,
        max_dec_len=limit if given is None else min(given, limit),
        ignore_eos=request.sampling.ignore_eos,
    )


def stripped(seq: Any) -> list[int]:
    """A stop sequence without the padding at its end (P3)."""
    tokens = list(np.asarray(seq).tolist())
    while tokens and tokens[-1] == -1:
        tokens.pop()
    return tokens


def first_step_tokens(config: BatchConfig, max_dec_len: int, step_idx: int) -> int:
    """D2, for role decode."""
    return 1 + max(0, min(1, max_dec_len - step_idx - 1)) if config.spec_method == "mtp" else 1


def take(arrays: RefArrays, config: BatchConfig, slot: int, row: RefRow, task: PrefillTask) -> RefEnded | None:
    """A prefill that takes ``slot``, whose cells hold the fill."""
    request = task.request
    write_request(arrays, config, slot, row)
    row.blocks = task.block_table.tolist()
    write_blocks(arrays, slot, row)
    if config.role == "decode":
        ended = _handover(arrays, config, slot, row, task)
    else:
        ended = None
        arrays.set("token_ids_all", slot, request.history)
        arrays.set("input_ids_cpu", slot, request.history)
        arrays.set_both("step_idx", slot, len(row.output))
        arrays.set_both("stop_flags", slot, False)
        write_chunk(arrays, config, slot, row, task)
    own_fields(arrays, config, slot, row, task, "handover" if config.role == "decode" else "prefill", ended)
    return ended


def write_request(arrays: RefArrays, config: BatchConfig, slot: int, row: RefRow) -> None:
    """What comes from the request alone."""
    sampling = row.request.sampling
    arrays.set("prompt_lens", slot, len(row.prompt))
    for name in SAMPLING:
        arrays.set(name, slot, getattr(sampling, name))
    arrays.set("max_dec_len", slot, row.max_dec_len)
    bad = np.asarray(sampling.bad_tokens)
    arrays.set("bad_tokens", slot, bad)
    arrays.set("bad_tokens_len", slot, len(bad))
    block, lens = stop_block(config, row.stops)
    arrays.set("stop_seqs", slot, block)
    arrays.set("stop_seqs_len", slot, lens)
    if row.request.hidden_state is not None and config.hidden_size is not None:
        arrays.set("mtp.first_token_hidden_states", slot, row.request.hidden_state)
    decode = config.role == "decode"
    arrays.set("mtp.recompute_token_num", slot, 0 if decode else config.num_levels - 1)
    arrays.set("mtp.mask_rollback", slot, 1 if decode else 0)


def stop_block(config: BatchConfig, stops: list[list[int]]) -> tuple[list[int], list[int]]:
    """The padded block, row after row, and the lengths (P3)."""
    block: list[int] = []
    for seq in stops:
        block += seq + [-1] * (config.stop_seqs_max_len - len(seq))
    block += [-1] * (config.max_stop_seqs * config.stop_seqs_max_len - len(block))
    return block, [len(seq) for seq in stops] + [0] * (config.max_stop_seqs - len(stops))


def write_blocks(arrays: RefArrays, slot: int, row: RefRow) -> None:
    arrays.set_both("block_tables", slot, row.blocks)
    arrays.set("encoder_block_lens", slot, len(row.blocks))


def write_chunk(arrays: RefArrays, config: BatchConfig, slot: int, row: RefRow, task: PrefillTask) -> None:
    """What every chunk writes, the first and those that continue."""
    history, start, end = task.request.history, task.start, task.end
    row.start, row.end, row.last = start, end, end == len(history)
    row.length = row.encoder = row.bound = end - start
    row.decoder, row.committed = start, False
    arrays.set("input_ids", slot, history[start:end])
    arrays.set("is_chunk_step", slot, not row.last)
    arrays.set("mtp.input_ids", slot, history[start + 1 : end + 1])
    arrays.set("mtp.lookahead_tokens", slot, history[end : end + config.num_levels])
    write_lengths(arrays, slot, row)


def write_lengths(arrays: RefArrays, slot: int, row: RefRow) -> None:
    arrays.set_both("seq_lens_encoder", slot, row.encoder)
    arrays.set_both("seq_lens_decoder", slot, row.decoder)
    arrays.set_both("seq_lens_this_time", slot, row.length)


def _handover(arrays: RefArrays, config: BatchConfig, slot: int, row: RefRow, task: PrefillTask) -> RefEnded | None:
    """Role decode: the prefill side's first token counts as generated (D1 to D4)."""
    drafts = task.request.draft_token_ids.tolist()
    first = drafts[0]
    before = list(row.output)
    row.output.append(first)
    history = row.prompt + row.output
    row.end, row.last, row.committed = task.end, True, True
    arrays.set("token_ids_all", slot, history)
    arrays.set("input_ids_cpu", slot, history)
    arrays.set("input_ids", slot, [first])
    arrays.set_both("step_idx", slot, len(row.output))
    _, reason, match = stop_rule(
        before, [first], row.min_dec_len, row.max_dec_len, config.eos_token_ids, row.ignore_eos, row.stops
    )
    if reason != NONE:
        row.known_finished = True
        arrays.set_both("stop_flags", slot, True)
        arrays.set("finish_reason", slot, reason)
        arrays.set("stop_match", slot, match or (-1, -1))
        return RefEnded(first, reason, match)
    row.length = row.bound = first_step_tokens(config, row.max_dec_len, len(row.output))
    row.decoder = len(history) - 1
    write_lengths(arrays, slot, row)
    arrays.set_both("stop_flags", slot, False)
    if config.spec_method != "none":
        arrays.set("draft_tokens", slot, drafts[: row.length])
    arrays.set("actual_draft_token_num", slot, row.length - 1)
    return None


def own_fields(
    arrays: RefArrays,
    config: BatchConfig,
    slot: int,
    row: RefRow,
    task: PrefillTask | None,
    kind: str,
    ended: RefEnded | None = None,
) -> None:
    """Fields that are not of the contract, by their ``on`` (F1, F3)."""
    for f in arrays.layout:
        if f.key in STANDARD or f.slot_axis is None:
            continue
        rule = f.on.get("prefill" if kind == "handover" and "handover" not in f.on else kind, None)
        if rule is None or isinstance(rule, Keep):
            continue
        if isinstance(rule, Extra):
            _extra(arrays, slot, f, row.request, rule.name)
        elif isinstance(rule, Column):
            arrays.set(f.key, slot, _column(config, row, task, rule.name, ended))
        else:
            arrays.set(f.key, slot, rule)


def _extra(arrays: RefArrays, slot: int, f: Field, request: Request, name: str) -> None:
    if name not in request.extra:
        return
    value = np.asarray(request.extra[name])
    if value.ndim == 0:
        arrays.set(f.key, slot, value[()])
    else:
        arrays.set_block(f.key, slot, value)


def _column(config: BatchConfig, row: RefRow, task: PrefillTask | None, name: str, ended: RefEnded | None) -> Any:
    """One of the named quantities of F1."""
    if name == "block_table":
        return row.blocks
    if name == "num_blocks":
        return len(row.blocks)
    assert task is not None
    history = row.prompt + row.output
    decode = config.role == "decode"
    drafts = task.request.draft_token_ids.tolist()
    if name in SAMPLING:
        return getattr(row.request.sampling, name)
    block, lens = stop_block(config, row.stops)
    values: dict[str, Any] = {
        "prompt_len": len(row.prompt),
        "num_generated": len(row.output),
        "max_dec_len": row.max_dec_len,
        "start": row.decoder if decode else task.start,
        "chunk_len": task.end - task.start,
        "not_last": not row.last,
        "num_first_step_tokens": row.length if decode else 0,
        "num_first_step_drafts": max(0, row.length - 1) if decode else 0,
        "ended": ended is not None,
        "finish_reason": 0 if ended is None else ended.finish_reason,
        "num_bad_tokens": len(np.asarray(row.request.sampling.bad_tokens)),
        "history": history,
        "chunk": history[task.start : task.end],
        "shifted_chunk": history[task.start + 1 : task.end + 1],
        "lookahead": history[task.end : task.end + config.num_levels],
        "first_token": drafts[:1],
        "first_step_tokens": drafts[: row.length] if decode and config.spec_method != "none" else [],
        "bad_tokens": np.asarray(row.request.sampling.bad_tokens),
        "stop_seqs": block,
        "stop_seqs_len": lens,
        "stop_match": (-1, -1) if ended is None or ended.stop_match is None else ended.stop_match,
        "hidden_state": [] if row.request.hidden_state is None else row.request.hidden_state,
    }
    return values[name]
