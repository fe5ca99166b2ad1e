"""Reading and writing by index in the array namespaces against NumPy, for each framework (B11, X5, W8)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from frameworks import host
from frameworks import tensor as whole
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from namespaces import DTYPES, FILLED, INTS, SHAPES, Make, arrays, placed, same

import slotline as sl
from slotline.core.field import DTYPES as FIELD_DTYPES


@pytest.fixture(scope="session")
def tensor(tensor: Make, cpu: sl.Backend) -> Make:
    return placed(cpu, tensor)


@pytest.fixture(scope="session")
def xp(cpu: sl.Backend) -> Any:
    return cpu.namespace


class TestIndices:
    @given(data=st.data(), shape=FILLED, dtype=st.sampled_from(DTYPES), kind=st.sampled_from(INTS))
    def test_take(self, data: Any, shape: Any, dtype: str, kind: str, xp: Any, tensor: Make) -> None:
        x = data.draw(arrays(shape, (dtype,)))
        axis = data.draw(st.integers(-x.ndim, x.ndim - 1))
        at = data.draw(hnp.arrays(kind, st.integers(0, 4), elements=st.integers(0, shape[axis] - 1)))
        same(xp.take(tensor(x), tensor(at), axis=axis), np.take(x, at, axis))

    @given(data=st.data(), rows=st.integers(0, 3), columns=st.integers(1, 4), width=st.integers(0, 5))
    def test_take_along(self, data: Any, rows: int, columns: int, width: int, xp: Any, tensor: Make) -> None:
        x = data.draw(arrays((rows, columns), DTYPES))
        kind = data.draw(st.sampled_from(INTS))
        at = data.draw(hnp.arrays(kind, (rows, width), elements=st.integers(0, columns - 1)))
        same(xp.take_along(tensor(x), tensor(at), 1), np.take_along_axis(x, at, 1))
        same(xp.take_along(tensor(x.T), tensor(at.T), 0), np.take_along_axis(x.T, at.T, 0))

    @given(data=st.data(), size=st.integers(0, 5), shape=SHAPES, side=st.sampled_from(["left", "right"]))
    def test_searchsorted(self, data: Any, size: int, shape: Any, side: Any, xp: Any, tensor: Make) -> None:
        vector, values = np.sort(data.draw(arrays(size))), data.draw(arrays(shape))
        same(xp.searchsorted(tensor(vector), tensor(values), side=side), np.searchsorted(vector, values, side))
        same(xp.searchsorted(tensor(vector), tensor(values)), np.searchsorted(vector, values))
        if values.ndim == 2:
            found = xp.searchsorted(tensor(vector), tensor(values)[:, ::2], side=side)
            same(found, np.searchsorted(vector, values[:, ::2], side))

    @given(data=st.data(), shape=FILLED)
    def test_basic_indexing(self, data: Any, shape: Any, tensor: Make) -> None:
        x = data.draw(arrays(shape, DTYPES))
        t = tensor(x)
        for key in (0, -1, slice(1, None), slice(0, 0), slice(None, None, 2), None, ..., (..., -1), (..., None),
                    (slice(None), None), (..., slice(1, 3)), (None, ..., None)):  # fmt: skip
            same(t[key], x[key])


class TestWrites:
    """In place: the data pointer stays, what lies around a view stays (W8)."""

    @given(data=st.data(), rows=st.integers(0, 3), columns=st.integers(1, 4), dtype=st.sampled_from(DTYPES))
    def test_scatter_rows(
        self, data: Any, rows: int, columns: int, dtype: str, xp: Any, tensor: Make, cpu: sl.Backend
    ) -> None:
        x = data.draw(arrays((rows, columns), (dtype,)))
        width = data.draw(st.integers(0, columns))
        kind = data.draw(st.sampled_from(INTS))
        at = np.array([data.draw(st.permutations(range(columns)))[:width] for _ in range(rows)], kind)
        at = at.reshape(rows, width)
        values, mask = data.draw(arrays((rows, width), (dtype,))), data.draw(arrays((rows, width), ("bool",)))
        if dtype in INTS:
            values = values.astype(data.draw(st.sampled_from(INTS)))  # converted to the array's
        expected = x.copy()
        for row, j in zip(*np.nonzero(mask), strict=True):
            expected[row, at[row, j]] = values[row, j]
        t = tensor(x)
        before = cpu.inspect(t)
        xp.scatter_rows(t, tensor(at), tensor(values), tensor(mask))
        assert np.array_equal(host(t), expected)
        assert cpu.inspect(t) == before

    @given(data=st.data(), shape=FILLED, dtype=st.sampled_from(DTYPES))
    def test_put_rows(self, data: Any, shape: Any, dtype: str, xp: Any, tensor: Make) -> None:
        x = data.draw(arrays(shape, (dtype,)))
        axis = data.draw(st.integers(0, x.ndim - 1))
        kind = data.draw(st.sampled_from(INTS))
        rows = np.array(data.draw(st.lists(st.integers(0, shape[axis] - 1), unique=True)), kind)
        values = data.draw(arrays([len(rows) if i == axis else n for i, n in enumerate(shape)], (dtype,)))
        expected = x.copy()
        np.moveaxis(expected, axis, 0)[rows] = np.moveaxis(values, axis, 0)
        t = tensor(x)
        xp.put_rows(t, tensor(rows), tensor(values), axis)
        assert np.array_equal(host(t), expected)

    @given(data=st.data(), shape=SHAPES, dtype=st.sampled_from(DTYPES))
    def test_assignment(self, data: Any, shape: Any, dtype: str, xp: Any, tensor: Make) -> None:
        x, y = data.draw(arrays(shape, (dtype,))), data.draw(arrays(shape, (dtype,)))
        for key in (..., slice(1, None), (..., 0), (..., slice(0, 2)), (..., slice(1, None, 2)), slice(0, 0), -1):
            if 0 in shape and key in ((..., 0), -1):
                continue
            for value in (y, y[:1], 1, True):
                expected, t = x.copy(), tensor(x)
                if isinstance(value, np.ndarray):
                    if value is not y and (isinstance(key, tuple) or key == -1):
                        continue
                    value = value[key] if value is y else value
                    if not value.size:  # paddle takes a number there, but no tensor without cells
                        continue
                    t[key] = tensor(value)
                else:
                    t[key] = value
                expected[key] = value
                assert np.array_equal(host(t), expected)

    @given(data=st.data(), rows=st.integers(1, 3), columns=st.integers(2, 4), dtype=st.sampled_from(DTYPES))
    def test_views_write_through(
        self, data: Any, rows: int, columns: int, dtype: str, xp: Any, tensor: Make, cpu: sl.Backend
    ) -> None:
        x = data.draw(arrays((columns, rows, 2), (dtype,)))
        y = data.draw(arrays((rows, columns - 1), (dtype,)))
        expected, t = x.copy(), tensor(x)
        moved, moved_t = np.moveaxis(expected, 1, 0), xp.moveaxis(t, 1, 0)  # the slots' axis first
        moved[:, 1:, 0] = y
        before = cpu.inspect(t)
        narrow = moved_t[:, 1:, 0]
        narrow[...] = tensor(y)
        assert np.array_equal(host(t), expected)
        mask = data.draw(arrays((rows,), ("bool",)))
        moved[:, :-1, 1] = np.where(mask[:, None], y, moved[:, :-1, 1])
        narrow = moved_t[:, :-1, 1]
        narrow[...] = xp.where(tensor(mask)[:, None], tensor(y), narrow)
        assert np.array_equal(host(t), expected)
        at = np.zeros((rows, 1), np.int64)
        moved[:, 1:, 1][:, 0] = 1
        xp.scatter_rows(moved_t[:, 1:, 1], tensor(at), tensor(np.ones((rows, 1), dtype)), tensor(at == 0))
        xp.put_rows(moved_t[:, :, 0], tensor(at[0]), tensor(y[:1, :1].repeat(columns, 1)), 0)
        moved[0, :, 0] = y[0, 0]
        assert np.array_equal(host(t), expected)
        assert cpu.inspect(t) == before

    @given(data=st.data(), shape=FILLED, dtype=st.sampled_from(DTYPES))
    def test_a_dense_tensor_reshaped_is_a_view(
        self, data: Any, shape: Any, dtype: str, xp: Any, framework: str
    ) -> None:
        x, y = data.draw(arrays(shape, (dtype,))), data.draw(arrays(shape, (dtype,)))
        t = whole(framework, x)
        for other in ((-1,), (1, *shape), (shape[0], -1), (*shape, 1)):
            view = xp.reshape(t, other)
            view[...] = whole(framework, y.reshape(other))
            assert np.array_equal(host(t), y)
            t[...] = whole(framework, x)


@pytest.mark.parametrize("dtype", FIELD_DTYPES)
@given(data=st.data(), shape=FILLED)
def test_rows_of_every_dtype_move_bit_by_bit(
    dtype: str, data: Any, shape: Any, cpu: sl.Backend, framework: str
) -> None:
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    if framework == "paddle" and dtype in ("uint16", "uint32", "uint64"):
        with pytest.raises(sl.LayoutError, match=f"paddle has no {dtype}; choose int"):
            cpu.empty([("mine", shape, dtype)])
        return
    size = np.dtype(dtype).itemsize
    top = 1 if dtype == "bool" else 255
    raw = data.draw(hnp.arrays(np.uint8, (*shape, size), elements=st.integers(0, top)))
    x = raw.view(dtype)[..., 0]
    axis = data.draw(st.integers(0, x.ndim - 1))
    src = np.array(data.draw(st.permutations(range(shape[axis]))))
    dst = np.array(data.draw(st.permutations(range(shape[axis]))))
    expected = raw.copy()
    np.moveaxis(expected, axis, 0)[dst] = np.moveaxis(raw, axis, 0)[src]
    given_ = cpu.upload({"x": x, "src": src, "dst": dst})
    xp = cpu.namespace
    xp.put_rows(given_["x"], given_["dst"], xp.take(given_["x"], given_["src"], axis=axis), axis)
    assert cpu.read(given_["x"]).tobytes() == expected.tobytes()
