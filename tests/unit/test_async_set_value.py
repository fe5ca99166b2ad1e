"""Single writes on the default device, for each framework: refusals, identity, threads (rules W)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from frameworks import host

import slotline as sl

Make = Callable[..., Any]


@pytest.mark.usefixtures("cpu")
class TestRefusals:
    @pytest.mark.parametrize("source", ["text", None, {"a": 1}, object(), 1j, {1}, b"x", np.datetime64("2020")])
    def test_w2_anything_else_is_a_type_error_that_names_the_type(self, source: Any, tensor: Make) -> None:
        target = tensor(np.zeros(2, np.int64))
        with pytest.raises((TypeError, ValueError), match=r"a source is|hold"):
            sl.async_set_value(target, source)
        assert not host(target).any()

    @pytest.mark.parametrize("source", [[1, [2, 3]], [[1, 2, 3]], [1, 2, 3], np.zeros((2, 2))])
    def test_w2_a_shape_that_does_not_fit_is_refused(self, source: Any, tensor: Make) -> None:
        target = tensor(np.ones(2, np.int64))
        for tried in (source, tensor(source)) if isinstance(source, np.ndarray) else (source,):
            with pytest.raises(ValueError, match=r"fit|ragged"):
                sl.async_set_value(target, tried)
        assert host(target).tolist() == [1, 1]

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
        self, dtype: str, source: Any, named: str, tensor: Make
    ) -> None:
        target = tensor(np.zeros(2, dtype))
        with pytest.raises(ValueError, match=named) as caught:
            sl.async_set_value(target, source)
        assert dtype in str(caught.value)
        assert not host(target).any()

    @pytest.mark.parametrize(
        ("dtype", "source", "named"),
        [
            ("int32", [2**31, 0], "2147483648"),
            ("int64", [0.5, 1], "0.5"),
            ("bool", [2, 1], "2"),
            ("uint8", [-1, 0], "-1"),
        ],
    )
    def test_w3_the_values_of_a_tensor_count_since_it_is_a_host_source(
        self, dtype: str, source: Any, named: str, tensor: Make
    ) -> None:
        target = tensor(np.zeros(2, dtype))
        with pytest.raises(ValueError, match=f"{named} does not fit into {dtype}"):
            sl.async_set_value(target, tensor(source))
        assert not host(target).any()
        sl.async_set_value(target, tensor([1.0, 0.0]))  # of another dtype, but values that fit
        assert host(target).tolist() == [1, 0]

    def test_w1_a_destination_that_is_no_tensor_is_named(self, cpu: sl.Backend) -> None:
        with pytest.raises(TypeError, match="list is not a tensor"):
            sl.async_set_value([1, 2], 3)
        with pytest.raises(TypeError, match=rf"list is not a tensor of backend 'cpu' \({cpu.framework}\)"):
            cpu.async_set_value([1, 2], 3)


def test_w1_a_read_only_array_is_no_destination(cpu: sl.Backend, framework: str) -> None:
    frozen = np.zeros(2)
    frozen.flags.writeable = False
    error, text = (ValueError, "read-only") if framework == "numpy" else (TypeError, "ndarray is not a tensor")
    with pytest.raises(error, match=text):
        cpu.async_set_value(frozen, 1)


def test_w3_bfloat16_rounds_to_nearest_even(cpu: sl.Backend) -> None:
    pytest.importorskip("ml_dtypes")
    (target,) = cpu.empty([("x", (3,), "bfloat16")]).values()
    sl.async_set_value(target, [1.0 + 2**-8, 1.0 + 3 * 2**-8, float("nan")])
    found = cpu.read(target).astype(float)
    assert found[:2].tolist() == [1.0, 1.0 + 2**-6]
    assert np.isnan(found[2])


@pytest.mark.usefixtures("cpu")
def test_w8_c11_a_write_moves_nothing(tensor: Make, cpu: sl.Backend) -> None:
    target = tensor(np.zeros((3, 4), np.float32))
    before = cpu.inspect(target)
    sl.async_set_value(target[1:, ::2], [[1], [2]])
    assert cpu.inspect(target) == before
    assert host(target).tolist() == [[0, 0, 0, 0], [1, 0, 1, 0], [2, 0, 2, 0]]


def test_w9_a_device_error_keeps_its_number() -> None:  # W9
    unknown = sl.DeviceError("cuda", "memcpy", 999, None)
    known = sl.DeviceError("cuda", "memcpy", 2, "cudaErrorMemoryAllocation", "1 GiB")
    assert (unknown.code, unknown.code_name) == (999, None)
    assert "999 (unknown code)" in str(unknown)
    assert "2 (cudaErrorMemoryAllocation): 1 GiB" in str(known)


@pytest.mark.usefixtures("cpu")
def test_w10_disjoint_destinations_from_several_threads(tensor: Make) -> None:  # W10
    target = tensor(np.zeros((4, 500), np.int64))

    def write(row: int) -> None:
        for i in range(500):
            sl.async_set_value(target[row, i : i + 1], row * 500 + i)

    threads = [threading.Thread(target=write, args=(row,)) for row in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert np.array_equal(host(target).reshape(-1), np.arange(2000))


def test_w1_the_bytes_of_a_strided_view_are_its_own(cpu: sl.Backend, tensor: Make) -> None:
    whole = tensor(np.zeros((3, 6), np.int32))
    view = whole[1:, :4:2]  # its steps differ, so flattening it would copy
    cpu._write(view, 8, memoryview(np.array([5], np.int32).tobytes()))
    assert host(whole)[1, 2] == 5
    assert cpu._read(view, 8, 4) == np.array([5], np.int32).tobytes()


def test_x5_bfloat16_fields_are_there_once_ml_dtypes_is(cpu: sl.Backend) -> None:
    pytest.importorskip("ml_dtypes")
    (target,) = cpu.empty([("x", (2, 3), "bfloat16")]).values()
    sl.async_set_value(target, 1.5)
    sl.async_set_value(target[1:, ::2], target[:1, :1])
    assert cpu.inspect(target).dtype == "bfloat16"
    assert cpu.read(target).astype(float).tolist() == [[1.5] * 3] * 2
