"""The standard fields: the contract's table, literally (rules F, P1)."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

import slotline as sl

S, L, C, K, M, N, W, B, BAD, H = 5, 30, 12, 3, 2, 4, 6, 8, 7, 9  # B: ceil(L / block_size)

ZERO = (
    "finish_reason", "prompt_lens", "seq_lens_encoder", "seq_lens_decoder", "seq_lens_this_time", "step_idx",
    "mtp.seq_lens_encoder", "mtp.seq_lens_decoder", "mtp.seq_lens_this_time", "mtp.step_idx",
    "step_seq_lens_this_time", "encoder_block_lens", "min_dec_len", "max_dec_len", "top_k", "bad_tokens_len",
    "accept_num", "actual_draft_token_num", "limit_think_status", "reasoning_status", "mtp.recompute_token_num",
    "mtp.mask_rollback",
)  # fmt: skip
FALSE = (
    "is_block_step", "is_chunk_step", "ignore_eos", "enable_thinking", "temp_scaled_logprobs",
    "top_p_normalized_logprobs", "mtp.batch_drop",
)  # fmt: skip
TOKEN = {
    "token_ids_all": ((S, L), -1),
    "input_ids": ((S, C), 11),
    "mtp.input_ids": ((S, C), 11),
    "draft_tokens": ((S, K + 1), -1),
    "accept_tokens": ((S, K + 1), -1),
    "step_draft_tokens": ((S, K + 1), -1),
    "stop_seqs": ((S, N, W), -1),
    "bad_tokens": ((S, BAD), -1),
    "mtp.lookahead_tokens": ((S, M), -1),
    "next_tokens": ((S,), -1),
    "input_ids_cpu": ((S, L), -1),
}
INT32 = {
    "block_tables": ((S, B), -1),
    "mtp.block_tables": ((S, B), -1),
    "stop_seqs_len": ((S, N), 0),
    "stop_match": ((S, 2), -1),
    "max_think_lens": ((S,), -1),
    "max_reply_lens": ((S,), -1),
    **dict.fromkeys(ZERO, ((S,), 0)),
}
FLOAT32 = {
    "temperature": ((S,), 1.0),
    "top_p": ((S,), 1.0),
    "min_p": ((S,), 0.0),
    "penalty_score": ((S,), 1.0),
    "frequency_score": ((S,), 0.0),
    "presence_score": ((S,), 0.0),
}
BOOL = {
    "stop_flags": ((S,), True),
    "mtp.stop_flags": ((S,), True),
    **dict.fromkeys(FALSE, ((S,), False)),
}
HIDDEN = {"mtp.first_token_hidden_states": ((S, H), 0.0)}
INT64 = {"infer_seed": ((S,), 0)}
GROUPS = {
    "penalties": {"penalty_score", "frequency_score", "presence_score"},
    "bad_words": {"bad_tokens", "bad_tokens_len"},
    "thinking": {"enable_thinking", "max_think_lens", "max_reply_lens", "limit_think_status", "reasoning_status"},
    "logprobs": {"temp_scaled_logprobs", "top_p_normalized_logprobs"},
    "engine": {"step_draft_tokens", "step_seq_lens_this_time", "is_block_step", "mtp.batch_drop"},
}


def config(**values: Any) -> sl.BatchConfig:
    return sl.BatchConfig(
        **{
            "max_num_seqs": S,
            "max_model_len": L,
            "max_chunk_tokens": C,
            "block_size": 4,
            "vocab_size": 100,
            "pad_token_id": 11,
            "max_stop_seqs": N,
            "stop_seqs_max_len": W,
            "max_bad_tokens": BAD,
            "spec_method": "mtp",
            "num_draft_tokens": K,
            "mtp_levels": M,
            "hybrid": "ngram",
            "hidden_size": H,
            **values,
        }
    )


def joined(c: sl.BatchConfig) -> sl.BufferLayout:
    return sl.target_layout(c) | sl.mtp_layout(c)


@pytest.mark.parametrize("token", ["int64", "int32"])
@pytest.mark.parametrize("hidden", ["float32", "float16", "float64", "bfloat16"])
def test_f_the_standard_fields(token: str, hidden: str) -> None:
    layout = joined(config(token_dtype=token, hidden_dtype=hidden))
    want = {
        name: (dtype, shape, fill)
        for dtype, table in (
            (token, TOKEN), ("int32", INT32), ("float32", FLOAT32), ("bool", BOOL), ("int64", INT64), (hidden, HIDDEN),
        )
        for name, (shape, fill) in table.items()
    }  # fmt: skip
    assert {f.name: (f.dtype, layout.shape(f.name), f.fill) for f in layout} == want


def test_f2_residencies() -> None:
    layout = joined(config())
    assert {f.name for f in layout if f.residency == "host"} == {"is_chunk_step", "input_ids_cpu"}
    written = {f.name for f in layout if f.step_writes or f.engine_writes}
    assert not written & {f.name for f in layout if f.residency == "mirrored"}


def test_f_groups() -> None:
    layout = joined(config())
    assert {g: {f.name for f in layout if f.group == g} for g in GROUPS} == GROUPS
    assert {f.group for f in layout} == {"", *GROUPS}
    for group, names in GROUPS.items():
        assert set(layout.names) - set(layout.without(group).names) == names


def test_f_multimodal_only_when_asked_for() -> None:
    plain, more = sl.target_layout(config()), sl.target_layout(config(), multimodal=True)
    added = {f.name: (f.dtype, more.shape(f.name), f.fill, f.group) for f in more if f.name not in plain}
    assert added == {
        "attn_mask_offsets": ("int32", (S, L), -1, "multimodal"),
        "rope_position_ids": ("int32", (S, 3, L), 0, "multimodal"),
    }


def test_f_what_the_method_decides() -> None:
    c = config(spec_method="none", hybrid=None)
    layout = sl.target_layout(c)
    assert (c.num_drafts, c.num_levels) == (0, 0)
    assert layout.shape("draft_tokens") == (S, 1)
    with pytest.raises(sl.ConfigError, match="mtp"):
        sl.mtp_layout(c)
    bare = sl.mtp_layout(config(hybrid=None, hidden_size=None))
    assert not {"input_ids_cpu", "mtp.first_token_hidden_states"} & set(bare.names)


def test_f_sampling_parameters_are_fields() -> None:
    layout = joined(config())
    defaults = sl.SamplingParams()
    names = {f.name for f in dataclasses.fields(sl.SamplingParams) if f.init}
    assert names <= set(layout.names)
    for name in names - {"max_dec_len", "stop_seqs", "bad_tokens"}:
        assert getattr(defaults, name) == layout[name].fill, name
    assert (defaults.max_dec_len, len(list(defaults.stop_seqs)), len(list(defaults.bad_tokens))) == (None, 0, 0)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"num_draft_tokens": 0}, "num_draft_tokens"),
        ({"mtp_levels": 0}, "mtp_levels"),
        ({"mtp_levels": 4}, "mtp_levels"),
        ({"max_chunk_tokens": 1}, "max_chunk_tokens"),
        ({"pad_token_id": 100}, "pad_token_id"),
        ({"eos_token_ids": (100,)}, "eos_token_ids"),
        ({"role": "both"}, "role"),
        ({"spec_method": "eagle"}, "spec_method"),
        ({"spec_method": "ngram"}, "hybrid"),
        ({"max_model_len": 1}, "max_model_len"),
        ({"max_num_seqs": 0}, "max_num_seqs"),
        ({"token_dtype": "int16"}, "token_dtype"),
    ],
)
def test_f_a_config_is_checked(values: dict[str, Any], text: str) -> None:
    with pytest.raises(sl.ConfigError, match=text):
        config(**values)
