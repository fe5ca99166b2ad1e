"""What step functions are written against: the array API standard's namespace and four operations beside it.

``take_along``, ``scatter_rows`` and ``searchsorted`` serve the step functions, ``put_rows`` the moves of rows. Each
framework brings its own (``compat/``); here is NumPy's, which also serves every device without a namespace (B11).
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import array_api_compat.numpy as standard
import numpy as np
from numpy.typing import NDArray

Array = Any
"""A tensor of the framework at hand."""


def clip(x: NDArray[Any], low: Any = None, high: Any = None) -> NDArray[Any]:
    """The standard's, without the wrapper's general cases: step functions call it often."""
    if low is not None:
        x = np.maximum(x, low)
    return x if high is None else np.minimum(x, high)


def cumulative_sum(x: NDArray[Any], *, axis: int = 0, dtype: Any = None) -> NDArray[Any]:
    """The standard's; ``axis`` may only be left out where there is one."""
    total: NDArray[Any] = np.cumsum(x, axis=axis, dtype=dtype)
    return total


def astype(x: NDArray[Any], dtype: Any, *, copy: bool = True) -> NDArray[Any]:
    """The standard's."""
    return x.astype(dtype, copy=copy)


def take_along(x: NDArray[Any], index: NDArray[Any], axis: int) -> NDArray[Any]:
    """``x`` at ``index`` along ``axis``; the other axes run along. A new array."""
    if axis == 1 and x.ndim == 2:  # what the step functions ask; np.take_along_axis spends longer on its general case
        taken: NDArray[Any] = x[np.arange(len(x))[:, None], index]
        return taken
    return np.take_along_axis(x, index, axis)


def scatter_rows(array: NDArray[Any], index: NDArray[Any], values: NDArray[Any], mask: NDArray[Any]) -> None:
    """In place: ``array[s, index[s, j]] = values[s, j]`` where ``mask[s, j]``.

    ``index`` [S, W] is distinct within a row and in range, also where the mask is off.
    """
    at = (np.arange(len(array))[:, None], index)
    array[at] = np.where(mask, values, array[at])


def searchsorted(sorted_1d: NDArray[Any], values: NDArray[Any], side: str = "left") -> NDArray[Any]:
    """Where ``values`` belong in an ascending vector, as whole numbers."""
    found: NDArray[Any] = np.searchsorted(sorted_1d, values, side=side)  # type: ignore[call-overload]
    return found


def put_rows(array: NDArray[Any], rows: NDArray[Any], values: NDArray[Any], axis: int) -> None:
    """In place: row ``rows[i]`` along ``axis`` becomes row ``i`` of ``values``; ``rows`` are distinct."""
    at: Any = (*(slice(None),) * axis, rows)
    array[at] = values


def arange(stop: int, *, dtype: Any = None) -> NDArray[Any]:
    """The standard's, from 0."""
    return np.arange(stop, dtype=dtype)


NUMPY: Any = SimpleNamespace(
    **{name: getattr(standard, name) for name in dir(standard) if not name.startswith("_")}
    | {f.__name__: f for f in (arange, clip, cumulative_sum, astype, take_along, scatter_rows, searchsorted, put_rows)}
)
"""NumPy's namespace."""


# -- idioms of the step functions


def put(xp: Any, array: Array, mask: Array, value: Array) -> None:
    """``array[mask] = value[mask]`` in place, without a shape that depends on the mask; ``mask`` [S] by row."""
    if xp is NUMPY:  # one call instead of three
        np.copyto(array, value, casting="unsafe", where=mask if array.ndim == 1 else mask[:, None])
        return
    if not isinstance(value, (bool, int)):
        value = xp.astype(value, array.dtype, copy=False)
    array[...] = xp.where(mask if array.ndim == 1 else mask[:, None], value, array)


def whole(xp: Any, array: Array, dtype: Any = None) -> Array:
    """Whole numbers in one dtype, int32 if not said, perhaps the array itself.

    Frameworks promote int32 beside int64 each in their own way, and int32, which holds every length and every token id
    of a layout, is compared several times as fast.
    """
    return xp.astype(array, xp.int32 if dtype is None else dtype, copy=False)


def cumulated(xp: Any, lengths: Array) -> Array:
    """[S + 1] from [S]: 0 and the running sums."""
    return xp.concat((xp.zeros(1, dtype=xp.int32), xp.cumulative_sum(lengths, dtype=xp.int32)))


__all__ = ["NUMPY", "Array", "cumulated", "put", "whole"]
