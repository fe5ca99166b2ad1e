"""Sources of writes: what is accepted, and what a destination's dtype can hold (rules W2, W3)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slotline.core.field import DTYPES
from slotline.core.layout import numpy_dtype
from slotline.core.rounding import narrow, odd_float

RANGES = {n: (int(np.iinfo(n).min), int(np.iinfo(n).max)) for n in DTYPES if "int" in n} | {"bool": (0, 1)}
_MANTISSA = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}
_EXACT = 2**53
"""Up to here every whole number is a float64."""


def from_host(src: Any, dtype: str, shape: tuple[int, ...], checked: bool = True) -> NDArray[Any]:
    """``src`` as a C-contiguous array of its own in ``dtype``, broadcast to ``shape``. ``src`` is not changed.

    Takes bool, int, float, nested lists and tuples of them, and NumPy arrays and scalars in any layout. Leading axes
    of length 1 may be missing or extra. Floats round to the nearest even value. ``checked=False``: values that do not
    fit are the caller's care.

    Raises ``TypeError`` naming the type of anything else; ``ValueError`` for a value that ``dtype`` cannot hold, or a
    shape that does not broadcast.
    """
    if type(src) is int and dtype in RANGES:  # the write of one number, which engines do most
        low, high = RANGES[dtype]
        if low <= src <= high:
            return np.full(shape, src, dtype)
    target = numpy_dtype(dtype)
    if type(src) is np.ndarray and src.dtype == target and src.shape == shape:
        return src.copy(order="C")
    array = _as_array(src, dtype)
    wide = _broadcast(array, shape)
    if array.dtype == target:
        return np.array(wide, order="C", copy=True)
    if checked and dtype in RANGES:
        _require_held(array, dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        cells = narrow(array, target)
    if checked and dtype not in RANGES:
        _refuse(array, np.isinf(cells) & ~np.isinf(array), dtype)
    return np.array(_broadcast(cells, shape), order="C", copy=True)


def check_device_source(source: str, target: str) -> None:
    """``TypeError`` unless every value of ``source`` fits ``target``, or both are floats (narrowing rounds)."""
    kind, into = _kind(source), _kind(target)
    if source == target or kind == "bool" or (kind == into == "float"):
        return
    if kind == "int" and into == "int":
        (low, high), (lowest, highest) = RANGES[source], RANGES[target]
        if lowest <= low and high <= highest:
            return
    if kind == "int" and into == "float" and RANGES[source][1].bit_length() <= _MANTISSA[target]:
        return
    raise TypeError(f"a device source of {source} cannot be written into {target} without loss; convert it first")


def check_shape(source: tuple[int, ...], target: tuple[int, ...]) -> None:
    """``ValueError`` unless a source of this shape broadcasts into a destination of that; extra axes of 1 may lead."""
    _broadcast(np.broadcast_to(np.False_, source), target)


def _kind(dtype: str) -> str:
    if dtype not in DTYPES:
        raise TypeError(f"dtype {dtype} is not supported, allowed: {', '.join(DTYPES)}")
    return "bool" if dtype == "bool" else "int" if "int" in dtype else "float"


def _broadcast(array: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    extra = max(0, array.ndim - len(shape))
    try:
        if any(n != 1 for n in array.shape[:extra]):
            raise ValueError
        return np.broadcast_to(array.reshape(array.shape[extra:]) if extra else array, shape)
    except ValueError:
        raise ValueError(f"a source of shape {array.shape} does not fit into a destination of shape {shape}") from None


def _as_array(src: Any, dtype: str) -> NDArray[Any]:
    if isinstance(src, (np.ndarray, np.generic)):
        array = np.asarray(src)
    elif isinstance(src, (bool, int, float, list, tuple)):
        array = _from_numbers(src, dtype)
    else:
        raise TypeError(f"a source is {type(src).__name__}, allowed: numbers, nested lists, arrays, tensors")
    if array.dtype.kind in "UST":
        text = next((v for v in _flat(src) if isinstance(v, (str, bytes))), "") if array.size else ""
        raise ValueError(f"{_shown(text)} is text, {dtype} cannot hold it")
    if array.dtype.kind not in "biuf" and array.dtype.name not in DTYPES:
        raise TypeError(f"a source is an array of {array.dtype}, allowed: bool, whole numbers, floats")
    return array


def _from_numbers(src: Any, dtype: str) -> NDArray[Any]:
    try:
        array = np.array(src)
    except (ValueError, OverflowError):
        raise ValueError("a source is a ragged list, allowed: lists of one length at each depth") from None
    if array.dtype.kind not in "Of":
        return array
    # Beyond 64 bits NumPy gives objects; numbers of several kinds it rounds to floats (2**63 + 1 beside -1 or 0.5).
    found = [v.item() if isinstance(v, (np.number, np.bool_)) else v for v in _flat(src)]
    for value in found:
        if isinstance(value, (str, bytes)):
            raise ValueError(f"{_shown(value)} is text, {dtype} cannot hold it")
        if not isinstance(value, (bool, int, float)):
            raise TypeError(f"a source holds {type(value).__name__}, allowed: numbers")
    if all(isinstance(v, float) or -_EXACT <= v <= _EXACT for v in found):
        return array
    return np.array([_exact(v, dtype) for v in found], dtype if dtype in RANGES else np.float64).reshape(array.shape)


def _exact(value: float, dtype: str) -> float:
    """One number as the nearest thing that rounds like it; ``ValueError`` if ``dtype`` cannot hold it."""
    if dtype not in RANGES:
        if isinstance(value, float):
            return value
        try:
            return float(value) if dtype == "float64" else odd_float(value)
        except OverflowError:
            raise ValueError(f"{_shown(value)} does not fit into {dtype}; nothing was written") from None
    low, high = RANGES[dtype]
    # The comparison of an int with a float is exact in Python; NaN and infinities fail the first.
    if not low <= value <= high or value != int(value):
        raise ValueError(f"{_shown(value)} does not fit into {dtype}; nothing was written")
    return int(value)


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _flat(item)
    elif isinstance(value, np.ndarray):
        yield from value.reshape(-1).tolist()
    else:
        yield value


def _shown(value: Any) -> str:
    """Text for a message; whole numbers of thousands of digits cannot even be printed."""
    if isinstance(value, int) and value.bit_length() > 256:
        return f"a whole number of {value.bit_length()} bits"
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _refuse(array: NDArray[Any], bad: NDArray[np.bool_], dtype: str) -> None:
    if bad.any():
        value = array[bad].reshape(-1)[0].item()
        raise ValueError(f"{_shown(value)} does not fit into {dtype}; nothing was written")


def _require_held(array: NDArray[Any], dtype: str) -> None:
    """``ValueError`` naming the first value that ``dtype``, a whole number or bool, cannot hold."""
    low, high = RANGES[dtype]
    kind = array.dtype.kind
    if kind == "b" or not array.size:
        return
    if dtype == "bool":
        _refuse(array, (array != 0) & (array != 1), dtype)
    elif kind in "iu":
        have = np.iinfo(array.dtype)
        bad = np.zeros(array.shape, bool)
        if have.min < low:
            bad |= array < low
        if have.max > high:
            bad |= array > high
        _refuse(array, bad, dtype)
    else:
        # float16 and bfloat16 first widen. Below, high + 1 is a power of two, so both bounds are exact.
        wide = array if array.dtype.itemsize >= 8 else array.astype(np.float64)
        with np.errstate(invalid="ignore"):
            held = (wide >= float(low)) & (wide <= math.nextafter(float(high + 1), 0)) & (wide == np.floor(wide))
        _refuse(array, ~held, dtype)
