"""Why cuda and xpu cannot be used here: each missing part is named, with what to do (rules B3, B4; C69, C80)."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

import slotline as sl
from slotline.backends.cuda import CudaBackend, parts
from slotline.backends.xpu import XpuBackend, intel, kunlun
from slotline.compat import cuda


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the driver's library and the device nodes were there."""
    monkeypatch.setattr(cuda, "require_driver", lambda: None)
    for module in (kunlun, intel):
        monkeypatch.setattr(module, "require_node", lambda *names: None)


def no_bindings() -> Any:
    raise sl.BackendUnavailable("no CUDA bindings: neither cuda.bindings.runtime nor cuda.cudart can be imported")


def test_c69_cuda_without_torch_and_bindings(driver: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "runtime", no_bindings)
    monkeypatch.setattr(parts, "find_spec", lambda name: None)
    reason = CudaBackend.probe().reason
    assert "torch is not installed; install its CUDA build; " in reason
    assert "no CUDA bindings" in reason


def test_c69_without_a_driver_the_other_missing_parts_are_told_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_driver() -> None:
        raise cuda.NoDriver("no CUDA driver: libcuda.so.1 cannot be loaded")

    monkeypatch.setattr(cuda, "require_driver", no_driver)
    monkeypatch.setattr(cuda, "runtime", no_bindings)
    monkeypatch.setattr(parts, "find_spec", lambda name: None)
    said = r"no CUDA driver: .*; no CUDA bindings: .*; torch is not installed"
    with pytest.raises(ImportError, match=said) as caught:
        sl.load_backend("cuda")
    assert isinstance(caught.value, sl.BackendUnavailable)


@pytest.mark.parametrize(("vendor", "framework"), [("kunlun", "paddle"), ("intel", "torch")])
def test_b6_without_a_device_the_missing_framework_is_told_too(
    monkeypatch: pytest.MonkeyPatch, vendor: str, framework: str
) -> None:
    module = {"kunlun": kunlun, "intel": intel}[vendor]
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    reason = XpuBackend.probe(vendor=vendor).reason
    if reason.startswith("no sign of"):  # a machine with such a node has only the second half to tell
        assert f"; {framework} is not installed" in reason
    assert f"{framework} is not installed" in reason


def test_x3_bindings_newer_than_the_driver_leave_it_to_the_framework(
    driver: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They say that there is no driver for them; the framework has a runtime of its own."""

    class Runtime:
        @staticmethod
        def cudaGetDeviceCount() -> tuple[int, None]:
            return (35, None)

        class cudaError_t:
            name = "cudaErrorInsufficientDriver"

            def __init__(self, code: int) -> None:
                assert code == 35

    asked: list[str] = []

    def make_tensors(framework: str, device: int) -> Any:
        asked.append(framework)
        raise sl.BackendUnavailable("torch sees no device of CUDA")

    monkeypatch.setattr(cuda, "runtime", lambda: Runtime)
    monkeypatch.setattr(parts, "find_spec", lambda name: True)
    monkeypatch.setattr(parts, "make_tensors", make_tensors)
    reason = CudaBackend.probe(framework="torch").reason
    assert asked == ["torch"]
    assert reason.startswith("torch sees no device of CUDA; no CUDA driver: cudaGetDeviceCount gives 35")


@pytest.mark.parametrize(
    ("vendor", "needed"),
    [
        ("kunlun", "paddle is not installed; its build for Kunlun comes from the vendor"),
        ("intel", "torch is not installed"),
    ],
)
def test_b6_xpu_without_its_framework(driver: None, monkeypatch: pytest.MonkeyPatch, vendor: str, needed: str) -> None:
    monkeypatch.setattr(kunlun, "find_spec", lambda name: None)
    monkeypatch.setattr(intel, "find_spec", lambda name: None)
    assert needed in XpuBackend.probe(vendor=vendor).reason


def test_b3_a_system_without_a_device_says_so_before_a_framework_is_imported() -> None:
    script = (
        "import sys, slotline as sl\n"
        "from slotline.backends.cuda import CudaBackend\n"
        "from slotline.backends.xpu import XpuBackend\n"
        "probes = [CudaBackend.probe(), *(XpuBackend.probe(vendor=v) for v in XpuBackend.vendors)]\n"
        "print(*(p.reason for p in probes), sep='\\n')\n"
        "usable = any(p.usable for p in probes)\n"
        "print(usable or not {'torch', 'paddle'} & set(sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    *reasons, told = done.stdout.splitlines()
    for reason, sign in zip(
        reasons, ("no CUDA driver: ", "no sign of a Kunlun XPU", "no sign of an Intel GPU"), strict=True
    ):
        if not reason.startswith(sign):
            pytest.skip(f"this machine has signs of a device: {reason}")
    assert told == "True"


@pytest.mark.parametrize(("name", "vendor"), [("cuda", None), ("xpu", "kunlun"), ("xpu", "intel")])
def test_c80_asked_for_by_name_it_is_an_error_with_the_reason_of_doctor(name: str, vendor: str | None) -> None:
    (info,) = (i for i in sl.list_backends() if (i.name, i.vendor) == (name, vendor))
    if info.usable:
        pytest.skip(f"this machine has {name} {vendor or ''}")
    with pytest.raises(sl.BackendUnavailable) as caught:
        sl.load_backend(name, vendor=vendor)
    assert info.reason in str(caught.value)


def test_c83_kunlun_stands_above_cuda() -> None:
    kunlun_rank, cuda_rank = XpuBackend.rank("kunlun"), CudaBackend.rank(None)
    assert kunlun_rank is not None
    assert cuda_rank is not None
    assert kunlun_rank > cuda_rank > (XpuBackend.rank("intel") or 0)


def test_no_device_of_that_number(driver: None, monkeypatch: pytest.MonkeyPatch) -> None:
    class Runtime:
        @staticmethod
        def cudaGetDeviceCount() -> tuple[int, int]:
            return (0, 2)

    monkeypatch.setattr(cuda, "runtime", Runtime)
    probe = CudaBackend.probe(device=5)
    assert (probe.usable, probe.reason) == (False, "device 5 of 2; choose with SLOTLINE_DEVICE")
