"""Options that several commands share: the sizes of a batch, and what they make."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from slotline.cli import console
from slotline.core.config import BatchConfig
from slotline.core.errors import ConfigError
from slotline.core.host_memory import machine_bytes
from slotline.core.layout import BufferLayout
from slotline.replay.model import EOS

VOCAB_SIZE = 151_936
MOST_DEFAULT_BLOCKS = 1 << 20
SIZES = "Sizes"
SPECULATION = "Speculation"


class SpecMethod(enum.StrEnum):
    NONE = "none"
    NGRAM = "ngram"
    SUFFIX = "suffix"
    MTP = "mtp"


MaxNumSeqs = Annotated[int, typer.Option(help="Slots: requests that run at a time.", rich_help_panel=SIZES)]
MaxModelLen = Annotated[int, typer.Option(help="Tokens of prompt and output together.", rich_help_panel=SIZES)]
MaxChunkTokens = Annotated[
    int, typer.Option(help="Tokens of the longest prefill chunk, and of one step.", rich_help_panel=SIZES)
]
BlockSize = Annotated[int, typer.Option(help="Tokens of one block of the KV cache.", rich_help_panel=SIZES)]
NumBlocks = Annotated[
    int | None,
    typer.Option(help="Blocks of the KV cache. (default: enough for every slot)", rich_help_panel=SIZES),
]
Method = Annotated[SpecMethod, typer.Option(help="How drafts are made.", rich_help_panel=SPECULATION)]
NumDraftTokens = Annotated[
    int | None, typer.Option(help="Drafts of one row in one step. (default: 3)", rich_help_panel=SPECULATION)
]
MtpLevels = Annotated[int | None, typer.Option(help="MTP heads. (default: 1)", rich_help_panel=SPECULATION)]
Json = Annotated[bool, typer.Option("--json", help="One line of JSON on stdout; all else goes to stderr.")]


def batch_config(
    *,
    max_num_seqs: int,
    max_model_len: int,
    max_chunk_tokens: int,
    block_size: int,
    num_blocks: int | None,
    spec_method: SpecMethod,
    num_draft_tokens: int | None,
    mtp_levels: int | None,
    **more: Any,
) -> BatchConfig:
    """The config that the options describe. Raises ``ConfigError``, also for options that have no effect together."""
    if spec_method is SpecMethod.NONE and num_draft_tokens is not None:
        raise ConfigError("--num-draft-tokens has no effect with --spec-method none; choose ngram, suffix or mtp")
    if spec_method is not SpecMethod.MTP and mtp_levels is not None:
        raise ConfigError(f"--mtp-levels has no effect with --spec-method {spec_method}; choose mtp")
    if num_blocks is None and min(max_num_seqs, max_model_len, block_size) > 0:
        per_seq = -(-max_model_len // block_size)
        num_blocks = max(per_seq, min(max_num_seqs * per_seq, MOST_DEFAULT_BLOCKS))
    return BatchConfig(
        max_num_seqs=max_num_seqs,
        max_model_len=max_model_len,
        max_chunk_tokens=max_chunk_tokens,
        block_size=block_size,
        num_blocks=num_blocks,
        spec_method=str(spec_method),
        num_draft_tokens=3 if num_draft_tokens is None else num_draft_tokens,
        mtp_levels=1 if mtp_levels is None else mtp_levels,
        vocab_size=VOCAB_SIZE,
        eos_token_ids=(EOS,),
        **more,
    )


def require_memory(layouts: Sequence[BufferLayout], copies: int) -> None:
    """Refuse before the machine runs out of memory: the buffers of ``layouts``, each ``copies`` times."""
    needed = sum(layout.nbytes for layout in layouts) * copies
    present = machine_bytes()
    if present is not None and needed > present:
        raise ConfigError(
            f"these sizes need {console.human_bytes(needed)}, this machine has {console.human_bytes(present)}; "
            "choose a smaller max_num_seqs or max_model_len"
        )
