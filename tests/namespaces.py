"""Arrays and comparisons for the tests of the array namespaces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from frameworks import host
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import slotline as sl

Make = Callable[..., Any]
INTS = ("int32", "int64")
DTYPES = ("bool", *INTS, "float32")


def arrays(shape: Any, dtypes: tuple[str, ...] = INTS) -> st.SearchStrategy[np.ndarray[Any, Any]]:
    def of(dtype: str) -> st.SearchStrategy[np.ndarray[Any, Any]]:
        numbers = st.integers(-9, 9)
        elements = {"bool": st.booleans(), "float32": numbers.map(lambda n: n / 2)}.get(dtype, numbers)
        return hnp.arrays(dtype, shape, elements=elements)

    return st.sampled_from(dtypes).flatmap(of)


SHAPES = hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=3)
FILLED = hnp.array_shapes(min_dims=1, max_dims=3, min_side=1, max_side=3)


def placed(cpu: sl.Backend, tensor: Make) -> Make:
    """Tensors of their own, and views that begin inside a larger tensor whose memory runs the other way round."""

    def make(values: Any) -> Any:
        values = np.asarray(values)
        if not values.ndim or sum(values.shape) % 2:
            return tensor(values)
        inner = (slice(1, -1),) * values.ndim
        larger = np.ones([n + 2 for n in values.shape], values.dtype)
        larger[inner] = values
        turned = tensor(np.ascontiguousarray(larger.T))
        return cpu.namespace.permute_dims(turned, tuple(range(values.ndim))[::-1])[inner]

    return make


def same(found: Any, expected: Any) -> None:
    """Dtype, shape and values."""
    got = np.asarray(found) if isinstance(found, np.generic) else host(found)
    expected = np.asarray(expected)
    assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
    assert np.array_equal(got, expected)
