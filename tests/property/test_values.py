"""Writes into views, against plain NumPy assignment (rules W1 to W3, W7)."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from frameworks import host
from hypothesis import assume, example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import slotline as sl
from slotline.core.values import from_host

DTYPES = st.sampled_from(["bool", "int8", "int32", "int64", "uint8", "float16", "float32", "float64"])
Make = Callable[..., Any]


@st.composite
def views(draw: st.DrawFn) -> tuple[np.ndarray[Any, Any], tuple[Any, ...]]:
    """A buffer and the key of a view of it, by basic slicing with positive steps."""
    shape = draw(hnp.array_shapes(min_dims=1, max_dims=4, max_side=5))
    buffer = np.ones(shape, draw(DTYPES))
    keys: list[Any] = []
    for size in shape:
        if draw(st.booleans()):
            start = draw(st.integers(0, size - 1))
            keys.append(slice(start, draw(st.integers(start + 1, size)), draw(st.integers(1, 3))))
        else:
            keys.append(draw(st.integers(0, size - 1)))
    return buffer, (*keys, ...)


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


@given(data=st.data(), pair=views())
def test_w1_w2_a_write_is_numpy_assignment_and_nothing_else_changes(
    data: st.DataObject, pair: Any, tensor: Make, cpu: sl.Backend
) -> None:
    expected, key = pair
    buffer = tensor(expected)
    view = buffer[key]
    plain = np.asarray(expected[key])
    shape = data.draw(st.sampled_from([plain.shape, (1, *plain.shape), plain.shape[1:], ()]))
    small = data.draw(hnp.arrays(np.int64, shape, elements=st.integers(0, 1)))
    source = data.draw(layouts_of(small))
    expected[key] = np.broadcast_to(small.reshape(shape[1:]) if len(shape) > plain.ndim else small, plain.shape)
    if cpu.framework == "numpy" and not plain.ndim:
        view = buffer[key]  # with an Ellipsis NumPy gives an array without axes, not a number
    before = cpu.inspect(view)
    sl.async_set_value(view, tensor(small) if data.draw(st.booleans()) else source)
    assert np.array_equal(host(buffer), expected)
    assert cpu.inspect(view) == before  # W8


@given(dtype=st.sampled_from(["int8", "int32", "int64", "uint8", "uint64"]), value=st.integers(-(2**70), 2**70))
@example(dtype="int64", value=2**63)
@example(dtype="int64", value=-(2**63))
def test_w3_a_whole_number_lands_exactly_or_is_refused(dtype: str, value: int, tensor: Make, cpu: sl.Backend) -> None:
    assume(dtype != "uint64" or cpu.framework != "paddle")  # which has none
    info = np.iinfo(dtype)
    for source in (value, [value, value, value]):
        target = tensor(np.full(3, 7, dtype))
        if info.min <= value <= info.max:
            sl.async_set_value(target, source)
            assert host(target).tolist() == [value] * 3
        else:
            with pytest.raises(ValueError, match=dtype):
                sl.async_set_value(target, source)
            assert host(target).tolist() == [7] * 3


@pytest.mark.usefixtures("cpu")
@given(dtype=st.sampled_from(["int8", "int64", "bool"]), value=st.floats(allow_nan=True, allow_infinity=True))
def test_w3_a_float_goes_into_whole_numbers_only_if_it_is_one(dtype: str, value: float, tensor: Make) -> None:
    target = tensor(np.zeros(2, dtype))
    low, high = (0, 1) if dtype == "bool" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    fits = np.isfinite(value) and value == int(value) and low <= int(value) <= high
    for source in (value, tensor([value, value], "float64")):
        if fits:
            sl.async_set_value(target, source)
            assert host(target).tolist() == [int(value)] * 2
        else:
            with pytest.raises(ValueError, match="does not fit"):
                sl.async_set_value(target, source)
            assert not host(target).any()


@pytest.mark.usefixtures("cpu")
@given(value=st.floats(width=64), dtype=st.sampled_from(["float16", "float32"]))
def test_w3_floats_round_to_nearest_even_and_do_not_become_infinite(value: float, dtype: str, tensor: Make) -> None:
    with np.errstate(over="ignore"):
        wanted = np.array([value]).astype(dtype)
    for source in (value, tensor([value], "float64")):
        target = tensor(np.zeros(1, dtype))
        if np.isinf(wanted[0]) and not np.isinf(value):
            with pytest.raises(ValueError, match=dtype):
                sl.async_set_value(target, source)
            continue
        sl.async_set_value(target, source)
        found = host(target)
        assert found.tobytes() == wanted.tobytes() or (np.isnan(value) and np.isnan(found[0]))


@pytest.mark.usefixtures("cpu")
@given(to=st.integers(0, 6), start=st.integers(0, 6), count=st.integers(1, 4))
def test_w7_a_source_that_overlaps_is_as_if_copied_first(to: int, start: int, count: int, tensor: Make) -> None:
    assume(max(to, start) + count <= 10)
    expected, buffer = np.arange(10), tensor(np.arange(10))
    expected[to : to + count] = expected[start : start + count].copy()
    sl.async_set_value(buffer[to : to + count], buffer[start : start + count])
    assert host(buffer).tolist() == expected.tolist()
    square = tensor(np.arange(9).reshape(3, 3))
    sl.async_set_value(square, square.T)
    assert host(square).tolist() == np.arange(9).reshape(3, 3).T.tolist()


WHOLE = st.one_of(st.integers(-(2**65), 2**65), st.integers(2**53 - 2, 2**53 + 3), st.integers(2**63 - 2, 2**64 + 1))


@given(st.sampled_from(["int64", "uint64", "int8"]), WHOLE, st.sampled_from([0.5, 1.0, -1, np.int64(1), np.uint64(7)]))
@example("int64", 2**53 + 1, 1.0)
@example("int64", 2**63 - 1, 0.0)
@example("uint64", 2**63 + 1, np.int64(1))
def test_w3_a_whole_number_is_exact_beside_numbers_of_other_kinds(dtype: str, value: int, other: Any) -> None:
    # NumPy alone makes such a list float64, which has no 2**53 + 1.
    low, high = np.iinfo(dtype).min, np.iinfo(dtype).max
    if all(low <= v <= high and v == int(v) for v in (value, other)):
        assert from_host([value, other], dtype, (2,)).tolist() == [value, int(other)]
    else:
        with pytest.raises(ValueError, match=f"does not fit into {dtype}"):
            from_host([value, other], dtype, (2,))


def nearest_even(value: Fraction, bits: int, lowest: int) -> Fraction:
    """The nearest number of ``bits`` significant bits, in steps of at least 2**lowest; a tie to the even one."""
    if not value:
        return value
    exponent = 0
    while abs(value) >= Fraction(2) ** (exponent + 1):
        exponent += 1
    while abs(value) < Fraction(2) ** exponent:
        exponent -= 1
    step = Fraction(2) ** max(exponent - bits + 1, lowest)
    return round(value / step) * step  # Python's round takes ties to even


TIES = st.builds(
    lambda top, exponent, beside: float((top + Fraction(1, 2) + beside) * Fraction(2) ** exponent),
    st.integers(128, 255),
    st.integers(-30, 30),
    st.sampled_from([Fraction(0), Fraction(1, 2**40), Fraction(-1, 2**40), Fraction(1, 4)]),
)


@given(st.lists(st.one_of(TIES, TIES.map(lambda v: -v), st.floats(-1e30, 1e30)), min_size=1, max_size=20))
def test_w3_bfloat16_rounds_once_to_nearest_even(values: list[float]) -> None:
    # ml_dtypes goes by float32 and so takes what lies just above a tie for the tie.
    pytest.importorskip("ml_dtypes")
    expected = [float(nearest_even(Fraction(v), 8, -133)) for v in values]
    for source in (values, np.array(values), np.array(values, ">f8")):
        assert from_host(source, "bfloat16", (len(values),)).astype(np.float64).tolist() == expected


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1), st.sampled_from(["bfloat16", "float32", "float64"]))
@example([2**60 + 2**36 + 1], "float32")
@example([2**24 + 2**16 + 1], "bfloat16")
@example([-(2**62) - 2**54 - 1], "bfloat16")
def test_w3_whole_numbers_round_once_to_nearest_even(values: list[int], dtype: str) -> None:
    pytest.importorskip("ml_dtypes")
    bits = {"bfloat16": 8, "float32": 24, "float64": 53}[dtype]
    expected = [float(nearest_even(Fraction(v), bits, -133)) for v in values]
    for source in (values, np.array(values), [*values[:-1], np.int64(values[-1])]):
        assert from_host(source, dtype, (len(values),)).astype(np.float64).tolist() == expected
    mixed = from_host([*values, 0.5], dtype, (len(values) + 1,)).astype(np.float64).tolist()
    assert mixed == [*expected, 0.5]


def test_w3_values_that_cannot_even_be_printed_are_refused_in_words() -> None:
    for value in (10**5000, [1, -(10**5000)]):
        for dtype in ("int64", "float32", "bool"):
            with pytest.raises(ValueError, match=f"a whole number of 16610 bits does not fit into {dtype}"):
                from_host(value, dtype, (2,))


def test_w2_text_is_named_by_itself_and_objects_by_their_type() -> None:
    with pytest.raises(ValueError, match="'a' is text, int64 cannot hold it"):
        from_host([1, "a"], "int64", (2,))
    with pytest.raises(TypeError, match="array of object"):
        from_host(np.array([1, 2], object), "int64", (2,))


@given(st.data(), hnp.array_shapes(min_dims=0, max_dims=3, max_side=3), hnp.array_shapes(min_dims=0, max_dims=3))
def test_w2_shapes_fit_as_numpy_assignment_says(
    data: st.DataObject, source: tuple[int, ...], target: tuple[int, ...]
) -> None:
    array = data.draw(hnp.arrays(np.int32, source))
    expected = np.zeros(target, np.int64)
    try:
        expected[...] = array
    except ValueError:
        with pytest.raises(ValueError, match="does not fit into a destination of shape") as caught:
            from_host(array, "int64", target)
        assert str(source) in str(caught.value)
        assert str(target) in str(caught.value)
        return
    found = from_host(array, "int64", target)
    assert np.array_equal(found, expected)
    assert found.flags.c_contiguous
    assert found.flags.owndata
