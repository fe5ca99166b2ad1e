"""BatchConfig: the numbers from which a layout is made."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field, fields
from typing import Any

from slotline.core.errors import ConfigError, nearest

SPEC_METHODS = ("none", "ngram", "suffix", "mtp")
ROLES = ("mixed", "prefill", "decode")
_INT32_MAX = 2**31 - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class BatchConfig:
    """The sizes, the speculation method and the role of one batch. Checked when made: ``ConfigError``.

    ``num_drafts`` (K) and ``num_levels`` (M) are what the rules call K and M: 0 where the method needs none.
    """

    max_num_seqs: int
    """Slots (S)."""
    max_model_len: int
    """Tokens of prompt and output together (L)."""
    vocab_size: int
    max_chunk_tokens: int = 2048
    """Tokens of the longest prefill chunk (C)."""
    block_size: int = 64
    """Tokens of one block of the paged KV cache."""
    num_blocks: int | None = None
    """Blocks of the KV cache; None: known later, see ``SlotBatch.set_num_blocks``."""
    eos_token_ids: tuple[int, ...] = ()
    pad_token_id: int = 0
    max_stop_seqs: int = 5
    """Stop sequences of one request (N)."""
    stop_seqs_max_len: int = 8
    """Tokens of one stop sequence (W)."""
    max_bad_tokens: int = 16
    token_dtype: str = "int64"
    null_block: int | None = None
    """A block id that may stand several times in one row (a block that no one reads)."""
    spec_method: str = "none"
    num_draft_tokens: int = 1
    mtp_levels: int = 1
    """MTP heads; head k drafts the k-th token ahead."""
    hybrid: str | None = None
    """``"ngram"`` or ``"suffix"`` beside MTP: adds ``input_ids_cpu``."""
    hidden_size: int | None = None
    hidden_dtype: str = "float32"
    role: str = "mixed"
    _dims: dict[str, int] = field(default_factory=dict, init=False, repr=False, compare=False, hash=False)

    def __post_init__(self) -> None:
        for name, lowest, highest in (
            ("max_num_seqs", 1, _INT32_MAX),
            ("max_model_len", 2, _INT32_MAX),
            ("vocab_size", 1, _INT32_MAX),
            ("max_chunk_tokens", 1, _INT32_MAX),
            ("block_size", 1, _INT32_MAX),
            ("max_stop_seqs", 0, _INT32_MAX),
            ("stop_seqs_max_len", 1, _INT32_MAX),
            ("max_bad_tokens", 0, _INT32_MAX),
            ("num_draft_tokens", 0, _INT32_MAX),
            ("mtp_levels", 0, _INT32_MAX),
            ("pad_token_id", 0, self.vocab_size),
        ):
            self._set(name, _whole(name, getattr(self, name), lowest, highest))
        for name, lowest in (("num_blocks", 1), ("hidden_size", 1), ("null_block", 0)):
            if getattr(self, name) is not None:
                self._set(name, _whole(name, getattr(self, name), lowest, _INT32_MAX))
        self._set(
            "eos_token_ids", tuple(_whole("eos_token_ids", t, 0, self.vocab_size - 1) for t in self.eos_token_ids)
        )
        if self.pad_token_id >= self.vocab_size:
            raise ConfigError(
                f"pad_token_id is {self.pad_token_id}, allowed: 0 to vocab_size - 1 = {self.vocab_size - 1}"
            )
        if self.num_blocks is not None and self.null_block is not None and self.null_block >= self.num_blocks:
            raise ConfigError(f"null_block is {self.null_block}, allowed: below num_blocks = {self.num_blocks}")
        _one_of("token_dtype", self.token_dtype, ("int64", "int32"))
        _one_of("hidden_dtype", self.hidden_dtype, ("float32", "float16", "bfloat16", "float64"))
        _one_of("spec_method", self.spec_method, SPEC_METHODS)
        _one_of("role", self.role, ROLES)
        self._check_speculation()
        self._dims.update(self._resolved_dims())

    def _check_speculation(self) -> None:
        if self.hybrid is not None:
            _one_of("hybrid", self.hybrid, ("ngram", "suffix"))
            if self.spec_method != "mtp":
                raise ConfigError(f"hybrid is {self.hybrid!r} with spec_method {self.spec_method!r}; it needs 'mtp'")
        if self.spec_method == "none":
            return
        if self.num_draft_tokens < 1:
            raise ConfigError(f"num_draft_tokens is 0 with spec_method {self.spec_method!r}; it needs at least 1")
        if self.spec_method == "mtp" and not 1 <= self.mtp_levels <= min(self.num_draft_tokens, self.max_chunk_tokens):
            raise ConfigError(
                f"mtp_levels is {self.mtp_levels}, allowed: 1 to the lower of num_draft_tokens = "
                f"{self.num_draft_tokens} and max_chunk_tokens = {self.max_chunk_tokens}"
            )

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    @property
    def num_drafts(self) -> int:
        """K: drafts of one decode row, 0 without speculation."""
        return 0 if self.spec_method == "none" else self.num_draft_tokens

    @property
    def num_levels(self) -> int:
        """M: MTP heads, 0 unless the method is mtp."""
        return self.mtp_levels if self.spec_method == "mtp" else 0

    @property
    def max_blocks_per_seq(self) -> int:
        """ceil(max_model_len / block_size), the width of a block table."""
        return -(-self.max_model_len // self.block_size)

    @property
    def stop_seqs_cells(self) -> int:
        """Cells of one request's block of stop sequences."""
        return self.max_stop_seqs * self.stop_seqs_max_len

    def _resolved_dims(self) -> dict[str, int]:
        names = (f.name for f in fields(self) if f.init)
        sizes = {n: v for n in names if isinstance(v := getattr(self, n), int) and not isinstance(v, bool)}
        for derived in ("num_drafts", "num_levels", "max_blocks_per_seq", "stop_seqs_cells"):
            sizes[derived] = getattr(self, derived)
        return sizes

    def resolve(self, dim: int | str) -> int:
        """The size of one dim: a number, a name such as ``"max_model_len"``, or a sum such as ``"num_drafts+1"``."""
        if isinstance(dim, int) and not isinstance(dim, bool):
            return dim
        if not isinstance(dim, str):
            raise ConfigError(f"a dim is {dim!r}, allowed: a number or a name; known names: {', '.join(self._dims)}")
        total = 0
        for part in (p.strip() for p in dim.split("+")):
            if part.isdecimal():
                total += int(part)
            elif part in self._dims:
                total += self._dims[part]
            else:
                known, hint = ", ".join(sorted(self._dims)), nearest(part, self._dims) or "."
                raise ConfigError(f"dim {dim!r} has no size here{hint} Known names: {known}")
        return total


def _whole(name: str, value: Any, lowest: int, highest: int) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise ConfigError(f"{name} is {value!r} ({type(value).__name__}), allowed: a whole number") from None
    if isinstance(value, bool) or not lowest <= number <= highest:
        raise ConfigError(f"{name} is {value!r}, allowed: {lowest} to {highest}")
    return number


def _one_of(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        hint = nearest(value, allowed) if isinstance(value, str) else ""
        raise ConfigError(f"{name} is {value!r}, allowed: {', '.join(allowed)}{hint}")
