"""What a call of CUDA's bindings gives or raises, in every form that the wheels have (rules X3, W9)."""

from __future__ import annotations

import ctypes
import enum
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from slotline.compat import cuda
from slotline.core.errors import BackendUnavailable, DeviceError


class CUresult(enum.IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_STUB_LIBRARY = 34


class cudaError_t(enum.IntEnum):
    cudaSuccess = 0
    cudaErrorInsufficientDriver = 35
    cudaErrorStubLibrary = 34


@pytest.fixture
def with_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine whose driver's library can be loaded."""
    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace())


@pytest.fixture
def without_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine that has no driver."""

    def fails(name: str) -> Any:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", fails)


def fails_with(error: Exception, name: str = "cuStreamWaitEvent") -> Callable[..., Any]:
    """A call of the bindings that raises."""

    def call(*arguments: Any) -> Any:
        raise error

    call.__name__ = name
    return call


@pytest.mark.parametrize("kind", [CUresult, cudaError_t], ids=["driver", "runtime"])
def test_w9_a_status_that_the_bindings_do_not_know_keeps_its_number(kind: type[enum.IntEnum]) -> None:
    def cuMemcpyAsync() -> Any:  # every wheel makes the number an enum's member, here as there
        return (kind(77777),)

    with pytest.raises(DeviceError) as caught:
        cuda.call(cuMemcpyAsync)
    assert (caught.value.operation, caught.value.code, caught.value.code_name) == ("cuMemcpyAsync", 77777, None)
    assert isinstance(caught.value.__cause__, ValueError)


def test_w9_an_argument_that_is_refused_is_no_device_error() -> None:
    with pytest.raises(ValueError, match="9 is not a valid cudaMemcpyKind"):
        cuda.call(fails_with(ValueError("9 is not a valid cudaMemcpyKind")))


def test_c65_a_driver_status_has_the_drivers_name() -> None:
    with pytest.raises(DeviceError) as caught:
        cuda.call(lambda: (CUresult(2), None))
    assert (caught.value.code, caught.value.code_name) == (2, "CUDA_ERROR_OUT_OF_MEMORY")


@pytest.mark.parametrize("status", [cudaError_t(35), cudaError_t(34), CUresult(34)], ids=lambda status: status.name)
def test_x3_statuses_that_mean_no_driver(status: enum.IntEnum) -> None:
    with pytest.raises(cuda.NoDriver, match=f"no CUDA driver: .* gives {int(status)} .{status.name}.") as caught:
        cuda.call(lambda: (status, None))
    assert isinstance(caught.value.__cause__, DeviceError)


@pytest.mark.usefixtures("without_driver")
def test_x3_without_a_driver_a_missing_function_means_no_driver() -> None:
    with pytest.raises(cuda.NoDriver, match="no CUDA driver: cuStreamWaitEvent: Function"):
        cuda.call(fails_with(RuntimeError('Function "cuStreamWaitEvent" not found')))


@pytest.mark.usefixtures("with_driver")
def test_x3_a_driver_that_lacks_a_function_is_a_driver() -> None:
    with pytest.raises(BackendUnavailable, match=r"the CUDA driver lacks cuStreamWaitEvent.*a newer driver") as caught:
        cuda.call(fails_with(RuntimeError("function cuStreamWaitEvent is not found")))
    assert not isinstance(caught.value, cuda.NoDriver)


@pytest.mark.usefixtures("without_driver")
def test_x2_a_missing_compiler_is_no_missing_driver() -> None:
    with pytest.raises(BackendUnavailable, match=r"no nvrtc library.*libnvrtc\.so\.12.*nvidia-cuda-nvrtc") as caught:
        cuda.call(fails_with(RuntimeError("Failed to dlopen libnvrtc.so.12"), "nvrtcCreateProgram"))
    assert not isinstance(caught.value, cuda.NoDriver)


@pytest.mark.usefixtures("without_driver")
def test_b3_a_driver_that_cannot_be_loaded() -> None:
    with pytest.raises(cuda.NoDriver, match=r"cannot be loaded .*; install NVIDIA's driver"):
        cuda.require_driver()


@pytest.mark.usefixtures("with_driver")
def test_b3_a_driver_that_can_be_loaded() -> None:
    cuda.require_driver()
