"""Sources of writes: what is accepted, and what a destination's dtype can hold (rules W2, W3)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from slotline.core.field import DTYPES
from slotline.core.layout import numpy_dtype


def from_host(src: Any, dtype: str, shape: tuple[int, ...], checked: bool = True) -> NDArray[Any]:
    """``src`` as a C-contiguous array of its own in ``dtype``, broadcast to ``shape``. ``src`` is not changed.

    Takes bool, int, float, nested lists and tuples of them, and NumPy arrays and scalars in any layout. Leading axes
    of length 1 may be missing or extra. float64 rounds to the nearest even value.

    Raises ``TypeError`` naming the type of anything else; ``ValueError`` for a value that ``dtype`` cannot hold, or a
    shape that does not broadcast.
    """
    array = _as_array(src, dtype)
    target = numpy_dtype(dtype)
    if checked and array.dtype != target:
        _require_held(array, dtype)
    while array.ndim > len(shape) and array.shape[0] == 1:
        array = array[0]
    try:
        wide = np.broadcast_to(array, shape)
    except ValueError:
        raise ValueError(f"a source of shape {array.shape} does not fit into a destination of shape {shape}") from None
    if array.dtype == target:
        return np.array(wide, order="C", copy=True)
    if target.name == "bfloat16" and wide.dtype.kind in "iu":
        return wide.astype(np.float64).astype(target)
    with np.errstate(over="ignore", invalid="ignore"):
        return np.array(wide, dtype=target, order="C", copy=True)


def check_device_source(source: str, target: str) -> None:
    """``TypeError`` unless every value of ``source`` fits ``target``, or both are floats (narrowing rounds)."""
    kind, into = _kind(source), _kind(target)
    if source == target or (kind == into == "float"):
        return
    if kind == "bool":
        return
    if kind == "int" and into == "int":
        have, room = np.iinfo(source), np.iinfo(target)
        if room.min <= have.min and have.max <= room.max:
            return
    if kind == "int" and into == "float" and np.iinfo(source).bits - (source[0] == "i") <= _MANTISSA[target]:
        return
    raise TypeError(f"a device source of {source} cannot be written into {target} without loss; convert it first")


_MANTISSA = {"float16": 11, "bfloat16": 8, "float32": 24, "float64": 53}


def _kind(dtype: str) -> str:
    if dtype not in DTYPES:
        raise TypeError(f"dtype {dtype} is not supported, allowed: {', '.join(DTYPES)}")
    return "bool" if dtype == "bool" else "int" if "int" in dtype else "float"


def _as_array(src: Any, dtype: str) -> NDArray[Any]:
    if isinstance(src, (np.ndarray, np.generic)):
        array = np.asarray(src)
    elif isinstance(src, (bool, int, float, list, tuple)):
        array = _from_numbers(src, dtype)
    else:
        raise TypeError(f"a source is {type(src).__name__}, allowed: numbers, nested lists, arrays, tensors")
    if array.dtype.kind in "USTO":
        raise ValueError(f"{_first(array)!r} is text or an object, {dtype} cannot hold it")
    if array.dtype.kind not in "biuf" and array.dtype.name not in DTYPES:
        raise TypeError(f"a source is an array of {array.dtype}, allowed: bool, whole numbers, floats")
    return array


def _from_numbers(src: Any, dtype: str) -> NDArray[Any]:
    try:
        array = np.array(src)
    except (ValueError, OverflowError):
        raise ValueError("a source is a ragged list, allowed: lists of one length at each depth") from None
    if array.dtype.kind == "O" or (array.dtype.kind == "f" and not isinstance(src, (bool, int, float))):
        # Beyond 64 bits, or a mix of numbers that NumPy would round to floats (2**63 + 1 beside -1): look at each.
        for value in _flat(src):
            if not isinstance(value, (bool, int, float, np.number, np.bool_)):
                raise TypeError(f"a source holds {type(value).__name__}, allowed: numbers")
            if isinstance(value, int) and "int" in dtype:
                info = np.iinfo(dtype)
                if not info.min <= value <= info.max:
                    raise ValueError(f"{value} does not fit into {dtype}")
        if array.dtype.kind == "O":
            return _from_big(array, dtype)
    return array


def _from_big(array: NDArray[Any], dtype: str) -> NDArray[Any]:
    try:
        return array.astype(dtype if "int" in dtype else np.float64)
    except (OverflowError, TypeError):
        raise ValueError(f"{_first(array)!r} does not fit into {dtype}") from None


def _flat(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        for item in value:
            yield from _flat(item)
    elif isinstance(value, np.ndarray):
        yield from value.reshape(-1).tolist()
    else:
        yield value


def _first(array: NDArray[Any]) -> Any:
    return array.reshape(-1)[0] if array.size else None


def _require_held(array: NDArray[Any], dtype: str) -> None:
    """``ValueError`` naming the first value that ``dtype`` cannot hold."""
    if not array.size:
        return
    into = _kind(dtype)
    if into == "float":
        bad = _overflows(array, dtype)
    elif into == "bool":
        bad = (array != 0) & (array != 1)
    else:
        bad = _not_whole(array, np.iinfo(dtype))
    if bad.any():
        raise ValueError(f"{array[bad].reshape(-1)[0].item()!r} does not fit into {dtype}; nothing was written")


def _overflows(array: NDArray[Any], dtype: str) -> NDArray[np.bool_]:
    if array.dtype.kind in "biu":
        array = array.astype(np.float64)
    with np.errstate(over="ignore"):
        narrow = array.astype(numpy_dtype(dtype))
    overflow: NDArray[np.bool_] = np.isinf(narrow) & ~np.isinf(array)
    return overflow


def _not_whole(array: NDArray[Any], info: Any) -> NDArray[np.bool_]:
    if array.dtype.kind == "b":
        return np.zeros(array.shape, bool)
    if array.dtype.kind in "iu":
        have = np.iinfo(array.dtype)
        bad = np.zeros(array.shape, bool)
        if have.min < info.min:
            bad |= array < info.min
        if have.max > info.max:
            bad |= array > info.max
        return bad
    wide = array.astype(np.float64)
    with np.errstate(invalid="ignore"):
        # 2.0**63 is the first float that int64 cannot hold; the bounds below are exact as floats.
        bad = ~((wide >= float(info.min)) & (wide < float(info.max) + (1.0 if info.bits < 64 else 0.0)))
        bad |= wide != np.floor(wide)
    return bad
