"""Rounding to nearest even where a conversion in two steps would round twice (rule W3)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray


def narrow(array: NDArray[Any], target: np.dtype[Any]) -> NDArray[Any]:
    """``array`` in the dtype ``target``, rounded once, to nearest even."""
    if target.name == "bfloat16":
        # ml_dtypes goes by float32, so what lies just above a tie would first round to the tie, then to even.
        array = _odd_float32(array) if array.dtype.kind in "iuf" else array
    return array.astype(target)


def odd_float(value: int) -> float:
    """A whole number as float64, rounded to odd: a later rounding to a narrower float then is as if done at once.

    Raises ``OverflowError`` beyond float64.
    """
    magnitude = abs(value)
    shift = magnitude.bit_length() - 53
    if shift <= 0:
        return float(value)
    kept = magnitude >> shift
    if kept << shift != magnitude:
        kept |= 1
    return math.copysign(math.ldexp(kept, shift), value)


def _odd_float32(array: NDArray[Any]) -> NDArray[np.float32]:
    if array.dtype.kind in "iu":
        array = _odd_float64(array)
    near = array.astype(np.float32)
    back = near.astype(array.dtype)
    inexact = (back != array) & ~np.isnan(array)
    bits = near.view(np.uint32)
    even = inexact & (bits & 1 == 0)
    # Bits order floats by magnitude, so the neighbour on the value's side is one more or one less.
    step = np.where(np.abs(back) < np.abs(array), 1, -1).astype(np.uint32)
    odd: NDArray[np.float32] = np.where(even, bits + step, bits).astype(np.uint32).view(np.float32)
    return odd


def _odd_float64(array: NDArray[Any]) -> NDArray[np.float64]:
    """Whole numbers as float64; from 2**40 up the lowest 12 bits become one, which keeps what lies beside a tie."""
    if array.dtype.itemsize < 8:
        return array.astype(np.float64)
    low = array & 0xFFF
    kept = (array - low) | np.where(low != 0, 0x1000, 0).astype(array.dtype)
    big = (array >= 2**40) | (array <= -(2**40)) if array.dtype.kind == "i" else array >= 2**40
    out: NDArray[np.float64] = np.where(big, kept, array).astype(np.float64)
    return out
