"""Single writes: views, sources, values, identity (rules W1, W2, W3, W7, W8; cases C01, C02, C11)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import slotline as sl
from slotline.core.field import DTYPES
from slotline.testing import strategies_writes as some
from slotline.testing.conformance.base import Kit, examples, has, read, tensor
from slotline.testing.rules import rule

SOURCES: tuple[tuple[Any, list[int]], ...] = (
    (5, [5, 5, 5, 5]),
    (True, [1, 1, 1, 1]),
    ([1, 2, 3, 4], [1, 2, 3, 4]),
    ([[1, 2, 3, 4]], [1, 2, 3, 4]),
    ((1, 2, 3, 4), [1, 2, 3, 4]),
    (np.array([1, 2, 3, 4], np.int32), [1, 2, 3, 4]),
    (np.asfortranarray([[1, 2, 3, 4]]), [1, 2, 3, 4]),
    (np.array([1, 2, 3, 4])[::-1], [4, 3, 2, 1]),
    (np.array([1, 9, 2, 9, 3, 9, 4, 9])[::2], [1, 2, 3, 4]),
    (np.array(7), [7, 7, 7, 7]),
    (np.float32(3.0), [3, 3, 3, 3]),
    (np.array([1, 2, 3, 4], ">i4"), [1, 2, 3, 4]),
)

NO_SOURCES: tuple[Any, ...] = ("text", None, {"a": 1}, object(), 1j, {1}, b"x")


class Writes(Kit):
    """``async_set_value``, each write looked at when it has been made."""

    @rule("W1")
    def test_c02_a_partial_slice_of_inner_axes(self, backend: Any) -> None:
        for source in ([[1, 2], [3, 4]], [[[1, 2], [3, 4]]], np.array([[1, 2], [3, 4]])):
            buffer = tensor(backend, np.full((4, 3, 5), 9))
            backend.async_set_value(buffer[2:3, :2, :2], source)
            found = read(backend, buffer)
            assert found[2, :2, :2].tolist() == [[1, 2], [3, 4]], "the view does not hold what was written"
            assert (found == 9).sum() == 56, "cells outside the view have changed"

    @rule("W1")
    @examples()
    @given(data=st.data(), shape=some.shapes(), dtype=st.sampled_from(["int64", "int32", "float32", "bool"]))
    def test_a_view_is_written_and_nothing_else(
        self, backend: Any, data: st.DataObject, shape: tuple[int, ...], dtype: str
    ) -> None:
        buffer, expected = tensor(backend, np.ones(shape), dtype), np.ones(shape, dtype)
        key = data.draw(some.keys(shape))
        wanted = data.draw(hnp.arrays(np.int64, np.shape(expected[key]), elements=st.integers(0, 1)))
        expected[key] = wanted
        view = buffer[key]
        backend.async_set_value(view, wanted)
        found = read(backend, buffer)
        assert found.tolist() == expected.tolist(), "the write is not NumPy's buffer[key] = source"
        assert read(backend, view).tolist() == wanted.tolist(), "a view does not read as what was written into it"

    @rule("W2")
    def test_c01_every_source_gives_the_same_result(self, backend: Any) -> None:
        for source, expected in (*SOURCES, (tensor(backend, [1, 2, 3, 4]), [1, 2, 3, 4])):
            target = tensor(backend, np.zeros((1, 4), np.int64))
            backend.async_set_value(target, source)
            found = read(backend, target)
            assert (found.tolist(), found.dtype.name) == ([expected], "int64"), f"source {source!r}"

    @rule("W2")
    @examples()
    @given(data=st.data(), shape=some.shapes(3))
    def test_sources_broadcast_in_any_memory_layout(
        self, backend: Any, data: st.DataObject, shape: tuple[int, ...]
    ) -> None:
        small = data.draw(some.source_shapes(shape).flatmap(lambda s: hnp.arrays(np.int32, s)))
        expected = np.zeros(shape, np.int64)
        expected[...] = small
        target = tensor(backend, np.zeros(shape))
        backend.async_set_value(target, data.draw(some.laid_out(small)))
        assert read(backend, target).tolist() == expected.tolist()

    @rule("W2")
    @examples(0.5)
    @given(data=st.data(), shape=some.shapes(3), dtype=st.sampled_from(["bool", "int32", "int64"]))
    def test_device_tensors_are_sources_whole_or_as_views(
        self, backend: Any, data: st.DataObject, shape: tuple[int, ...], dtype: str
    ) -> None:
        values = np.arange(np.prod(shape)).reshape(shape) % (2 if dtype == "bool" else 99)
        key = data.draw(some.keys(shape))
        source = tensor(backend, values, dtype)[key]
        target = tensor(backend, np.full(np.shape(values[key]), 7))
        backend.async_set_value(target, source)
        assert read(backend, target).tolist() == values[key].tolist()

    @rule("W2")
    @pytest.mark.parametrize(
        "source", ["text", None, {"a": 1}, object(), 1j, {1}, b"x"], ids=lambda s: type(s).__name__
    )
    def test_anything_else_is_refused_and_nothing_changes(self, backend: Any, source: Any) -> None:
        target = tensor(backend, np.ones(2))
        with pytest.raises((TypeError, ValueError)):
            backend.async_set_value(target, source)
        assert read(backend, target).tolist() == [1, 1]

    @rule("W2")
    @pytest.mark.parametrize("source", [[1, [2, 3]], [[1, 2, 3]], np.zeros((2, 2)), np.zeros(3)], ids=str)
    def test_a_shape_that_does_not_fit_is_refused(self, backend: Any, source: Any) -> None:
        target = tensor(backend, np.ones(2))
        with pytest.raises(ValueError, match=r"fit|ragged"):
            backend.async_set_value(target, source)
        assert read(backend, target).tolist() == [1, 1]

    @rule("W3")
    @pytest.mark.parametrize("dtype", sorted(DTYPES))
    def test_the_largest_values_of_each_dtype_land_whole(self, backend: Any, dtype: str) -> None:
        if not has(backend, dtype):
            pytest.skip(f"the device has no {dtype}")
        if "int" in dtype:
            low, top = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
            values: list[Any] = [0, 1, top, top - 1, top // 3, low, low + 1]
        elif dtype == "bool":
            values = [True, False, True]
        else:
            values = [0.5, -2.0, 1.5, 0.0]
        target = tensor(backend, np.zeros(len(values)), dtype)
        backend.async_set_value(target, values)
        found = read(backend, target)
        assert found.dtype.name == dtype
        assert found.tolist() == values, "the write changed the values"
        copy = tensor(backend, np.zeros(len(values)), dtype)
        backend.async_set_value(copy, target)
        assert read(backend, copy).tolist() == values, "a copy on the device changed the values"

    @rule("W3")
    @pytest.mark.parametrize(
        ("dtype", "source"),
        [
            ("int32", 2**31),
            ("int64", 2**63),
            ("int64", [0, 2**64]),
            ("int64", 1.5),
            ("int64", [1, float("nan")]),
            ("bool", 2),
            ("float32", 1e39),
            ("int64", ["a", "b"]),
        ],
        ids=str,
    )
    def test_a_value_that_does_not_fit_is_refused_before_anything_changes(
        self, backend: Any, dtype: str, source: Any
    ) -> None:
        target = tensor(backend, np.zeros(2), dtype)
        with pytest.raises(ValueError, match=dtype):
            backend.async_set_value(target, source)
        assert not read(backend, target).any()

    @rule("W3")
    @examples()
    @given(values=st.lists(st.floats(width=64, allow_nan=False, min_value=-3e38, max_value=3e38), min_size=1))
    def test_float64_rounds_to_the_nearest_float32(self, backend: Any, values: list[float]) -> None:
        target = tensor(backend, np.zeros(len(values)), "float32")
        backend.async_set_value(target, values)
        assert read(backend, target).tobytes() == np.array(values).astype(np.float32).tobytes()

    @rule("W7")
    @examples(0.5)
    @given(to=st.integers(0, 6), start=st.integers(0, 6), count=st.integers(1, 4))
    def test_a_source_that_overlaps_is_as_if_copied_first(self, backend: Any, to: int, start: int, count: int) -> None:
        expected, buffer = np.arange(10), tensor(backend, np.arange(10))
        expected[to : to + count] = expected[start : start + count].copy()
        backend.async_set_value(buffer[to : to + count], buffer[start : start + count])
        assert read(backend, buffer).tolist() == expected.tolist()

    @rule("W8")
    def test_c11_a_write_moves_nothing(self, backend: Any) -> None:
        target = tensor(backend, np.zeros((3, 4)), "float32")
        before = backend.inspect(target)
        for source in (7, [[1], [2], [3]], np.ones((3, 4)), tensor(backend, np.ones((3, 4)), "float32")):
            backend.async_set_value(target, source)
            assert backend.inspect(target) == before, "data pointer, shape, strides, dtype or place changed"

    @rule("W1")
    def test_slotline_finds_the_device_of_a_tensor(self, backend: Any) -> None:
        target = tensor(backend, np.zeros(3))
        sl.async_set_value(target[1:], 5)
        assert read(backend, target).tolist() == [0, 5, 5]

    @rule("W1")
    def test_a_destination_that_is_no_tensor_of_the_device_is_named(self, backend: Any) -> None:
        with pytest.raises(TypeError, match="list is not a tensor of backend"):
            backend.async_set_value([1, 2], 3)
