"""The named quantities that rules of a field may refer to; a plan computes each at most once per call."""

from __future__ import annotations

from slotline.core.sampling import SCALAR_KINDS, SCALAR_NAMES

SCALARS: tuple[str, ...] = (
    "prompt_len",  # len(prompt)
    "num_generated",  # len(output); at a handover the first token counts too
    "start",  # of the chunk; at a handover len(history) - 1, or 0 if the first token ended the request (D4)
    "chunk_len",  # end - start
    "not_last",  # the chunk does not reach the end of the history
    "num_blocks",  # entries of the block table
    "num_first_step_tokens",  # D2; 0 if the first token ended the request
    "num_first_step_drafts",  # D2
    "ended",  # D4
    "finish_reason",  # D4
    "num_bad_tokens",
    *SCALAR_NAMES,  # the sampling values
)
"""One number for each task, written to every cell of the row."""

SPANS: dict[str, str] = {
    "history": "max_model_len",  # prompt + output, at a handover + first token
    "chunk": "max_chunk_tokens",  # history[start:end]
    "shifted_chunk": "max_chunk_tokens",  # M1, level 1
    "lookahead": "num_levels",  # M2
    "first_token": "1",  # D1
    "first_step_tokens": "num_drafts+1",  # D2
    "block_table": "max_blocks_per_seq",
    "bad_tokens": "max_bad_tokens",
    "stop_seqs": "stop_seqs_cells",  # P3, a block written whole
    "stop_seqs_len": "max_stop_seqs",
    "stop_match": "2",  # D4
    "hidden_state": "hidden_size",
}
"""A run of values for each task, from the row's first cell on, and its longest length; the rest of the row is fill."""

DTYPES_OF: dict[str, tuple[str, ...]] = {
    "int": ("int32", "int64", "float32", "float64"),
    "seed": ("int64",),
    "float": ("float32", "float64", "bfloat16"),
    "state": ("float32", "float64", "bfloat16", "float16"),
    "bool": ("bool", "int8", "uint8", "int32", "int64"),
}
"""The dtypes that hold every value of a kind of quantity, so that nothing wraps or becomes infinite in a field."""

KIND_OF: dict[str, str] = {
    **SCALAR_KINDS,
    "infer_seed": "seed",
    "hidden_state": "state",
    "not_last": "bool",
    "ended": "bool",
}
"""The kind of each quantity that is not ``int``."""

COLUMN_NAMES = frozenset(SCALARS) | frozenset(SPANS)

TOKEN_COLUMNS = frozenset(
    {"history", "chunk", "shifted_chunk", "lookahead", "first_token", "first_step_tokens", "bad_tokens", "stop_seqs"}
)
"""Quantities that are token ids: users' text, which a redacted recording hides (rule R)."""
