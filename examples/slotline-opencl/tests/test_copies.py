"""Copies between tensors on the device: converted, broadcast, strided, overlapping (rules W1, W2, W3, W7)."""

from __future__ import annotations

import itertools
import math
from typing import Any

import ml_dtypes  # noqa: F401  (teaches NumPy bfloat16)
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from slotline_opencl import OpenclBackend
from slotline_opencl.tensor import OpenclTensor

from slotline.core import values
from slotline.device import DTYPES


def upload(backend: OpenclBackend, array: NDArray[Any]) -> OpenclTensor:
    tensor: OpenclTensor = backend.empty([("x", array.shape, array.dtype.name)])["x"]
    backend.async_set_value(tensor, array)
    return tensor


def allowed() -> list[tuple[str, str]]:
    found = []
    for source, target in itertools.product(DTYPES, DTYPES):
        try:
            values.check_device_source(source, target)
        except TypeError:
            continue
        found.append((source, target))
    return found


def cells(dtype: str, count: int) -> NDArray[Any]:
    """Every kind of bits, and for floats many near to where narrower ones round, overflow and become subnormal."""
    rng = np.random.default_rng(7)
    kind = np.dtype(dtype)
    if kind == np.bool_:
        return rng.integers(0, 2, count).astype(bool)
    raw = np.frombuffer(rng.integers(0, 256, count * kind.itemsize, dtype=np.uint8).tobytes(), kind).copy()
    if dtype in ("float32", "float64"):
        half = count // 2
        near = rng.integers(-(2**12), 2**12, half) * np.exp2(rng.integers(-152, 120, half))
        with np.errstate(over="ignore"):
            raw[:half] = near.astype(kind)
        special = [0.0, -0.0, np.inf, -np.inf, np.nan, 65504, 65519.99, 65520, 2.0**-24, 2.0**-25, 1e-45, 3.4e38]
        raw[: len(special)] = np.array(special, kind)
    return raw


@pytest.mark.parametrize(("source", "target"), allowed(), ids=lambda d: str(d))
def test_w3_conversions_give_numpys_bytes(backend: OpenclBackend, source: str, target: str) -> None:
    array = cells(source, 20_000)
    tensor = backend.empty([("x", array.shape, target)])["x"]
    backend.async_set_value(tensor, upload(backend, array))
    got = backend.read(tensor)
    with np.errstate(all="ignore"):
        want = values.from_host(array, target, array.shape, checked=False)
        numbers = ~np.isnan(want.astype(np.float64))  # which bits a NaN has differs between NumPy's builds
        assert np.isnan(got[~numbers].astype(np.float64)).all()
    assert got[numbers].tobytes() == want[numbers].tobytes()


@given(st.data())
def test_w1_w2_any_view_into_any_view(backend: OpenclBackend, data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 4), max_size=4)))
    steps = tuple(data.draw(st.integers(1, 3)) for _ in shape)
    broad = tuple(1 if data.draw(st.booleans()) else n for n in shape)
    less = data.draw(st.integers(0, next((i for i, n in enumerate(broad) if n != 1), len(broad))))
    more = data.draw(st.integers(0, 2)) if not less else 0
    source_shape = (1,) * more + broad[less:]
    view = tuple(slice(None, None, s) for s in steps)
    into = np.full(tuple(n * s for n, s in zip(shape, steps, strict=True)), -1, np.int32)
    source = np.arange(2 * math.prod(source_shape), dtype=np.int16).reshape(*source_shape, 2)
    target, out_of = upload(backend, into), upload(backend, source)
    backend.async_set_value(target[view], out_of[..., 0])
    into[view] = source[..., 0].reshape(source_shape[more:])
    assert np.array_equal(backend.read(target), into)


def test_w1_more_axes_than_one_launch_walks_over(backend: OpenclBackend) -> None:
    shape = (2,) * 11
    array = np.arange(2 * math.prod(shape), dtype=np.int32).reshape(*(2 * n for n in shape[:1]), *shape[1:])
    source = upload(backend, array)[::2]
    odd = np.zeros(tuple(3 for _ in shape), np.int64)
    target = upload(backend, odd)
    view = tuple(slice(0, 3, 2) for _ in shape)
    backend.async_set_value(target[view], source)
    odd[view] = array[::2]
    assert np.array_equal(backend.read(target), odd)


@given(st.data())
def test_w7_an_overlap_is_as_if_copied_first(backend: OpenclBackend, data: st.DataObject) -> None:
    shape = (data.draw(st.integers(2, 6)), data.draw(st.integers(2, 6)))
    array = np.arange(math.prod(shape), dtype=np.int64).reshape(shape)
    tensor = upload(backend, array)
    rows, columns = data.draw(st.integers(1, shape[0])), data.draw(st.integers(1, shape[1]))

    def corner() -> tuple[slice, slice]:
        a, b = data.draw(st.integers(0, shape[0] - rows)), data.draw(st.integers(0, shape[1] - columns))
        return slice(a, a + rows), slice(b, b + columns)

    into, out_of = corner(), corner()
    backend.async_set_value(tensor[into], tensor[out_of])
    array[into] = array[out_of].copy()
    assert np.array_equal(backend.read(tensor), array)


def test_w7_a_row_over_all_rows_of_its_own_tensor(backend: OpenclBackend) -> None:
    array = np.arange(12, dtype=np.int32).reshape(3, 4)
    tensor = upload(backend, array)
    backend.async_set_value(tensor, tensor[1])
    assert backend.read(tensor).tolist() == [[4, 5, 6, 7]] * 3
