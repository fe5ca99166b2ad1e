"""The standard fields: what an engine's target model and its MTP drafter keep for each slot.

This table is the only place that lists them. Shapes, dtypes and fills: "The standard fields" and P1 of the contract;
``on``: "What an insertion writes".
"""

from __future__ import annotations

from functools import partial

from slotline.core.config import BatchConfig
from slotline.core.errors import ConfigError
from slotline.core.field import Field, Rule, column, extra
from slotline.core.layout import BufferLayout

S = "max_num_seqs"
L = "max_model_len"
C = "max_chunk_tokens"
BLOCKS = "max_blocks_per_seq"
DRAFT_ROW = "num_drafts+1"


def _chunks(prefill: Rule, handover: Rule) -> dict[str, Rule]:
    """Written by every chunk of a prefill, the first and those that continue."""
    return {"prefill": prefill, "chunk": prefill, "handover": handover}


def _given(name: str) -> dict[str, Rule]:
    """Written once, when a request takes a slot."""
    return {"prefill": column(name)}


def _tables() -> dict[str, Rule]:
    return {**_chunks(column("block_table"), column("block_table")), "decode": column("block_table")}


def target_layout(config: BatchConfig, *, multimodal: bool = False) -> BufferLayout:
    """The fields of the target model. ``multimodal`` adds attn_mask_offsets and rope_position_ids.

    Groups for ``.without``: penalties, bad_words, thinking, logprobs, engine, multimodal.
    """
    ids = partial(Field, dtype=config.token_dtype, token_ids=True)
    fields = [
        ids("token_ids_all", (S, L), fill=-1, on=_given("history"), step_writes=True),
        ids("input_ids", (S, C), fill=config.pad_token_id, step_writes=True,
              on=_chunks(column("chunk"), column("first_token"))),
        Field("prompt_lens", (S,), "int32", 0, residency="mirrored", on=_given("prompt_len")),
        *_lengths(""),
        Field("is_chunk_step", (S,), "bool", False, residency="host", on=_chunks(column("not_last"), False)),
        Field("block_tables", (S, BLOCKS), "int32", -1, residency="mirrored", on=_tables()),
        Field("encoder_block_lens", (S,), "int32", 0, residency="mirrored",
              on={**_chunks(column("num_blocks"), column("num_blocks")), "decode": column("num_blocks")}),
        ids("draft_tokens", (S, DRAFT_ROW), fill=-1, step_writes=True,
              on={"handover": column("first_step_tokens")}),
        Field("actual_draft_token_num", (S,), "int32", 0, step_writes=True,
              on={"handover": column("num_first_step_drafts")}),
        ids("accept_tokens", (S, DRAFT_ROW), fill=-1, step_writes=True),
        Field("accept_num", (S,), "int32", 0, step_writes=True),
        ids("next_tokens", (S,), fill=-1, step_writes=True),
        Field("finish_reason", (S,), "int32", 0, step_writes=True, on={"handover": column("finish_reason")}),
        Field("stop_match", (S, 2), "int32", -1, step_writes=True, on={"handover": column("stop_match")}),
        ids("stop_seqs", (S, "max_stop_seqs", "stop_seqs_max_len"), fill=-1, on=_given("stop_seqs")),
        Field("stop_seqs_len", (S, "max_stop_seqs"), "int32", 0, on=_given("stop_seqs_len")),
        Field("ignore_eos", (S,), "bool", False, on=_given("ignore_eos")),
        Field("min_dec_len", (S,), "int32", 0, on=_given("min_dec_len")),
        Field("max_dec_len", (S,), "int32", 0, on=_given("max_dec_len")),
        Field("temperature", (S,), "float32", 1.0, on=_given("temperature")),
        Field("top_p", (S,), "float32", 1.0, on=_given("top_p")),
        Field("top_k", (S,), "int32", 0, on=_given("top_k")),
        Field("min_p", (S,), "float32", 0.0, on=_given("min_p")),
        Field("infer_seed", (S,), "int64", 0, on=_given("infer_seed")),
        Field("penalty_score", (S,), "float32", 1.0, group="penalties", on=_given("penalty_score")),
        Field("frequency_score", (S,), "float32", 0.0, group="penalties", on=_given("frequency_score")),
        Field("presence_score", (S,), "float32", 0.0, group="penalties", on=_given("presence_score")),
        ids("bad_tokens", (S, "max_bad_tokens"), fill=-1, group="bad_words", on=_given("bad_tokens")),
        Field("bad_tokens_len", (S,), "int32", 0, group="bad_words", on=_given("num_bad_tokens")),
        Field("enable_thinking", (S,), "bool", False, group="thinking", on=_given("enable_thinking")),
        Field("max_think_lens", (S,), "int32", -1, group="thinking", on=_given("max_think_lens")),
        Field("max_reply_lens", (S,), "int32", -1, group="thinking", on=_given("max_reply_lens")),
        Field("limit_think_status", (S,), "int32", 0, group="thinking", on=_given("limit_think_status")),
        Field("reasoning_status", (S,), "int32", 0, group="thinking", on=_given("reasoning_status")),
        Field("temp_scaled_logprobs", (S,), "bool", False, group="logprobs", on=_given("temp_scaled_logprobs")),
        Field("top_p_normalized_logprobs", (S,), "bool", False, group="logprobs",
              on=_given("top_p_normalized_logprobs")),
        ids("step_draft_tokens", (S, DRAFT_ROW), fill=-1, group="engine", engine_writes=True),
        Field("step_seq_lens_this_time", (S,), "int32", 0, group="engine", engine_writes=True),
        Field("is_block_step", (S,), "bool", False, group="engine", engine_writes=True),
    ]  # fmt: skip
    if multimodal:
        fields += [
            Field("attn_mask_offsets", (S, L), "int32", -1, group="multimodal",
                  on={"prefill": extra("attn_mask_offsets")}),
            Field("rope_position_ids", (S, 3, L), "int32", 0, group="multimodal",
                  on={"prefill": extra("rope_position_ids")}),
        ]  # fmt: skip
    return BufferLayout(config, fields)


