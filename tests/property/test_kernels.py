"""The apply kernels over random packets: every one writes what the packet writes (rules B8, I4).

On a GPU: ``python -m pytest -m gpu tests``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import host_kernel
import numpy as np
import pytest
from frameworks import lacking, require, require_cuda_build
from hypothesis import given, settings
from hypothesis import strategies as st
from packets import LAYOUT, filled, info, segments, written

import slotline as sl
from slotline.core import image as images
from slotline.core.errors import BackendUnavailable
from slotline.core.image import CELLS, Image
from slotline.core.segments import Block, Fill, Segment

needs_compiler = pytest.mark.skipif(host_kernel.COMPILER is None, reason="no C++ compiler is installed")


def compile_for(architecture: str) -> bytes:
    """The kernel's code; skip, or fail where all must be there, without the bindings or nvrtc's library."""
    require("cuda", "KERNELS")
    from slotline.backends.cuda.apply_nvrtc import compiled

    try:
        return compiled(architecture)
    except BackendUnavailable as error:
        if str(error).startswith(("no nvrtc library", "no CUDA bindings")):
            lacking(str(error), "KERNELS")
        raise  # installed, but broken


def check(run: Any, parts: list[Segment], loose: bool) -> None:
    """``run(image bytes, table, meta)`` on buffers that are dense, or have gaps everywhere."""
    packet, buffers = sl.Packet(LAYOUT, parts, "test"), filled(loose)
    image, table = Image(packet), images.targets(LAYOUT, [info(b) for b in buffers])
    run(image.to_bytes(), table, image.meta)
    for f, got, want in zip(LAYOUT, buffers, written(packet), strict=True):
        assert np.ascontiguousarray(got).tobytes() == want.tobytes(), f.name
        base = got.base
        if isinstance(base, np.ndarray) and loose:
            rest = np.ones(base.shape, bool)
            rest[tuple(slice(1, n, 2) for n in base.shape)] = False
            assert not base[rest].any(), f.name


def wide_parts() -> list[Segment]:
    """More cells than one program handles."""
    rows = np.arange(5, dtype=np.intp)
    name = "token_ids_all"
    cells = LAYOUT.row_cells(name)
    data = np.arange(5 * cells, dtype=LAYOUT[name].dtype).reshape(5, cells)
    return [Block(LAYOUT.index(name), rows, 0, data), Fill(LAYOUT.index("input_ids"), rows, 0, 8, 3)]


@needs_compiler
@settings(max_examples=2 * settings().max_examples)
@given(segments())
def test_cuda_c_writes_what_the_packet_writes(parts: list[Segment]) -> None:
    check(host_kernel.apply, parts, loose=False)
    check(host_kernel.apply, parts, loose=True)


@needs_compiler
def test_cuda_c_over_several_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    config = sl.BatchConfig(
        max_num_seqs=5, max_model_len=3 * CELLS + 7, max_chunk_tokens=8, block_size=64, vocab_size=99, eos_token_ids=()
    )
    layout = sl.target_layout(config)
    buffers = [np.full(layout.shape(f.name), f.fill, f.dtype) for f in layout]
    want = [b.copy() for b in buffers]
    rows, index = np.array([0, 2, 4], np.intp), layout.index("token_ids_all")
    data = np.arange(3 * (3 * CELLS + 7), dtype=np.int64).reshape(3, -1)
    packet = sl.Packet(layout, [Block(index, rows, 0, data)], "test")
    image = Image(packet)
    assert image.programs == 10
    host_kernel.apply(image.to_bytes(), images.targets(layout, [info(b) for b in buffers]), image.meta)
    packet.apply(want)
    assert all(got.tobytes() == expected.tobytes() for got, expected in zip(buffers, want, strict=True))


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90", "sm_100", "compute_80"])
def test_cuda_c_compiles_without_a_driver(architecture: str) -> None:
    code = compile_for(architecture)
    assert b"slotline_apply" in code
    assert code.startswith(b"\x7fELF") is architecture.startswith("sm_")


def test_triton_writes_what_the_packet_writes() -> None:
    """Triton's interpreter runs the same source on the CPU, if it is told before Triton is imported: in a process."""
    require("triton", "KERNELS")
    require("torch", "KERNELS")
    script = Path(__file__).parents[1] / "triton_packets.py"
    env = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(script.parent)}
    done = subprocess.run(
        [sys.executable, str(script), str(max(20, settings().max_examples // 4))],
        capture_output=True,
        text=True,
        env=env,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "packets were applied" in done.stdout


@pytest.mark.gpu
@pytest.mark.parametrize("way", ["triton", "nvrtc", "scatter"])
def test_b8_random_packets_on_a_gpu(way: str) -> None:
    """``python -m pytest -m gpu tests``"""
    for package in ("torch", *{"triton": ["triton"], "nvrtc": ["cuda"]}.get(way, [])):
        require(package)
    from slotline.backends.cuda import parts
    from slotline.backends.cuda.apply_nvrtc import NvrtcApplier

    require_cuda_build("torch")
    if way == "triton":
        require("triton", "KERNELS")
    elif way == "nvrtc":
        compile_for("compute_80")
    backend: Any = sl.load_backend("cuda", framework="torch")
    torch = backend.tensors.torch
    if way == "nvrtc":
        backend.applier = NvrtcApplier(backend.runtime, 0, backend.tensors.inspect)
    elif way == "scatter":
        runtime = parts._alone("torch", backend.tensors)
        backend.start(runtime, backend.tensors, parts._scatter("torch", runtime, backend.tensors))
    assert backend.applier.name == way

    @given(segments(), st.booleans())
    def packets(parts: list[Segment], loose: bool) -> None:
        packet, tensors = sl.Packet(LAYOUT, parts, "test"), []
        for f in LAYOUT:
            shape, step = LAYOUT.shape(f.name), 2 if loose else 1
            base = torch.zeros([step * n for n in shape], dtype=getattr(torch, f.dtype), device="cuda:0")
            view = base[tuple(slice(None, None, step) for _ in shape)]
            view.fill_(f.fill)
            tensors.append(view)
        backend.apply(packet, tensors)
        for f, tensor, want in zip(LAYOUT, tensors, written(packet), strict=True):
            assert backend.read(tensor).tobytes() == want.tobytes(), f.name

    packets()
