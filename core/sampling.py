"""SamplingParams: what a request asks of the sampler, named as the fields are."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from slotline.core.ids import Ids, IdsLike, as_ids

UNSET = -(2**63)
"""Stands for None in the packed form of a whole-number parameter."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SamplingParams:
    """Sampling values of one request, under the names of the fields that they fill.

    A value of the wrong kind is a ``TypeError`` here; a value out of bounds is a ``TaskError`` of ``insert_tasks``,
    which knows the request. Lists of ids are copied.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    min_p: float = 0.0
    penalty_score: float = 1.0
    frequency_score: float = 0.0
    presence_score: float = 0.0
    top_k: int = 0
    """0 = off."""
    infer_seed: int = 0
    min_dec_len: int = 0
    """Generated tokens before which neither end-of-sequence nor stop sequences count."""
    max_dec_len: int | None = None
    """Generated tokens at most. None: as many as the model's length leaves."""
    max_think_lens: int = -1
    max_reply_lens: int = -1
    limit_think_status: int = 0
    reasoning_status: int = 0
    ignore_eos: bool = False
    enable_thinking: bool = False
    temp_scaled_logprobs: bool = False
    top_p_normalized_logprobs: bool = False
    stop_seqs: Iterable[IdsLike] = ()
    """Stop sequences as lists of token ids; trailing -1 are padding."""
    bad_tokens: IdsLike = ()

    packed: bytes = field(default=b"", init=False, repr=False)
    """The scalar values as one record of ``RECORD``; made here, once."""
    stop_lists: tuple[Ids, ...] = field(default=(), init=False, repr=False)
    """``stop_seqs`` as arrays, as given."""

    RECORD: ClassVar[np.dtype[Any]]
    _STRUCT: ClassVar[struct.Struct]

    def __post_init__(self) -> None:
        set_ = object.__setattr__
        if not (isinstance(self.stop_seqs, tuple) and not self.stop_seqs):
            set_(self, "stop_lists", tuple(as_ids(s, "stop_seqs") for s in self.stop_seqs))
            set_(self, "stop_seqs", self.stop_lists)
        set_(self, "bad_tokens", as_ids(self.bad_tokens, "bad_tokens"))
        values = [getattr(self, name) for name in _SCALARS]
        if self.max_dec_len is None:
            values[_MAX_DEC_LEN] = UNSET
        elif self.max_dec_len == UNSET:
            values[_MAX_DEC_LEN] = UNSET + 1  # as far out of bounds, but given
        try:
            record = self._STRUCT.pack(*values)
        except (struct.error, TypeError, ValueError):
            raise TypeError(_wrong_kind(values)) from None
        if not all(_is_flag(values[i]) for i in _FLAGS):
            raise TypeError(_wrong_kind(values))
        set_(self, "packed", record)

    @staticmethod
    def columns(params: Iterable[SamplingParams]) -> NDArray[Any]:
        """A structured array, one record of ``RECORD`` for each of ``params``."""
        return np.frombuffer(b"".join([p.packed for p in params]), dtype=SamplingParams.RECORD)


def _is_flag(value: Any) -> bool:
    return type(value) is bool or (isinstance(value, (int, np.bool_)) and value in (0, 1))


def _kind(annotation: str) -> str:
    return {"float": "d", "int": "q", "int | None": "q", "bool": "?"}.get(annotation, "")


# The record follows from the annotations above, so that a new parameter is one line.
_SCALARS: dict[str, str] = {f.name: k for f in fields(SamplingParams) if (k := _kind(str(f.type)))}
_MAX_DEC_LEN = list(_SCALARS).index("max_dec_len")
_FLAGS = [i for i, kind in enumerate(_SCALARS.values()) if kind == "?"]  # struct takes anything for a bool
SamplingParams._STRUCT = struct.Struct("<" + "".join(_SCALARS.values()))
SamplingParams.RECORD = np.dtype([(n, {"d": "<f8", "q": "<i8", "?": "?"}[k]) for n, k in _SCALARS.items()])
assert SamplingParams._STRUCT.size == SamplingParams.RECORD.itemsize
SCALAR_NAMES = tuple(_SCALARS)
SCALAR_KINDS = {n: {"d": "float", "q": "int", "?": "bool"}[k] for n, k in _SCALARS.items()}
DEFAULT = SamplingParams()


def _wrong_kind(values: list[Any]) -> str:
    for (name, kind), value in zip(_SCALARS.items(), values, strict=True):
        try:
            struct.pack("<" + kind, value)
            if kind == "?" and not _is_flag(value):
                raise struct.error
        except (struct.error, TypeError, ValueError):
            expected = {"d": "a number", "q": "a whole number of 64 bits", "?": "a bool"}[kind]
            return f"SamplingParams.{name} is {value!r} ({type(value).__name__}), allowed: {expected}"
    return "SamplingParams: a value of the wrong kind"
