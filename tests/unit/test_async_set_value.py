"""Single writes on the default device: the cases that make sense without streams (rules W)."""

from __future__ import annotations

import threading
import weakref
from typing import Any

import numpy as np
import pytest

import slotline as sl
from slotline.core import strided


@pytest.fixture(scope="module")
def cpu() -> sl.Backend:
    return sl.load_backend("cpu")


@pytest.mark.usefixtures("cpu")
class TestSources:
    @pytest.mark.parametrize(
        ("source", "expected"),
        [
            (5, [5, 5, 5, 5]),
            (True, [1, 1, 1, 1]),
            ([1, 2, 3, 4], [1, 2, 3, 4]),
            ([[1, 2, 3, 4]], [1, 2, 3, 4]),
            (np.array([1, 2, 3, 4], np.int32), [1, 2, 3, 4]),
            (np.asfortranarray([[1, 2, 3, 4]]), [1, 2, 3, 4]),
            (np.array([1, 2, 3, 4])[::-1], [4, 3, 2, 1]),
            (np.array(7), [7, 7, 7, 7]),
            (np.float32(3.0), [3, 3, 3, 3]),
            (np.array([1, 2, 3, 4], ">i4"), [1, 2, 3, 4]),
            ((1, 2, 3, 4), [1, 2, 3, 4]),
            ([np.int8(1), 2, np.uint64(3), 4.0], [1, 2, 3, 4]),
        ],
        ids=str,
    )
    def test_c01_every_source_gives_the_same_result(self, source: Any, expected: list[int]) -> None:
        target = np.zeros((1, 4), np.int64)
        sl.async_set_value(target, source)
        assert target.tolist() == [expected]
        assert target.dtype == np.int64

    def test_c02_a_partial_slice_of_inner_axes(self) -> None:
        for source in ([[1, 2], [3, 4]], [[[1, 2], [3, 4]]]):
            buffer = np.full((4, 3, 5), 9, np.int64)
            sl.async_set_value(buffer[2:3, :2, :2], source)
            assert buffer[2, 0, :2].tolist() == [1, 2]
            assert buffer[2, 1, :2].tolist() == [3, 4]
            assert (buffer == 9).sum() == 56

    @pytest.mark.parametrize("source", ["text", None, {"a": 1}, object(), 1j, {1}, b"x", np.datetime64("2020")])
    def test_w2_anything_else_is_a_type_error_that_names_the_type(self, source: Any) -> None:
        target = np.zeros(2, np.int64)
        with pytest.raises((TypeError, ValueError), match=r"a source is|hold"):
            sl.async_set_value(target, source)
        assert not target.any()

    @pytest.mark.parametrize("source", [[1, [2, 3]], [[1, 2, 3]], [1, 2, 3], np.zeros((2, 2))])
    def test_w2_a_shape_that_does_not_fit_is_refused(self, source: Any) -> None:
        target = np.ones(2, np.int64)
        with pytest.raises(ValueError, match=r"fit|ragged"):
            sl.async_set_value(target, source)
        assert target.tolist() == [1, 1]

    @pytest.mark.parametrize(
        ("dtype", "source", "named"),
        [
            ("int32", 2**31, "2147483648"),
            ("int64", 2**63, "9223372036854775808"),
            ("int64", [0, 2**64], "18446744073709551616"),
            ("int64", 1.5, "1.5"),
            ("int64", [1, float("nan")], "nan"),
            ("int64", float("inf"), "inf"),
            ("bool", 2, "2"),
            ("float32", 1e39, "1e\\+39"),
            ("uint8", -1, "-1"),
            ("int64", ["a", "b"], "a"),
            ("int64", np.array(["7"]), "7"),
        ],
    )
    def test_w3_a_value_that_does_not_fit_is_named_and_nothing_changes(
        self, dtype: str, source: Any, named: str
    ) -> None:
        target = np.zeros(2, dtype)
        with pytest.raises(ValueError, match=named) as caught:
            sl.async_set_value(target, source)
        assert dtype in str(caught.value)
        assert not target.any()

    def test_w3_bfloat16_rounds_to_nearest_even(self, cpu: sl.Backend) -> None:
        ml_dtypes = pytest.importorskip("ml_dtypes")
        target = np.zeros(3, ml_dtypes.bfloat16)
        sl.async_set_value(target, [1.0 + 2**-8, 1.0 + 3 * 2**-8, float("nan")])
        assert target[:2].astype(float).tolist() == [1.0, 1.0 + 2**-6]
        assert np.isnan(target[2])

    def test_c06_c09_the_value_at_call_time_lands(self) -> None:
        host, first, second = np.array([1, 2, 3]), np.zeros(3, int), np.zeros(3, int)
        sl.async_set_value(first, host)
        host[:] = [4, 5, 6]
        sl.async_set_value(second, host)
        host[:] = 9
        assert (first.tolist(), second.tolist()) == ([1, 2, 3], [4, 5, 6])


