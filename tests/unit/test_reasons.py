"""Why cuda and xpu cannot be used here: each missing part is named, with what to do (rules B3, B4; C69, C80)."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import slotline as sl
from slotline.backends.cuda import CudaBackend, parts
from slotline.backends.xpu import XpuBackend, intel, kunlun, nodes
from slotline.compat import cuda


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the driver's library and the device nodes were there."""
    monkeypatch.setattr(cuda, "require_driver", lambda: None)
    for module in (kunlun, intel):
        monkeypatch.setattr(module, "require_node", lambda *names, **lacking: None)


def no_bindings() -> Any:
    raise sl.BackendUnavailable("no CUDA bindings: neither cuda.bindings.runtime nor cuda.cudart can be imported")


def test_c69_cuda_without_torch_and_bindings(driver: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "runtime", no_bindings)
    monkeypatch.setattr(parts, "find_spec", lambda name: None)
    reason = CudaBackend.probe().reason
    assert "torch is not installed; install its CUDA build; " in reason
    assert "no CUDA bindings" in reason


@pytest.fixture
def nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine that has no driver, no device node, no framework and no bindings."""

    def no_library(name: str) -> Any:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", no_library)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(nodes, "Path", lambda node: SimpleNamespace(exists=lambda: False))
    for module in (parts, kunlun, intel):
        monkeypatch.setattr(module, "find_spec", lambda name: None)
    for name in [name for name in sys.modules if name.split(".")[0] == "cuda"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cuda", None)  # the import statement then says "not found"


@pytest.mark.usefixtures("nothing")
def test_c69_choosing_cuda_without_a_driver_names_all_that_is_missing() -> None:  # X2: package and version range
    with pytest.raises(ImportError) as caught:
        sl.load_backend("cuda")
    for part in (
        "no CUDA driver: ", "torch is not installed; install its CUDA build", "cuda.bindings.runtime", "cuda.cudart",
        "slotline[cuda]", "cuda-bindings 12.8 or newer",
    ):  # fmt: skip
        assert part in str(caught.value)
    assert isinstance(caught.value.__cause__, cuda.NoDriver)


@pytest.mark.usefixtures("nothing")
def test_c69_the_framework_that_is_asked_for_is_the_one_that_is_missing() -> None:
    with pytest.raises(ImportError, match="paddle is not installed; install its CUDA build"):
        sl.load_backend("cuda", framework="paddle")


@pytest.mark.usefixtures("nothing")
def test_x2_what_hides_the_bindings_is_named_without_a_driver_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cuda.py").write_text("raise OSError('a script of mine')\n")
    monkeypatch.delitem(sys.modules, "cuda")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ImportError) as caught:
        sl.load_backend("cuda")
    assert "no CUDA driver: " in str(caught.value)
    assert f"hidden by {tmp_path / 'cuda.py'}" in str(caught.value)


@pytest.mark.usefixtures("nothing")
@pytest.mark.parametrize(
    ("vendor", "sign", "needed"),
    [
        ("kunlun", "no sign of a Kunlun XPU", "paddle is not installed"),
        ("intel", "no sign of an Intel GPU", "torch is not installed"),
    ],
)
def test_b6_xpu_without_a_device_names_the_missing_framework_too(vendor: str, sign: str, needed: str) -> None:
    with pytest.raises(ImportError, match=sign) as caught:
        sl.load_backend("xpu", vendor=vendor)
    assert needed in str(caught.value)


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
