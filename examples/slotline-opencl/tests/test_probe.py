"""Whether a device can be used, and why not (rules B1 to B5, B7)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pyopencl as cl
import pytest
from slotline_opencl import OpenclBackend, devices

import slotline as sl

WHY = "print(json.dumps(why(lambda: sl.load_backend('opencl'))))"
SCRIPT = """
import json, sys
{before}
import slotline as sl
def why(call):
    try:
        call()
    except Exception as error:
        return [type(error).__name__, str(error), type(error.__cause__).__name__]
"""


def child(body: str, before: str = "", **env: str) -> Any:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("SLOTLINE_")}
    script = SCRIPT.format(before=before) + body
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True, env={**clean, **env}
    )
    return json.loads(done.stdout.splitlines()[-1])


def test_b1_b3_doctor_names_the_device_and_the_versions() -> None:
    (found,) = [b for b in sl.list_backends() if b.name == "opencl"]
    device = devices.choose(0)
    assert (found.usable, found.reason, found.broken) == (True, "", False)
    assert found.distribution.startswith("slotline-opencl ")
    assert found.versions["pyopencl"] == cl.VERSION_TEXT
    assert found.versions["driver"] == device.driver_version.strip()
    assert found.details["device"] == device.name.strip()
    assert device.platform.name.strip() in found.details["platform"]
    assert found.details["staging"] == "pinned, written and read back"
    assert found.details["apply"] == "opencl"


def test_b5_a_cpu_is_taken_by_name_only_and_a_gpu_has_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = [b for b in sl.list_backends() if b.name == "opencl"]
    is_cpu = devices.kind(devices.choose(0)) == "cpu"
    assert found.priority == (None if is_cpu else OpenclBackend.priority)
    for kind in ("gpu", "accelerator", "other"):
        monkeypatch.setattr(devices, "kind", lambda _device, kind=kind: kind)
        assert not OpenclBackend.probe().by_name_only


def test_b2_naming_it_imports_no_driver() -> None:
    body = """
from slotline.core.registry import backend_names
names = backend_names()
import slotline_opencl
print(json.dumps([("opencl" in names), sorted(m for m in sys.modules if m.startswith("pyopencl"))]))
"""
    assert child(body) == [True, []]


def test_b4_b7_without_pyopencl_it_says_what_to_install() -> None:
    kind, text, cause = child(WHY, before="sys.modules['pyopencl'] = None")
    assert (kind, cause) == ("BackendUnavailable", "ModuleNotFoundError")
    assert "pyopencl is not installed: pip install pyopencl" in text
    assert "pip install 'pyopencl[pocl]'" in text


def test_f_without_ml_dtypes_a_bfloat16_field_is_refused_by_name() -> None:
    body = """
config = sl.BatchConfig(
    max_num_seqs=2, max_model_len=8, max_chunk_tokens=4, block_size=4, vocab_size=9, spec_method="mtp",
    num_draft_tokens=1, hidden_size=3, hidden_dtype="bfloat16",
)
backend = sl.load_backend("opencl")
print(json.dumps(why(lambda: sl.SlotBatch(sl.mtp_layout(config), backend))))
"""
    kind, text, _ = child(body, before="sys.modules['ml_dtypes'] = None")
    assert kind == "LayoutError"
    assert "bfloat16" in text
    assert "ml_dtypes" in text


def test_b4_a_pyopencl_that_cannot_be_imported_keeps_its_error(tmp_path: Any) -> None:
    (tmp_path / "pyopencl.py").write_text("raise ImportError('libOpenCL.so.1: cannot open shared object file')")
    kind, text, cause = child(WHY, before=f"sys.path.insert(0, {str(tmp_path)!r})")
    assert (kind, cause) == ("BackendUnavailable", "ImportError")
    assert "pyopencl is installed but cannot be imported: libOpenCL.so.1" in text


def test_b4_without_a_platform_it_says_where_was_looked() -> None:
    kind, text, cause = child(WHY, OCL_ICD_VENDORS="/nonexistent")
    assert (kind, cause) == ("BackendUnavailable", "LogicError")
    assert "no OpenCL platform is registered" in text
    assert "OCL_ICD_VENDORS='/nonexistent'" in text
    assert "pip install 'pyopencl[pocl]'" in text


def test_b7_what_is_absent_is_a_line_and_no_warning() -> None:
    body = """
import warnings
warnings.simplefilter("error")
(found,) = [b for b in sl.list_backends() if b.name == "opencl"]
print(json.dumps([found.usable, found.broken, found.reason, sl.load_backend("auto").name]))
"""
    usable, broken, reason, chosen = child(body, OCL_ICD_VENDORS="/nonexistent")
    assert (usable, broken, chosen) == (False, False, "cpu")
    assert "no OpenCL platform" in reason


def test_b4_a_device_that_is_not_there_is_named_with_those_that_are() -> None:
    count = len(devices.all_devices())
    with pytest.raises(sl.BackendUnavailable, match=rf"device {count} is not there, allowed: 0: .*SLOTLINE_DEVICE"):
        sl.load_backend("opencl", device=count)
    assert OpenclBackend.probe(device=count).usable is False
    with pytest.raises(sl.BackendUnavailable, match="is not there"):
        OpenclBackend(device=count)


GOOD = SimpleNamespace(
    version="OpenCL 1.2 of somebody",
    available=True,
    compiler_available=True,
    endian_little=True,
    profile="FULL_PROFILE",
)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({}, ""),
        ({"version": "OpenCL 3.0 PoCL"}, ""),
        ({"version": "OpenCL 10.0"}, ""),
        ({"version": "OpenCL 1.1 of long ago"}, "it has OpenCL 1.1 of long ago, needed: OpenCL 1.2 or newer"),
        ({"version": "nonsense"}, "it has nonsense, needed"),
        ({"available": False}, "not available"),
        ({"compiler_available": False}, "no compiler"),
        ({"endian_little": False}, "big-endian"),
        ({"profile": "EMBEDDED_PROFILE"}, "EMBEDDED_PROFILE, needed: FULL_PROFILE"),
    ],
)
def test_b3_what_a_device_must_have(change: dict[str, Any], text: str) -> None:
    said = devices.lacks(SimpleNamespace(**{**vars(GOOD), **change}))
    assert text in said
    assert bool(said) == bool(text)


def test_b3_a_probe_leaves_nothing_behind() -> None:
    body = """
import gc
from slotline_opencl import OpenclBackend
import pyopencl as cl
for _ in range(2):
    found = OpenclBackend.probe()
gc.collect()
kinds = (cl.Context, cl.CommandQueue, cl.Buffer, cl.Program, cl.Kernel)
print(json.dumps([found.usable, [type(o).__name__ for o in gc.get_objects() if isinstance(o, kinds)]]))
"""
    assert child(body) == [True, []]


def test_b3_a_probe_of_a_device_that_fails_is_a_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    from slotline_opencl import kernels

    monkeypatch.setattr(kernels, "SOURCE", "__kernel void broken() { no_such_call(); }")
    found = OpenclBackend.probe()
    assert (found.usable, found.raised) == (False, False)  # no fault of the plugin's
    assert "CL_BUILD_PROGRAM_FAILURE" in found.reason
    with pytest.raises(sl.BackendUnavailable, match="CL_BUILD_PROGRAM_FAILURE") as caught:
        sl.load_backend("opencl")
    assert isinstance(caught.value.__cause__, sl.DeviceError)
