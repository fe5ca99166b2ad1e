"""Lists of ids as arrays: strict, copied, read-only."""

from __future__ import annotations

import array
import operator
import struct
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]
IdsLike = Iterable[int] | NDArray[Any]

EMPTY: Ids = np.empty(0, np.int64)
EMPTY.flags.writeable = False
_SIGNED = frozenset("bhilq")
"""Characters of the dtypes that int64 holds whatever the values."""


def as_ids(values: IdsLike, what: str) -> Ids:
    """``values`` as a read-only int64 array [n] of its own memory.

    Takes lists, tuples, ranges and one-dimensional integer arrays. Floats, text and arrays of bool are a
    ``TypeError`` (in a list True counts as 1, as everywhere in Python), ids beyond 64 bits a ``ValueError``. The
    bounds of a vocabulary are checked later, where they are known.
    """
    if values.__class__ is tuple and not values:  # what is not given is ()
        return EMPTY
    if isinstance(values, np.ndarray):
        plain = values.ndim == 1 and values.dtype.char in _SIGNED
        ids = values.astype(np.int64) if plain else _from_array(values, what)
        ids.setflags(write=False)
        return ids
    packed = pack_ids(values, what)
    return np.frombuffer(packed, np.int64) if packed else EMPTY


def pack_ids(values: IdsLike, what: str) -> bytes:
    """``as_ids`` as the bytes of its int64."""
    if isinstance(values, np.ndarray):
        return _from_array(values, what).tobytes()
    if values.__class__ is list or values.__class__ is tuple:
        try:
            return struct.pack(f"{len(values)}q", *values)  # half of an array.array's time
        except struct.error:
            pass  # what is wrong is said below
    return _from_list(values, what).tobytes()


def _from_array(values: NDArray[Any], what: str) -> Ids:
    if values.ndim == 1 and values.dtype.char in _SIGNED:
        return values.astype(np.int64)
    if values.size == 0 and values.ndim == 1:
        return EMPTY
    if values.dtype.kind not in "iu" or values.ndim != 1:
        raise TypeError(
            f"{what} is an array of {values.dtype} with shape {values.shape}, allowed: whole numbers, shape [n]"
        )
    if values.dtype == np.uint64 and int(values.max()) > np.iinfo(np.int64).max:
        raise ValueError(f"{what} holds {int(values.max())}, allowed: whole numbers of 64 bits with sign")
    return values.astype(np.int64)


def _from_list(values: Iterable[int], what: str) -> array.array[int]:
    if isinstance(values, (str, bytes, bytearray)) or not isinstance(values, Iterable):
        raise TypeError(f"{what} is {values!r} ({type(values).__name__}), allowed: a list or an array of token ids")
    try:
        return array.array("q", values)
    except OverflowError:
        raise ValueError(f"{what} holds a number beyond 64 bits") from None
    except TypeError:
        raise TypeError(f"{what} holds something that is not a whole number") from None


def whole_number(what: str, value: Any) -> int:
    """An argument as an int; ``TypeError`` naming it for anything else, bool included."""
    if value.__class__ is int:
        return value
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise TypeError(f"{what} is {value!r} ({type(value).__name__}), allowed: a whole number") from None
