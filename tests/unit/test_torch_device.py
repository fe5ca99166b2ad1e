"""torch's side of devices, and Intel's parts, on a device of torch's whose copies run late (rules W, I4, B8, B9).

On an Intel GPU: ``python -m pytest -m intel tests``. On a CUDA GPU: ``python -m pytest -m gpu tests``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from frameworks import require, require_cuda_build

import slotline as sl

HERE = Path(__file__).parents[1]


def run(case: str) -> Any:
    require("torch")
    devices = HERE / "devices"
    env = {**os.environ, "PYTHONPATH": f"{HERE}{os.pathsep}{devices}", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(devices / "torch_late_run.py"), case],
        capture_output=True,
        text=True,
        env=env,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_b8_an_engines_loop_on_torch() -> None:
    found = run("loop")
    assert found["retained"] == 0
    assert found["details"]["apply"].startswith("scatter (no triton: ")
    assert found["staging"].startswith("pageable, since torch: page-locked memory failed")  # the ladder, and why


def test_w4_c06_c07_what_lands_is_what_the_source_held_on_torch() -> None:
    found = run("writes")
    assert found["right"]
    assert found["late"] >= 50  # the copies were really pending
    assert found["retained"] == 0


def test_i4_an_insertion_is_one_transfer_and_waits_for_nothing_on_torch() -> None:
    found = run("insertion")
    assert (found["transfers"], found["host_synchronisations"], found["device_to_host"]) == (1, 0, 0)


def test_b9_w2_w3_w7_streams_sources_and_rounding_on_torch() -> None:
    found = run("sources")
    assert "pass torch's own stream object" in found["foreign stream"]
    assert found["lossy"].startswith("TypeError: a device source of float32 cannot be written into int64")
    assert found["other device"].startswith("TypeError: a source is ")
    assert found["text"].startswith("TypeError: a source is str")
    assert found["overlap"] == [1, 1, 2, 3]
    assert found["own stream"] == [5, 6, 7, 8]
    above = 1 + 2**-7  # the nearest to 1 + 2**-8 + 2**-40; by way of a float32 it would be a tie, and 1
    assert found["rounded"] == [above, -above, float("inf")]


# -- on hardware


def gpu(framework: str) -> Any:
    """The device; a skip where the framework is not installed for it."""
    require_cuda_build(framework)
    return sl.load_backend("cuda", framework=framework)


@pytest.mark.gpu
@pytest.mark.parametrize("framework", ["torch", "paddle"])
def test_b8_an_engines_loop_on_a_gpu(framework: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """``python -m pytest -m gpu tests``"""
    from sim_loop import LAYOUT, Loop, add_streams

    backend = gpu(framework)
    add_streams(backend, monkeypatch)
    for number in range(50):
        Loop(backend, number).run()
    backend.synchronize()
    assert backend.retained == 0
    batch = sl.SlotBatch(LAYOUT, backend)
    batch.stats.clear()
    sl.insert_tasks(batch, [sl.PrefillTask(sl.Request("a", [3, 4]), 0, 2, [1])])
    assert (batch.stats["transfers"], batch.stats["host_synchronisations"]) == (1, 0)
    if not backend.abilities.packed_apply:
        pytest.skip("the loop has passed; one kernel a packet needs triton, or cuda-bindings and nvrtc")
    assert batch.stats["kernels"] == 1


@pytest.mark.gpu
def test_i4_torch_sees_no_synchronisation_in_an_insertion() -> None:
    """``python -m pytest -m gpu tests``"""
    from sim_loop import LAYOUT

    batch = sl.SlotBatch(LAYOUT, gpu("torch"))
    import torch

    sl.insert_tasks(batch, [sl.PrefillTask(sl.Request("warm", [3, 4]), 0, 2, [1])])  # compiles the kernel
    torch.cuda.set_sync_debug_mode("error")
    try:
        tasks = [sl.PrefillTask(sl.Request(f"r{i}", [3, 4, 5]), 0, 3, [i]) for i in range(4)]
        sl.insert_tasks(batch, tasks)
        sl.async_set_value(batch["step_idx"], np.arange(5))
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.gpu
def test_w8_a_replayed_graph_sees_what_was_inserted_since() -> None:
    """``python -m pytest -m gpu tests``"""
    from sim_loop import LAYOUT

    batch = sl.SlotBatch(LAYOUT, gpu("torch"))
    import torch

    lengths = batch["seq_lens_this_time"]
    seen = torch.zeros_like(lengths)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        seen.copy_(lengths)
        with pytest.raises(sl.DeviceError, match="captured"):
            sl.insert_tasks(batch, [sl.PrefillTask(sl.Request("no", [3]), 0, 1, [1])])
    sl.insert_tasks(batch, [sl.PrefillTask(sl.Request("a", [3, 4]), 0, 2, [1])])
    graph.replay()
    torch.cuda.synchronize()
    assert seen.tolist() == [2, 0, 0, 0, 0]


@pytest.mark.intel
def test_b8_an_engines_loop_on_an_intel_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """``python -m pytest -m intel tests``"""
    from sim_loop import Loop, add_streams

    require("torch")
    backend: Any = sl.load_backend("xpu", vendor="intel")
    add_streams(backend, monkeypatch)
    for number in range(50):
        Loop(backend, number).run()
