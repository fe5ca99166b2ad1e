"""Writes into views, against plain NumPy assignment (rules W1 to W3, W7)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import slotline as sl

CPU = sl.load_backend("cpu")
DTYPES = st.sampled_from(["bool", "int8", "int32", "int64", "uint8", "float16", "float32", "float64"])


@st.composite
def views(draw: st.DrawFn) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """A buffer and a view of it by basic slicing with positive steps."""
    shape = draw(hnp.array_shapes(min_dims=1, max_dims=4, max_side=5))
    buffer = np.zeros(shape, draw(DTYPES))
    buffer[...] = 1
    keys: list[Any] = []
    for size in shape:
        if draw(st.booleans()):
            start = draw(st.integers(0, size - 1))
            keys.append(slice(start, draw(st.integers(start + 1, size)), draw(st.integers(1, 3))))
        else:
            keys.append(draw(st.integers(0, size - 1)))
    return buffer, buffer[(*keys, ...)]


@st.composite
def layouts_of(draw: st.DrawFn, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The same values in another memory layout (W2)."""
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


@given(st.data(), views())
def test_w1_w2_a_write_is_numpy_assignment_and_nothing_else_changes(data: st.DataObject, pair: Any) -> None:
    buffer, view = pair
    shape = data.draw(st.sampled_from([view.shape, (1, *view.shape), view.shape[1:], ()]))
    small = data.draw(hnp.arrays(np.int64, shape, elements=st.integers(0, 1)))
    source = data.draw(layouts_of(small))
    expected = buffer.copy()
    pointer = view.__array_interface__["data"]
    mark = np.zeros(buffer.shape, bool)
    offset = (pointer[0] - buffer.__array_interface__["data"][0]) // buffer.itemsize
    where = np.lib.stride_tricks.as_strided(
        mark.reshape(-1)[offset:], view.shape, [s // buffer.itemsize for s in view.strides]
    )
    where[...] = True
    expected[mark] = np.broadcast_to(small.reshape(shape[1:]) if len(shape) > view.ndim else small, view.shape).reshape(
        -1
    )
    sl.async_set_value(view, source)
    assert np.array_equal(buffer, expected)
    assert view.__array_interface__["data"] == pointer  # W8


@given(st.sampled_from(["int8", "int32", "int64", "uint8", "uint64"]), st.integers(-(2**70), 2**70))
def test_w3_a_whole_number_lands_exactly_or_is_refused(dtype: str, value: int) -> None:
    target = np.full(3, 7, dtype)
    info = np.iinfo(dtype)
    for source in (value, [value, value, value]):
        if info.min <= value <= info.max:
            sl.async_set_value(target, source)
            assert target.tolist() == [value] * 3
        else:
            target[:] = 7
            with pytest.raises(ValueError, match=dtype):
                sl.async_set_value(target, source)
            assert target.tolist() == [7] * 3


@given(st.sampled_from(["int8", "int64", "bool", "uint16"]), st.floats(allow_nan=True, allow_infinity=True))
def test_w3_a_float_goes_into_whole_numbers_only_if_it_is_one(dtype: str, value: float) -> None:
    target = np.zeros(2, dtype)
    low, high = (0, 1) if dtype == "bool" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    fits = np.isfinite(value) and value == int(value) and low <= int(value) <= high
    if fits:
        sl.async_set_value(target, value)
        assert target.tolist() == [int(value)] * 2
    else:
        with pytest.raises(ValueError, match="does not fit"):
            sl.async_set_value(target, value)
        assert not target.any()


@given(st.floats(width=64), st.sampled_from(["float16", "float32"]))
def test_w3_floats_round_to_nearest_even_and_do_not_become_infinite(value: float, dtype: str) -> None:
    target = np.zeros(1, dtype)
    with np.errstate(over="ignore"):
        wanted = np.array([value]).astype(dtype)
    if np.isinf(wanted[0]) and not np.isinf(value):
        with pytest.raises(ValueError, match=dtype):
            sl.async_set_value(target, value)
        return
    sl.async_set_value(target, value)
    assert target.tobytes() == wanted.tobytes() or (np.isnan(value) and np.isnan(target[0]))


@given(st.integers(0, 6), st.integers(0, 6), st.integers(1, 4))
def test_w7_a_source_that_overlaps_is_as_if_copied_first(to: int, start: int, count: int) -> None:
    buffer = np.arange(10)
    assume(max(to, start) + count <= 10)
    expected = buffer.copy()
    expected[to : to + count] = buffer[start : start + count].copy()
    sl.async_set_value(buffer[to : to + count], buffer[start : start + count])
    assert np.array_equal(buffer, expected)
