"""The apply by scatters of torch and paddle, on their CPU tensors, over random packets (rule B8)."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest
from frameworks import fewer
from hypothesis import given
from hypothesis import strategies as st
from packets import LAYOUT, filled, segments, written

import slotline as sl
from slotline.backends.shared.scatter import ScatterApplier
from slotline.core.backend import Backend
from slotline.core.image import Image
from slotline.core.segments import Segment


def scatter(framework: str, backend: Backend, raw: Any) -> ScatterApplier:
    module = importlib.import_module(framework)
    if framework == "torch":
        return ScatterApplier(
            backend.namespace,
            lambda address, nbytes: raw[:nbytes],
            lambda part, dtype, shape: part.view(getattr(module, dtype)).reshape(shape),
            lambda tensor, dtype: tensor.view(getattr(module, dtype)),
        )
    from slotline.backends.shared.paddle_tensors import viewed

    # paddle has no unsigned dtypes that would have to be recast
    return ScatterApplier(backend.namespace, lambda address, nbytes: raw[:nbytes], viewed, lambda tensor, dtype: None)


def test_b8_scatters_write_what_the_packet_writes(framework: str, cpu: sl.Backend) -> None:
    if framework == "numpy":
        pytest.skip("NumPy needs no scatters: it applies packets itself")

    @fewer(1, framework)
    @given(segments(), st.booleans())
    def packets(parts: list[Segment], loose: bool) -> None:
        packet, buffers = sl.Packet(LAYOUT, parts, "test"), filled(loose and framework == "torch")
        image = Image(packet)
        applier = scatter(framework, cpu, cpu.host_tensor(image.to_bytes()))
        tensors = [cpu.host_tensor(b) if b.flags.c_contiguous else _strided(b) for b in buffers]
        kernels = applier.run(image, 0, applier.bind(LAYOUT, tensors), 0)
        assert kernels <= 2 * len(image.packet)
        for f, got, want in zip(LAYOUT, buffers, written(packet), strict=True):
            assert np.ascontiguousarray(got).tobytes() == want.tobytes(), f.name

    packets()


def _strided(array: Any) -> Any:
    """A torch view of the same memory and strides."""
    from slotline.compat import torch as compat

    base = compat.from_numpy(array.base)
    return base[tuple(slice(1, n, 2) for n in array.base.shape)]