def mtp_layout(config: BatchConfig) -> BufferLayout:
    """The fields of the MTP drafter, named ``mtp.*``; only with ``spec_method="mtp"``, else ``ConfigError``."""
    if config.spec_method != "mtp":
        raise ConfigError(f"mtp_layout needs spec_method='mtp', this config has {config.spec_method!r}")
    ids, decode = partial(Field, dtype=config.token_dtype, token_ids=True), config.role == "decode"
    rollback = 1 if decode else 0
    recompute = 0 if decode else config.num_levels - 1
    fields = [
        ids("mtp.input_ids", (S, C), fill=config.pad_token_id,
              on=_chunks(column("shifted_chunk"), config.pad_token_id)),
        ids("mtp.lookahead_tokens", (S, "num_levels"), fill=-1, on=_chunks(column("lookahead"), -1)),
        *_lengths("mtp."),
        Field("mtp.block_tables", (S, BLOCKS), "int32", -1, on=_tables()),
        Field("mtp.recompute_token_num", (S,), "int32", 0, on={"prefill": recompute}),
        Field("mtp.mask_rollback", (S,), "int32", 0, on={"prefill": rollback}),
        Field("mtp.batch_drop", (S,), "bool", False, group="engine", engine_writes=True),
    ]  # fmt: skip
    if config.hidden_size is not None:
        fields.append(
            Field("mtp.first_token_hidden_states", (S, "hidden_size"), config.hidden_dtype, 0.0,
                  on=_given("hidden_state"), engine_writes=True)  # the model leaves the state that a hand-over takes
        )  # fmt: skip
    if config.hybrid is not None:
        fields.append(ids("input_ids_cpu", (S, L), fill=-1, residency="host", on=_given("history")))
    return BufferLayout(config, fields)


def _lengths(prefix: str) -> list[Field]:
    """The lengths and flags that the target and the drafter both keep, and that a commit keeps equal (M6)."""

    def one(name: str, dtype: str, fill: int | bool, on: dict[str, Rule]) -> Field:
        twin = name if prefix else None
        return Field(prefix + name, (S,), dtype, fill, on=on, step_writes=True, twin_of=twin)

    return [
        one("seq_lens_encoder", "int32", 0, _chunks(column("chunk_len"), 0)),
        one("seq_lens_decoder", "int32", 0, _chunks(column("start"), column("start"))),
        one("seq_lens_this_time", "int32", 0, _chunks(column("chunk_len"), column("num_first_step_tokens"))),
        one("step_idx", "int32", 0, {"prefill": column("num_generated")}),
        one("stop_flags", "bool", True, {"prefill": False, "handover": column("ended")}),
    ]
