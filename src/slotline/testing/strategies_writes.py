"""Hypothesis strategies for single writes: views by basic slicing, and sources in any memory layout (rules W1, W2)."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

Key = tuple[Any, ...]


@st.composite
def keys(draw: st.DrawFn, shape: tuple[int, ...], *, most_step: int = 3) -> Key:
    """A key of basic slicing into ``shape``: whole numbers and slices, steps from 1; it leaves at least one axis.

    (NumPy gives a number, not a view, for a key of whole numbers alone.)
    """
    parts: list[Any] = []
    for size in shape:
        if draw(st.booleans()):
            start = draw(st.integers(0, size - 1))
            parts.append(slice(start, draw(st.integers(start + 1, size)), draw(st.integers(1, most_step))))
        else:
            parts.append(draw(st.integers(0, size - 1)))
    if not any(isinstance(part, slice) for part in parts):
        parts[-1] = slice(parts[-1], parts[-1] + 1)
    return tuple(parts)


def shapes(most_dims: int = 4) -> st.SearchStrategy[tuple[int, ...]]:
    """Shapes of one to ``most_dims`` axes of one to five cells."""
    return hnp.array_shapes(min_dims=1, max_dims=most_dims, max_side=5)


@st.composite
def laid_out(draw: st.DrawFn, array: NDArray[Any]) -> NDArray[Any]:
    """The same values in another memory layout: F-ordered, reversed, strided, byte-swapped, read-only (W2)."""
    how = draw(st.sampled_from(["plain", "fortran", "reversed", "swapped", "strided", "readonly"]))
    if how == "fortran":
        return np.asfortranarray(array)
    if how == "reversed" and array.ndim:
        return np.ascontiguousarray(array[::-1])[::-1]
    if how == "swapped":
        return array.astype(array.dtype.newbyteorder())
    if how == "strided" and array.ndim:
        return np.repeat(array, 2, axis=-1)[..., ::2]
    if how == "readonly":
        array = array.copy()
        array.flags.writeable = False
    return array


@st.composite
def source_shapes(draw: st.DrawFn, target: tuple[int, ...]) -> tuple[int, ...]:
    """A shape that fits ``target`` as in NumPy assignment: itself, broadcast, leading axes of 1 more or fewer."""
    shape = list(target)
    for axis in range(len(shape)):
        if draw(st.integers(0, 3)) == 0:
            shape[axis] = 1
    cut = draw(st.integers(0, len(shape)))
    if draw(st.integers(0, 2)) == 0:
        shape = shape[cut:]
    return (1,) * draw(st.integers(0, 1)) + tuple(shape)
