"""Random packets by the Triton kernel on torch's CPU tensors, under Triton's interpreter; run by test_kernels.py."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from packets import LAYOUT, filled, info, segments, written

import slotline as sl
from slotline.backends.shared.apply_triton import TritonApplier
from slotline.core.image import Image
from slotline.core.segments import Segment
from slotline.core.streams import stream_handle

applied = 0


@settings(max_examples=int(sys.argv[1]), deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(segments(), st.booleans())
def packets(parts: list[Segment], loose: bool) -> None:
    global applied
    packet, buffers = sl.Packet(LAYOUT, parts, "test"), filled(loose)
    applier = TritonApplier(torch.from_numpy, lambda tensor: info(np.asarray(tensor)))
    image, bound = Image(packet), applier.bind(LAYOUT, buffers)
    lies: Any = torch.from_numpy(image.to_bytes())
    kernels = applier.run(image, lies.data_ptr(), bound, stream_handle(0) or 0)
    assert kernels == (1 if image.programs else 0)
    for f, got, want in zip(LAYOUT, buffers, written(packet), strict=True):
        assert np.ascontiguousarray(got).tobytes() == want.tobytes(), f.name
        if isinstance(got.base, np.ndarray) and loose:
            rest = np.ones(got.base.shape, bool)
            rest[tuple(slice(1, n, 2) for n in got.base.shape)] = False
            assert not got.base[rest].any(), f.name
    applied += 1


packets()
print(applied, "packets were applied")
