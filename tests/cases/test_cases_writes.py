"""Single writes as they went wrong elsewhere: cases C01 to C09 on a device without streams, for each framework."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from frameworks import host

import slotline as sl
from slotline.backends.cpu import CpuBackend

Make = Callable[..., Any]

SOURCES: list[tuple[Any, list[int]]] = [
    (5, [5, 5, 5, 5]),
    (True, [1, 1, 1, 1]),
    ([1, 2, 3, 4], [1, 2, 3, 4]),
    ([[1, 2, 3, 4]], [1, 2, 3, 4]),
    ((1, 2, 3, 4), [1, 2, 3, 4]),
    (np.array([1, 2, 3, 4], np.int32), [1, 2, 3, 4]),
    (np.asfortranarray([[1, 2, 3, 4]]), [1, 2, 3, 4]),
    (np.array([1, 2, 3, 4])[::-1], [4, 3, 2, 1]),
    (np.array(7), [7, 7, 7, 7]),
    (np.float32(3.0), [3, 3, 3, 3]),
    (np.array([1, 2, 3, 4], ">i4"), [1, 2, 3, 4]),
    ([np.int8(1), 2, np.uint64(3), 4.0], [1, 2, 3, 4]),
]


@pytest.mark.usefixtures("cpu")
class TestSources:
    @pytest.mark.parametrize(("source", "expected"), SOURCES, ids=str)
    def test_c01_every_source_gives_the_same_result(self, source: Any, expected: list[int], tensor: Make) -> None:
        target = tensor(np.zeros((1, 4), np.int64))
        sl.async_set_value(target, source)
        assert host(target).tolist() == [expected]
        assert host(target).dtype == np.int64

    @pytest.mark.parametrize("dtype", ["bool", "int8", "int32", "int64", "float32", "float64"])
    def test_c01_tensors_are_sources(self, dtype: str, tensor: Make) -> None:
        target, source = tensor(np.zeros((2, 4), np.int64)), tensor([[0, 1, 1, 0], [1, 0, 0, 1]], dtype)
        sl.async_set_value(target, source)
        assert host(target).tolist() == host(source).astype(int).tolist()
        sl.async_set_value(target[0], source[1])  # views
        sl.async_set_value(target[:, 1], source[:, 0])
        assert host(target).tolist() == [[1, 0, 0, 1], [1, 1, 0, 1]]
        sl.async_set_value(target[1:, ::2], source.T[1:2, :1] if dtype != "bool" else True)
        assert host(target)[1].tolist() == [1, 1, 1, 1]

    def test_c02_a_partial_slice_of_inner_axes(self, tensor: Make) -> None:
        for source in ([[1, 2], [3, 4]], [[[1, 2], [3, 4]]], tensor([[1, 2], [3, 4]])):
            buffer = tensor(np.full((4, 3, 5), 9, np.int64))
            sl.async_set_value(buffer[2:3, :2, :2], source)
            found = host(buffer)
            assert found[2, 0, :2].tolist() == [1, 2]
            assert found[2, 1, :2].tolist() == [3, 4]
            assert (found == 9).sum() == 56

    def test_c06_c09_the_value_at_call_time_lands(self, tensor: Make) -> None:
        first, second = tensor(np.zeros(3, np.int64)), tensor(np.zeros(3, np.int64))
        for source in (np.array([1, 2, 3]), [1, 2, 3], tensor([1, 2, 3])):
            sl.async_set_value(first, source)
            source[0], source[1], source[2] = 4, 5, 6
            sl.async_set_value(second, source)
            source[0] = source[1] = source[2] = 9
            assert (host(first).tolist(), host(second).tolist()) == ([1, 2, 3], [4, 5, 6])

    @pytest.mark.parametrize("kind", ["array", "tensor"])
    def test_c07_temporary_sources_are_not_kept(self, kind: str, tensor: Make) -> None:
        targets = tensor(np.zeros((1000, 16), np.int64))
        sources = []
        for i in range(1000):
            source = np.full(16, i) if kind == "array" else tensor(np.full(16, i))
            sources.append(weakref.ref(source))
            sl.async_set_value(targets[i], source)
        del source
        assert (host(targets) == np.arange(1000)[:, None]).all()
        assert not [ref for ref in sources if ref() is not None]

    def test_c08_c09_ten_thousand_scalars(self, tensor: Make) -> None:
        target = tensor(np.zeros(10_000, np.int64))
        for i in range(10_000):
            sl.async_set_value(target[i : i + 1], i)
        assert np.array_equal(host(target), np.arange(10_000))


class Counting(CpuBackend):
    """Writes by the base class's dense segments, and counts them."""

    _set = sl.Backend._set

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.segments = 0

    def _write(self, tensor: Any, offset: int, data: memoryview) -> None:
        self.segments += 1
        super()._write(tensor, offset, data)


def test_c04_a_strided_target_takes_as_many_dense_segments_as_it_has_rows(framework: str, tensor: Make) -> None:
    backend = Counting(framework=framework)
    block = np.arange(24).reshape(3, 8)[:, :7]
    for target, segments in ((tensor(np.zeros((3, 7), np.int64)), 1), (tensor(np.zeros((3, 9), np.int64))[:, 1:8], 3)):
        backend.segments = 0
        backend.async_set_value(target, block)
        assert backend.segments == segments
        assert np.array_equal(host(target), block)
        backend.async_set_value(target, tensor(block) * 2)
        assert np.array_equal(host(target), block * 2)
