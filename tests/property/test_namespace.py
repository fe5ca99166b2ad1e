"""Every function of the array namespaces that makes a new tensor against NumPy, for each framework (B11, X5)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from frameworks import host
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from namespaces import DTYPES, FILLED, INTS, SHAPES, Make, arrays, placed, same

import slotline as sl


@pytest.fixture(scope="session")
def tensor(tensor: Make, cpu: sl.Backend) -> Make:
    return placed(cpu, tensor)


@pytest.fixture(scope="session")
def xp(cpu: sl.Backend) -> Any:
    return cpu.namespace


class TestElements:
    @pytest.mark.parametrize("name", ["minimum", "maximum", "add", "subtract", "multiply"])
    @given(data=st.data(), shapes=hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=3, min_side=0, max_side=3))
    def test_arithmetic(self, name: str, data: Any, shapes: Any, xp: Any, tensor: Make) -> None:
        x, y = (data.draw(arrays(s)) for s in shapes.input_shapes)
        if x.ndim and y.ndim:  # the namespaces differ in what a tensor without axes says about dtypes
            same(getattr(xp, name)(tensor(x), tensor(y)), getattr(np, name)(x, y))

    @pytest.mark.parametrize("name", ["equal", "not_equal", "less", "less_equal", "greater", "greater_equal"])
    @given(data=st.data(), shape=SHAPES)
    def test_comparisons(self, name: str, data: Any, shape: Any, xp: Any, tensor: Make) -> None:
        x, y = data.draw(arrays(shape)), data.draw(arrays(shape))
        same(getattr(xp, name)(tensor(x), tensor(y)), getattr(np, name)(x, y))

    @pytest.mark.parametrize("name", ["logical_and", "logical_or", "logical_not"])
    @given(data=st.data(), shape=SHAPES)
    def test_logic(self, name: str, data: Any, shape: Any, xp: Any, tensor: Make) -> None:
        given_ = [data.draw(arrays(shape, ("bool",))) for _ in range(1 if name == "logical_not" else 2)]
        same(getattr(xp, name)(*map(tensor, given_)), getattr(np, name)(*given_))

    @given(data=st.data(), shapes=hnp.mutually_broadcastable_shapes(num_shapes=3, max_dims=3, min_side=0, max_side=3))
    def test_where(self, data: Any, shapes: Any, xp: Any, tensor: Make) -> None:
        mask = data.draw(arrays(shapes.input_shapes[0], ("bool",)))
        x, y = (data.draw(arrays(s, DTYPES)) for s in shapes.input_shapes[1:])
        if x.dtype != y.dtype and (not x.ndim or not y.ndim or "float32" in (x.dtype, y.dtype)):
            return
        same(xp.where(tensor(mask), tensor(x), tensor(y)), np.where(mask, x, y))

    @given(data=st.data(), shape=SHAPES, number=st.integers(-9, 9))
    def test_where_with_a_number(self, data: Any, shape: Any, number: int, xp: Any, tensor: Make) -> None:
        mask, x = data.draw(arrays(shape, ("bool",))), data.draw(arrays(shape, (*INTS, "float32")))
        kept = x.dtype.type(number)
        same(xp.where(tensor(mask), tensor(x), number), np.where(mask, x, kept))
        same(xp.where(tensor(mask), number, tensor(x)), np.where(mask, kept, x))
        row = mask.reshape(-1)[:1]
        if row.size:
            same(xp.where(tensor(row), tensor(x), number), np.where(row, x, kept))
        same(xp.where(tensor(mask), tensor(mask), False), np.where(mask, mask, False))

    @given(data=st.data(), shape=SHAPES, low=st.integers(-9, 9), high=st.integers(-9, 9))
    def test_clip(self, data: Any, shape: Any, low: int, high: int, xp: Any, tensor: Make) -> None:
        x = data.draw(arrays(shape))
        low, high = sorted((low, high))
        same(xp.clip(tensor(x), low, high), np.clip(x, low, high))
        same(xp.clip(tensor(x), low), np.clip(x, low, None))
        same(xp.clip(tensor(x), None, high), np.clip(x, None, high))
        bound = data.draw(arrays(shape, (x.dtype.name,)))
        same(xp.clip(tensor(x), tensor(bound), None), np.clip(x, bound, None))

    @given(data=st.data(), shape=SHAPES, dtype=st.sampled_from(DTYPES))
    def test_astype(self, data: Any, shape: Any, dtype: str, xp: Any, tensor: Make) -> None:
        x = data.draw(arrays(shape, DTYPES))
        given_ = tensor(x)
        found = xp.astype(given_, getattr(xp, dtype))
        assert np.array_equal(host(found), x.astype(dtype))
        found[...] = 1  # a new tensor, also where nothing changes
        assert np.array_equal(host(given_), x)


class TestOperators:
    """What step functions may write with operators: both sides of one dtype, or a Python number of its kind."""

    @given(data=st.data(), shape=SHAPES, dtype=st.sampled_from(INTS), number=st.integers(-9, 9))
    def test_numbers(self, data: Any, shape: Any, dtype: str, number: int, tensor: Make) -> None:
        x, y = data.draw(arrays(shape, (dtype,))), data.draw(arrays(shape, (dtype,)))
        t, u = tensor(x), tensor(y)
        for found, expected in (
            (t + u, x + y), (t - u, x - y), (t * u, x * y), (t < u, x < y), (t <= u, x <= y), (t > u, x > y),
            (t >= u, x >= y), (t == u, x == y), (t != u, x != y), (t + number, x + number), (number - t, number - x),
            (t * number, x * number), (t < number, x < number), (t >= number, x >= number), (t == number, x == number),
            (-t, -x),
        ):  # fmt: skip
            same(found, expected)
        if number:
            same(t // number, x // number)
            same(t % number, x % number)

    @given(data=st.data(), shape=SHAPES)
    def test_masks(self, data: Any, shape: Any, tensor: Make) -> None:
        x, y = data.draw(arrays(shape, ("bool",))), data.draw(arrays(shape, ("bool",)))
        t, u = tensor(x), tensor(y)
        for found, expected in ((t & u, x & y), (t | u, x | y), (t ^ u, x ^ y), (~t, ~x), (t == u, x == y)):
            same(found, expected)


class TestMaking:
    @given(start=st.integers(-5, 5), stop=st.integers(-5, 9), dtype=st.sampled_from(INTS))
    def test_arange(self, start: int, stop: int, dtype: str, xp: Any, framework: str) -> None:
        same(xp.arange(max(stop, 0), dtype=getattr(xp, dtype)), np.arange(max(stop, 0), dtype=dtype))
        same(xp.arange(max(stop, 0)), np.arange(max(stop, 0)))
        if framework == "numpy":  # NumPy's is the short one of core, whose callers ask for no more
            return
        same(xp.arange(start, stop, dtype=getattr(xp, dtype)), np.arange(start, stop, dtype=dtype))
        same(xp.arange(0, abs(stop), 2, dtype=getattr(xp, dtype)), np.arange(0, abs(stop), 2, dtype=dtype))

    @given(shape=hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3), dtype=st.sampled_from(DTYPES))
    def test_filled(self, shape: Any, dtype: str, xp: Any, tensor: Make) -> None:
        kind = getattr(xp, dtype)
        same(xp.zeros(shape, dtype=kind), np.zeros(shape, dtype))
        same(xp.ones(shape, dtype=kind), np.ones(shape, dtype))
        same(xp.full(shape, 1, dtype=kind), np.full(shape, 1, dtype))
        same(xp.zeros(3, dtype=kind), np.zeros(3, dtype))
        like = tensor(np.ones(shape, dtype))
        same(xp.zeros_like(like), np.zeros(shape, dtype))
        same(xp.zeros_like(like, dtype=xp.int64), np.zeros(shape, np.int64))
        same(xp.full_like(like, 1), np.ones(shape, dtype))
        assert tuple(xp.empty(shape, dtype=kind).shape) == tuple(shape)

    def test_asarray(self, xp: Any, tensor: Make) -> None:
        same(xp.asarray([1, 2], dtype=xp.int32), np.array([1, 2], np.int32))
        same(xp.asarray([[1, 2], [3, 4]]), np.array([[1, 2], [3, 4]]))
        same(xp.asarray(3), np.array(3))
        same(xp.asarray(True), np.array(True))
        same(xp.asarray(3, dtype=xp.int32), np.array(3, np.int32))
        same(xp.asarray([], dtype=xp.int64), np.zeros(0, np.int64))
        given_ = tensor([1, 2])
        same(xp.asarray(given_), np.array([1, 2]))


class TestShapes:
    @given(data=st.data(), shape=SHAPES)
    def test_reshape(self, data: Any, shape: Any, xp: Any, tensor: Make) -> None:
        x = data.draw(arrays(shape, DTYPES))
        same(xp.reshape(tensor(x), (-1,)), x.reshape(-1))
        same(xp.reshape(tensor(x), (1, *shape)), x[None])
        same(xp.reshape(tensor(x), shape[::-1]), x.reshape(shape[::-1]))
        if x.size:
            same(xp.reshape(tensor(x), (shape[0], -1)), x.reshape(shape[0], -1))

    @given(data=st.data(), shape=SHAPES)
    def test_axes(self, data: Any, shape: Any, xp: Any, tensor: Make) -> None:
        x = data.draw(arrays(shape, DTYPES))
        axis, other = data.draw(st.integers(-x.ndim, x.ndim - 1)), data.draw(st.integers(0, x.ndim - 1))
        order = tuple(data.draw(st.permutations(range(x.ndim))))
        same(xp.expand_dims(tensor(x), axis=axis), np.expand_dims(x, axis))
        same(xp.moveaxis(tensor(x), axis, other), np.moveaxis(x, axis, other))
        same(xp.permute_dims(tensor(x), order), np.transpose(x, order))
        same(xp.squeeze(xp.expand_dims(tensor(x), axis=other), axis=other), x)
        same(xp.broadcast_to(tensor(x), (2, *shape)), np.broadcast_to(x, (2, *shape)))

    @given(data=st.data(), shape=SHAPES, count=st.integers(1, 3))
    def test_joining(self, data: Any, shape: Any, count: int, xp: Any, tensor: Make) -> None:
        parts = [data.draw(arrays(shape)) for _ in range(count)]
        axis = data.draw(st.integers(-len(shape), len(shape) - 1))
        same(xp.concat([tensor(p) for p in parts], axis=axis), np.concatenate(parts, axis))
        same(xp.concat([tensor(p) for p in parts]), np.concatenate(parts))
        one = [p.astype(np.int32) for p in parts]
        same(xp.stack([tensor(p) for p in one], axis=axis), np.stack(one, axis))


class TestReductions:
    @given(data=st.data(), shape=SHAPES, initial=st.booleans(), dtype=st.sampled_from([None, "int64", "int32"]))
    def test_cumulative_sum(
        self, data: Any, shape: Any, initial: bool, dtype: str | None, xp: Any, tensor: Make, framework: str
    ) -> None:
        x = data.draw(arrays(shape, ("bool", *INTS)))
        axis = data.draw(st.integers(-x.ndim, x.ndim - 1))
        expected = np.cumsum(x, axis, dtype=dtype or np.int64)
        if initial and framework != "numpy":  # NumPy's is the short one of core, whose callers do not ask for it
            first = np.zeros([1 if i == axis % x.ndim else n for i, n in enumerate(shape)], expected.dtype)
            expected = np.concatenate((first, expected), axis)
        kind = {} if dtype is None else {"dtype": getattr(xp, dtype)}
        if initial and framework != "numpy":
            kind["include_initial"] = True
        same(xp.cumulative_sum(tensor(x), axis=axis, **kind), expected)
        if x.ndim == 1:
            same(xp.cumulative_sum(tensor(x), dtype=xp.int64), np.cumsum(x, dtype=np.int64))

    @given(data=st.data(), shape=SHAPES, keep=st.booleans())
    def test_sum_any_all(self, data: Any, shape: Any, keep: bool, xp: Any, tensor: Make) -> None:
        x = data.draw(arrays(shape, ("bool", *INTS)))
        for axis in (None, *range(-x.ndim, x.ndim), tuple(range(x.ndim))):
            same(xp.sum(tensor(x), axis=axis, keepdims=keep), np.sum(x, axis, keepdims=keep))
            same(xp.any(tensor(x), axis=axis, keepdims=keep), np.any(x, axis, keepdims=keep))
            same(xp.all(tensor(x), axis=axis, keepdims=keep), np.all(x, axis, keepdims=keep))
        same(xp.sum(tensor(x), dtype=xp.int32), np.sum(x, dtype=np.int32))

    @given(data=st.data(), shape=FILLED, keep=st.booleans(), empty=st.booleans())
    def test_min_max_argmax(self, data: Any, shape: Any, keep: bool, empty: bool, xp: Any, tensor: Make) -> None:
        x = data.draw(arrays((0, *shape) if empty else shape))
        for axis in (-1, x.ndim - 1, *(() if empty else (None, 0))):
            same(xp.min(tensor(x), axis=axis, keepdims=keep), np.min(x, axis, keepdims=keep))
            same(xp.max(tensor(x), axis=axis, keepdims=keep), np.max(x, axis, keepdims=keep))
            if axis is not None or not keep:
                same(xp.argmax(tensor(x), axis=axis, keepdims=keep), np.argmax(x, axis, keepdims=keep))  # the first
                same(xp.argmax(tensor(x > 0), axis=axis, keepdims=keep), np.argmax(x > 0, axis, keepdims=keep))
