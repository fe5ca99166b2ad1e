"""SamplingParams: what a request asks of the sampler, named as the fields are."""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
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

    packed: bytes = field(default=b"", init=False, repr=False)
    """The scalar values as one record of ``RECORD``; made here, once."""
    stop_lists: tuple[Ids, ...] = field(default=(), init=False, repr=False)
    """``stop_seqs`` as arrays, as given."""
    sound: bool = field(default=True, init=False, repr=False)
    """Every scalar lies where no batch would refuse it, ``min_dec_len`` and ``max_dec_len`` seen each alone."""
    lists: Lists | None = field(default=None, init=False, repr=False)
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
_DEFAULTS: dict[str, Any] = {f.name: f.default for f in fields(SamplingParams) if f.init}
_MAX_DEC_LEN = list(_SCALARS).index("max_dec_len")
_FLAGS = [i for i, kind in enumerate(_SCALARS.values()) if kind == "?"]
assert list(range(_FLAGS[0], len(_SCALARS))) == _FLAGS
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
    **dict.fromkeys((name for name, kind in _SCALARS.items() if kind == "?"), (0, 1)),
    "min_dec_len": (0, _INT32[1]),
    "max_dec_len": (1, 2**63 - 1),
}
"""Bounds, both allowed, within which nothing is wrong; ``sampling_checks`` says what is wrong outside."""


class _Place(NamedTuple):
    """Of a scalar in the record."""

    pack: Callable[..., None]
    at: int
    low: float
    high: float
    kinds: frozenset[type]
    """Types that it may have to be packed without a closer look."""


_KINDS: dict[str, frozenset[type]] = {"d": frozenset((float, int)), "q": frozenset((int,)), "?": frozenset((bool,))}
_PLACES = {
    name: _Place(struct.Struct("<d" if kind == "d" else "<q").pack_into, 8 * i, *_SOUND[name], _KINDS[kind])
    for i, (name, kind) in enumerate(_SCALARS.items())
}
_set = object.__setattr__


def _init(self: SamplingParams, **given: Any) -> None:
    """What the dataclass's own does, in a fifth of its time: what is not given stays the class's own.

    Values that nothing is wrong with go into a copy of the default record; any other takes the long way.
    """
    record = bytearray(SamplingParams.packed)
    for name, value in given.items():
        known = _PLACES.get(name)
        if known is None or value.__class__ not in known.kinds or not known.low <= value <= known.high:  # type: ignore[operator]
            _settle(self, given)
            return
        known.pack(record, known.at, value)
    given["packed"] = bytes(record)
    _set(self, "__dict__", given)


def _settle(self: SamplingParams, given: dict[str, Any]) -> None:
    """Lists of ids, values that a batch may refuse, and what is no such parameter at all."""
    if not given.keys() <= _DEFAULTS.keys():
        _init.__wrapped__(self, **given)  # type: ignore[attr-defined]  # raises for the unknown name
    values = [given.get(name, _DEFAULTS[name]) for name in _SCALARS]
    if values[_MAX_DEC_LEN] is None:
        values[_MAX_DEC_LEN] = UNSET
    elif values[_MAX_DEC_LEN] == UNSET:
        values[_MAX_DEC_LEN] = UNSET + 1  # as far out of bounds, but given
    if not all(_is_flag(values[i]) for i in _FLAGS):
        raise TypeError(_wrong_kind(values))
    values[_FLAGS[0] :] = [bool(values[i]) for i in _FLAGS]
    try:
        given["packed"] = _STRUCT.pack(*values)
    except (struct.error, TypeError, ValueError):
        raise TypeError(_wrong_kind(values)) from None
    given["sound"] = all(_lies(given[name], place) for name, place in _PLACES.items() if name in given)
    stops = tuple(as_ids(seq, "stop_seqs") for seq in given.get("stop_seqs", ()))
    bad = as_ids(given.get("bad_tokens", ()), "bad_tokens")
    given |= {"stop_seqs": stops, "stop_lists": stops, "bad_tokens": bad}
    if stops or len(bad):
        given["lists"] = _lists(stops, bad)
    _set(self, "__dict__", given)


SamplingParams.__init__ = functools.wraps(SamplingParams.__init__)(_init)  # type: ignore[method-assign]


def _lies(value: Any, place: _Place) -> bool:
    try:
        return value is None or bool(place.low <= value <= place.high)
    except (TypeError, ValueError):  # a number of a kind that cannot be compared
        return False


def _lists(stop_lists: tuple[Ids, ...], bad: Ids) -> Lists:
    stops = tuple(strip_padding(seq) for seq in stop_lists)
    lens = [len(seq) for seq in stops] or [1]
    ids = np.concatenate((*stops, bad))
    low, high = (int(ids.min()), int(ids.max())) if len(ids) else (0, 0)
    return Lists(stops, min(lens), max(lens), low, high)


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


SamplingParams.packed = _STRUCT.pack(*(UNSET if v is None else v for v in list(_DEFAULTS.values())[: len(_SCALARS)]))
SamplingParams.bad_tokens = EMPTY
DEFAULT = SamplingParams()
