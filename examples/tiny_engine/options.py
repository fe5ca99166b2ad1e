"""What an engine is made from; the two peers of a split have the same options but the role."""

from __future__ import annotations

from dataclasses import dataclass

import slotline as sl
from examples.tiny_engine.model import EOS, MAX_LEN, VOCAB_SIZE

HEADS = 3
FRAMEWORKS = ("numpy", "torch", "paddle")
METHODS = ("none", "ngram", "mtp")
MAX_CACHE_TOKENS = 1 << 20
BOUNDS = {
    "num_draft_tokens": (1, 16),
    "max_num_seqs": (1, 1024),
    "max_model_len": (2, MAX_LEN),
    "block_size": (1, MAX_LEN),
    "num_blocks": (1, MAX_CACHE_TOKENS),
    "token_budget": (1, 1 << 20),
    "condense_every": (0, 1 << 31),
}
"""Lowest and highest value; beyond them nothing is gained, or no memory holds it."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Sizes, method and role of one engine. ``ValueError`` or slotline's ``ConfigError`` for what cannot work."""

    framework: str = "numpy"
    """Whose tensors the batch's buffers and the step's arrays are."""
    spec_method: str = "none"
    num_draft_tokens: int = 1
    """K: drafts of one row in one step."""
    mtp_levels: int | None = None
    """M: heads that are run; drafts beyond them come from the last. None: as many as there are drafts."""
    chunk: int | None = None
    """Tokens of the longest prefill chunk; None: whole prompts."""
    max_num_seqs: int = 8
    max_model_len: int = MAX_LEN
    block_size: int = 16
    num_blocks: int = 256
    token_budget: int = 1024
    """Tokens of one step at most."""
    overlap: bool = True
    """Take a step's results when the next one has been launched, so that the device never waits for the host. Drafts
    by prompt lookup are made of results, so they leave no time for it."""
    condense_every: int = 0
    """Close the gaps between the rows every so many steps; 0: never."""
    role: str = "mixed"

    def __post_init__(self) -> None:
        for name, allowed in (("framework", FRAMEWORKS), ("spec_method", METHODS)):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} is {getattr(self, name)!r}, allowed: {', '.join(allowed)}")
        if self.chunk is not None and self.chunk < 1:
            raise ValueError(f"chunk is {self.chunk}, allowed: at least 1, or None for whole prompts")
        for name, (lowest, highest) in BOUNDS.items():
            if not lowest <= getattr(self, name) <= highest:
                raise ValueError(f"{name} is {getattr(self, name)}, allowed: {lowest} to {highest}")
        if self.num_blocks * self.block_size > MAX_CACHE_TOKENS:
            raise ValueError(
                f"num_blocks * block_size is {self.num_blocks * self.block_size}, allowed: {MAX_CACHE_TOKENS}"
            )
        if self.spec_method == "none" and self.num_draft_tokens != 1:
            raise ValueError(f"num_draft_tokens is {self.num_draft_tokens}, but spec_method 'none' makes no drafts")
        if self.spec_method != "mtp" and self.mtp_levels is not None:
            raise ValueError(f"mtp_levels is {self.mtp_levels}, but spec_method {self.spec_method!r} runs no heads")
        config = self.batch_config()
        if config.num_levels > HEADS or 0 < config.num_levels < config.num_drafts - 2:
            raise ValueError(
                f"{config.num_drafts} drafts from {config.num_levels} heads, allowed: at most {HEADS} heads, and at "
                "most 2 drafts beyond them"
            )
        if self.num_blocks < config.max_blocks_per_seq:
            raise ValueError(
                f"num_blocks is {self.num_blocks}, allowed: at least {config.max_blocks_per_seq}, for one row"
            )
        least = self.max_num_seqs * (1 + config.num_drafts) + config.num_levels
        if self.token_budget < least:
            raise ValueError(f"token_budget is {self.token_budget}, allowed: at least {least}, a step of all rows")

    @property
    def lags(self) -> bool:
        """The scheduler plans without the newest step's results."""
        return self.overlap and self.spec_method != "ngram"

    @property
    def levels(self) -> int:
        return self.num_draft_tokens if self.mtp_levels is None else self.mtp_levels

    def batch_config(self) -> sl.BatchConfig:
        return sl.BatchConfig(
            max_num_seqs=self.max_num_seqs,
            max_model_len=self.max_model_len,
            vocab_size=VOCAB_SIZE,
            eos_token_ids=(EOS,),
            max_chunk_tokens=min(max(self.chunk or self.max_model_len, self.levels), self.max_model_len),
            block_size=self.block_size,
            num_blocks=self.num_blocks,
            spec_method=self.spec_method,
            num_draft_tokens=self.num_draft_tokens,
            mtp_levels=self.levels,
            role=self.role,
        )
