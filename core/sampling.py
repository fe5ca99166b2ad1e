"""SamplingParams: what a request asks of the sampler, named as the fields are."""

from __future__ import annotations

import functools
import struct
from collections.abc import Iterable
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slotline.core.ids import EMPTY, Ids, IdsLike, as_ids
from slotline.core.padding import strip_padding

UNSET = -(2**63)
"""Stands for None in the packed form of a whole-number parameter."""


class Lists(NamedTuple):
    """What is to be known of the stop sequences and bad words of a request that has some."""

    stops: tuple[Ids, ...]
    """The stop sequences without padding."""
    shortest: int
    longest: int
    """Of them; 1 where there are none."""
    lowest: int
    highest: int
    """Of all ids, the bad words' too."""


@dataclass(frozen=True, kw_only=True, eq=False)
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

    packed: bytes = field(init=False, repr=False)
    """The scalar values as one record of ``RECORD``; made here, once."""
    stop_lists: tuple[Ids, ...] = field(init=False, repr=False)
    """``stop_seqs`` as arrays, as given."""
    sound: bool = field(init=False, repr=False)
    """Every scalar lies where no batch would refuse it, ``min_dec_len`` and ``max_dec_len`` seen each alone."""
    lists: Lists | None = field(init=False, repr=False)
    """None: neither stop sequences nor bad words."""

    RECORD: ClassVar[np.dtype[Any]]
    """One word of 8 bytes for each scalar."""

    @staticmethod
    def columns(params: Iterable[SamplingParams]) -> NDArray[Any]:
        """A structured array, one record of ``RECORD`` for each of ``params``."""
        return np.frombuffer(b"".join([p.packed for p in params]), dtype=SamplingParams.RECORD)


def _is_flag(value: Any) -> bool:
    return type(value) is bool or (isinstance(value, (int, np.bool_)) and value in (0, 1))


def _kind(annotation: str) -> str:
    return {"float": "d", "int": "q", "int | None": "q", "bool": "?"}.get(annotation, "")


# The record follows from the annotations above, so that a new parameter is one line; the scalars come first.
_SCALARS: dict[str, str] = {f.name: k for f in fields(SamplingParams) if f.init and (k := _kind(str(f.type)))}
_DEFAULTS: dict[str, Any] = {f.name: f.default for f in fields(SamplingParams) if f.default is not MISSING}
_MAX_DEC_LEN = list(_SCALARS).index("max_dec_len")
_FLAGS = [i for i, kind in enumerate(_SCALARS.values()) if kind == "?"]
_FIRST_FLAG = _FLAGS[0]
_NAMES_OF_FLAGS = frozenset(name for name, kind in _SCALARS.items() if kind == "?")
_COUNT = len(_SCALARS)
_LISTS = ("stop_seqs", "bad_tokens")
assert list(_DEFAULTS) == [*_SCALARS, *_LISTS]
assert list(range(_FIRST_FLAG, len(_SCALARS))) == _FLAGS
_STRUCT = struct.Struct("<" + "".join(_SCALARS.values()).replace("?", "q"))
SamplingParams.RECORD = np.dtype([(n, {"d": "<f8", "q": "<i8", "?": "<i8"}[k]) for n, k in _SCALARS.items()])
assert _STRUCT.size == SamplingParams.RECORD.itemsize == 8 * len(_SCALARS)
SCALAR_NAMES = tuple(_SCALARS)
SCALAR_KINDS = {n: {"d": "float", "q": "int", "?": "bool"}[k] for n, k in _SCALARS.items()}

_INT32 = (-(2**31), 2**31 - 1)
_FLOAT32 = (-float(np.finfo(np.float32).max), float(np.finfo(np.float32).max))
_TINY = float(np.nextafter(np.float32(0), np.float32(1)))  # what is positive for the device too
_SOUND: dict[str, tuple[float, float]] = dict.fromkeys(_SCALARS, _INT32) | {
    "temperature": (0.0, _FLOAT32[1]),
    "top_p": (_TINY, 1.0),
    "min_p": (0.0, 1.0),
    "penalty_score": (_TINY, _FLOAT32[1]),
    "frequency_score": _FLOAT32,
    "presence_score": _FLOAT32,
    "top_k": (0, _INT32[1]),
    "infer_seed": (-(2**63), 2**63 - 1),
    "min_dec_len": (0, _INT32[1]),
    "max_dec_len": (1, 2**63 - 1),
}
"""Bounds, both allowed, within which nothing is wrong; ``sampling_checks`` says what is wrong outside."""


_STATE: dict[str, Any] = {
    **_DEFAULTS,
    "bad_tokens": EMPTY,
    "packed": b"",
    "stop_lists": (),
    "sound": True,
    "lists": None,
}


def _init(self: SamplingParams, **given: Any) -> None:
    """What the dataclass's own does, in a fifth of its time: one dictionary, and a look at what was given only."""
    state = {**_STATE, **given}
    sound, lists = True, False
    for name, value in given.items():
        bounds = _SOUND.get(name)
        if bounds is None:
            if name not in _LISTS:
                _init.__wrapped__(self, **given)  # type: ignore[attr-defined]  # raises for the unknown name
            lists = True
        else:
            sound = sound and _lies(value, *bounds)
    values = [*state.values()][:_COUNT]
    limit = values[_MAX_DEC_LEN]
    if limit is None:
        values[_MAX_DEC_LEN] = UNSET
    elif limit == UNSET:
        values[_MAX_DEC_LEN] = UNSET + 1  # as far out of bounds, but given
    try:
        if not (_NAMES_OF_FLAGS.isdisjoint(given) or all(type(flag) is bool for flag in values[_FIRST_FLAG:])):
            _settle_flags(values)
        state["packed"] = _STRUCT.pack(*values)
    except (struct.error, TypeError, ValueError):
        raise TypeError(_wrong_kind(values)) from None
    state["sound"] = sound
    if lists:
        stops = state["stop_seqs"] = state["stop_lists"] = tuple(as_ids(s, "stop_seqs") for s in state["stop_seqs"])
        bad = state["bad_tokens"] = as_ids(state["bad_tokens"], "bad_tokens")
        if stops or len(bad):
            state["lists"] = _lists(stops, bad)
    self.__dict__.update(state)


SamplingParams.__init__ = functools.wraps(SamplingParams.__init__)(_init)  # type: ignore[method-assign]


def _lies(value: Any, low: float, high: float) -> bool:
    try:
        return value is None or bool(low <= value <= high)
    except (TypeError, ValueError):  # a number of a kind that cannot be compared
        return False


def _lists(stop_lists: tuple[Ids, ...], bad: Ids) -> Lists:
    stops = tuple(strip_padding(seq) for seq in stop_lists)
    lens = [len(seq) for seq in stops] or [1]
    ids = np.concatenate((*stops, bad))
    low, high = (int(ids.min()), int(ids.max())) if len(ids) else (0, 0)
    return Lists(stops, min(lens), max(lens), low, high)


def _settle_flags(values: list[Any]) -> None:
    """0, 1 and NumPy's bools as words; ``TypeError`` for anything else."""
    if not all(_is_flag(values[i]) for i in _FLAGS):
        raise TypeError(_wrong_kind(values))
    values[_FIRST_FLAG:] = [bool(flag) for flag in values[_FIRST_FLAG:]]


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


DEFAULT = SamplingParams()