def test_c04_a_strided_source_and_target_are_as_many_runs_as_rows() -> None:
    block = np.zeros((3, 8))[:, :7]
    whole = np.zeros((3, 7))
    assert len(list(strided.segments(block.shape, block.strides, 8, whole.strides))) == 3
    assert len(list(strided.segments(whole.shape, whole.strides, 8, whole.strides))) == 1


def test_c07_temporary_sources_are_not_kept(cpu: sl.Backend) -> None:
    targets = np.zeros((1000, 128), np.int64)
    sources = []
    for i in range(1000):
        source = np.full(128, i)
        sources.append(weakref.ref(source))
        sl.async_set_value(targets[i], source)
    del source
    assert (targets == np.arange(1000)[:, None]).all()
    assert not [ref for ref in sources if ref() is not None]


def test_c08_ten_thousand_scalars(cpu: sl.Backend) -> None:
    target = np.zeros(10_000, np.int64)
    for i in range(10_000):
        sl.async_set_value(target[i : i + 1], i)
    assert np.array_equal(target, np.arange(10_000))


def test_w1_a_destination_that_is_no_tensor_is_named(cpu: sl.Backend) -> None:
    with pytest.raises(TypeError, match="list is not a tensor"):
        sl.async_set_value([1, 2], 3)
    frozen = np.zeros(2)
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        sl.async_set_value(frozen, 1)


def test_w8_c11_a_write_moves_nothing(cpu: sl.Backend) -> None:
    target = np.zeros((3, 4), np.float32)
    before = (target.__array_interface__, target.strides)
    sl.async_set_value(target[1:, ::2], [[1], [2]])
    assert (target.__array_interface__, target.strides) == before


def test_w9_a_device_error_keeps_its_number() -> None:  # W9
    unknown = sl.DeviceError("cuda", "memcpy", 999, None)
    known = sl.DeviceError("cuda", "memcpy", 2, "cudaErrorMemoryAllocation", "1 GiB")
    assert (unknown.code, unknown.code_name) == (999, None)
    assert "999 (unknown code)" in str(unknown)
    assert "2 (cudaErrorMemoryAllocation): 1 GiB" in str(known)


def test_w10_disjoint_destinations_from_several_threads(cpu: sl.Backend) -> None:  # W10
    target = np.zeros((4, 1000), np.int64)

    def write(row: int) -> None:
        for i in range(1000):
            sl.async_set_value(target[row, i : i + 1], row * 1000 + i)

    threads = [threading.Thread(target=write, args=(row,)) for row in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert np.array_equal(target.reshape(-1), np.arange(4000))


def test_f4_an_array_that_cannot_be_written_is_not_adopted(cpu: sl.Backend) -> None:
    layout = sl.target_layout(sl.BatchConfig(max_num_seqs=2, max_model_len=8, vocab_size=9))
    frozen = np.zeros(2, np.int32)
    frozen.flags.writeable = False
    with pytest.raises(sl.LayoutError, match="'step_idx': the array is read-only"):
        sl.SlotBatch(layout, cpu, tensors={"step_idx": frozen})


def test_w1_the_bytes_of_a_strided_view_are_its_own(cpu: sl.Backend) -> None:
    whole = np.zeros((3, 6), np.int32)
    view = whole[1:, :4:2]  # its steps differ, so flattening it would copy
    cpu._write(view, 8, memoryview(np.array([5], np.int32).tobytes()))
    assert whole[1, 2] == 5
    assert cpu._read(view, 8, 4) == np.array([5], np.int32).tobytes()


def test_x5_bfloat16_fields_are_numpy_s_once_ml_dtypes_is_there(cpu: sl.Backend) -> None:
    pytest.importorskip("ml_dtypes")
    (tensor,) = cpu._allocate([("x", (2, 3), "bfloat16")])
    sl.async_set_value(tensor, 1.5)
    assert cpu.inspect(tensor).dtype == "bfloat16"
    assert cpu.read(tensor).astype(float).tolist() == [[1.5] * 3] * 2


def test_b3_the_default_device_tells_its_versions(cpu: sl.Backend) -> None:
    assert cpu.probe().versions == {"numpy": np.__version__, "slotline": sl.__version__}
