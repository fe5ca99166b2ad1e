"""Values of a request's own ``extra`` mapping, as the cells of a row (rule F1)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

import slotline.core.values as values
from slotline.core.layout import numpy_dtype


def extra_row(value: Any, dtype: str, row_shape: tuple[int, ...], fill: int | float | bool) -> NDArray[Any]:
    """``value`` as leading cells [n] of a row, n at most the row's cells; the rest of the row is fill.

    A number fills the row. An array has the row's rank, and no axis longer than the row's. Raises ``TypeError`` and
    ``ValueError`` as ``async_set_value`` does (rules W2, W3).
    """
    shape = np.shape(value)
    if shape == ():
        return np.repeat(values.from_host(value, dtype, (1,)), math.prod(row_shape))
    if len(shape) != len(row_shape) or any(n > most for n, most in zip(shape, row_shape, strict=True)):
        raise ValueError(f"shape {shape} does not fit into a row of shape {row_shape}")
    given = values.from_host(value, dtype, shape)
    if len(shape) == 1:
        return given
    row = np.full(row_shape, fill, numpy_dtype(dtype))
    row[tuple(slice(n) for n in shape)] = given
    return row.reshape(-1)
