"""An engine's own OpenCL memory as tensors (rule F4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyopencl as cl

from slotline.device import DTYPES, numpy_dtype
from slotline_opencl.runtime import OpenclRuntime
from slotline_opencl.tensor import OpenclTensor
from slotline_opencl.tensors import dense


def wrap(
    runtime: OpenclRuntime,
    memory: Any,
    shape: Sequence[int] | None,
    dtype: str | None,
    offset: int,
    strides: Sequence[int] | None,
) -> OpenclTensor:
    """``OpenclBackend.wrap``."""
    runtime.require_open()
    if not isinstance(memory, cl.Buffer):
        buffer = getattr(memory, "base_data", None)
        if not isinstance(buffer, cl.Buffer):
            raise TypeError(f"memory is {type(memory).__name__}, allowed: pyopencl.Buffer, pyopencl.array.Array")
        if shape is not None or dtype is not None or strides is not None or offset:
            raise TypeError("a pyopencl.array.Array has its own shape, dtype, offset and strides; give none")
        shape, dtype, offset, strides = memory.shape, memory.dtype.name, memory.offset, memory.strides
        memory = buffer
    if shape is None or dtype is None:
        raise TypeError("a pyopencl.Buffer needs shape and dtype")
    if dtype not in DTYPES:
        raise ValueError(f"dtype is {dtype!r}, allowed: {', '.join(DTYPES)}")
    kind = numpy_dtype(dtype)
    steps = dense(shape, kind.itemsize) if strides is None else tuple(int(s) for s in strides)
    whole, base = runtime.space.of(memory)
    tensor = OpenclTensor(whole, base + offset, tuple(int(n) for n in shape), steps, kind)
    if len(steps) != tensor.ndim or min((*tensor.shape, *steps, offset), default=0) < 0:
        raise ValueError(f"shape {tensor.shape}, strides {steps}, offset {offset}; allowed: as many, none below 0")
    if offset + tensor.span > memory.size:
        raise ValueError(f"the tensor ends at byte {offset + tensor.span}, the buffer has {memory.size}")
    if any(step % kind.itemsize for step in (*steps, tensor.offset)):
        raise ValueError(f"strides {steps}, offset {offset}; allowed: multiples of the {kind.itemsize} bytes of a cell")
    return tensor
