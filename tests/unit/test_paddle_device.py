"""paddle's side of devices, and Kunlun's parts, on a custom device of paddle's whose copies run late (W, I4, B9, B12).

Its real streams and events are paddle's own. On a Kunlun XPU: ``python -m pytest -m kunlun tests``.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from frameworks import lacking, require

import slotline as sl
from slotline.backends.xpu.xpurt import XpuRt

HERE = Path(__file__).parents[1]
DEVICE = HERE / "devices" / "paddle_late"
COMPILER = shutil.which("g++") or shutil.which("c++")


@functools.cache
def library() -> Path:
    """The device, compiled against the installed paddle's own header."""
    require("paddle")
    if COMPILER is None:
        lacking("no C++ compiler is installed")
    spec = importlib.util.find_spec("paddle")
    assert spec is not None
    assert spec.origin is not None
    folder = Path(tempfile.mkdtemp(prefix="slotline-paddle-"))
    out = folder / "libpaddle_late.so"
    include = Path(spec.origin).parent / "include"
    command = [
        COMPILER,
        "-std=c++17",
        "-O1",
        "-shared",
        "-fPIC",
        f"-I{include}",
        "-o",
        str(out),
        str(DEVICE / "late.cc"),
    ]
    subprocess.run(command, check=True, capture_output=True)
    return out


def run(case: str) -> Any:
    path = library()
    env = {
        **os.environ,
        "CUSTOM_DEVICE_ROOT": str(path.parent),
        "PYTHONPATH": f"{HERE}{os.pathsep}{HERE / 'devices'}",
        "OMP_NUM_THREADS": "1",
        "GLOG_minloglevel": "2",
    }
    script = str(DEVICE / "run.py")
    done = subprocess.run(
        [sys.executable, script, case, str(path)], capture_output=True, text=True, env=env, check=False, timeout=200
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


BOTH = pytest.mark.parametrize("how", ["paddle", "paddle-plain"])
"""With Kunlun's runtime library, and with paddle's own copies alone."""


def name(case: str, how: str) -> str:
    return case + how.removeprefix("paddle")


@BOTH
def test_b8_an_engines_loop(how: str) -> None:
    found = run(name("loop", how))
    assert found["retained"] == 0
    assert found["details"]["apply"] == "scatter"
    told = "asynchronous" if how == "paddle" else "each insertion waits once"
    assert told in found["details"]["upload"]
    assert found["staging"].startswith("pinned" if how == "paddle" else "pageable")


@BOTH
def test_w4_c06_c07_what_lands_is_what_the_source_held(how: str) -> None:
    found = run(name("writes", how))
    assert found["right"]
    assert found["late"] > 0  # the copies were really pending
    assert found["retained"] == 0


def test_i4_an_insertion_waits_for_nothing_with_the_runtime_library() -> None:
    found = run("insertion")
    assert (found["stats"]["transfers"], found["stats"]["host_synchronisations"]) == (1, 0)


def test_b12_without_it_an_insertion_waits_at_most_once_and_says_so() -> None:
    found = run("insertion-plain")
    assert (found["stats"]["transfers"], found["stats"]["host_synchronisations"]) == (1, 1)


def test_b9_w2_w7_w9_streams_sources_and_errors() -> None:
    found = run("errors")
    assert found["code"] == ["xpu_host_alloc", 2] or found["code"][0] == "xpu_host_alloc"
    assert "pass paddle's own stream object" in found["foreign"]
    assert "a tensor on Place(cpu); needed: one on late:0" in found["host destination"]
    assert found["dtype"].startswith("ValueError: 0.5 does not fit into int64")
    assert found["host source"] == [3, 3, 3, 3]
    assert found["overlap"] == [3, 3, 3, 3]
    assert found["own stream"] == [1, 2, 3, 4]


def test_w3_a_float64_of_the_device_is_rounded_once() -> None:
    above = 1 + 2**-7  # the nearest to 1 + 2**-8 + 2**-40; by way of a float32 it would be a tie, and 1
    assert run("rounding")["got"] == [above, -above, 1.0, float("inf")]


def test_b12_what_is_missing_of_the_runtime_library_is_said() -> None:
    assert "cannot be loaded" in XpuRt("libxpurt-that-is-missing.so").why
    libc = XpuRt("libc.so.6")
    assert not libc.found
    assert libc.why == "libc.so.6 has no xpu_memcpy_async"


def test_b6_xpu_without_a_vendor_is_an_error_that_names_both() -> None:
    from slotline.backends.xpu import XpuBackend

    assert XpuBackend.probe().reason == "xpu stands for kunlun and intel; choose with SLOTLINE_VENDOR"
    assert XpuBackend.rank("kunlun") == 110  # above cuda: C83
    wrong = XpuBackend.probe(vendor="kunlun", framework="torch")
    assert wrong.reason == "xpu of kunlun works with paddle, not with torch"
    assert not sl.load_backend("cpu").probe().reason


@pytest.mark.kunlun
def test_b8_a_real_kunlun_xpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """``python -m pytest -m kunlun tests``"""
    from sim_loop import Loop, add_streams

    require("paddle")
    backend: Any = sl.load_backend("xpu", vendor="kunlun")
    add_streams(backend, monkeypatch)
    for number in range(10):
        Loop(backend, number).run()
