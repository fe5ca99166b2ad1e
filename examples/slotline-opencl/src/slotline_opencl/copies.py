"""Copies from view to view on the device, converted, whatever their strides (rules W1, W2, W3)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyopencl as cl
from numpy.typing import NDArray

from slotline_opencl.failures import native
from slotline_opencl.kernels import AXES, Kernels
from slotline_opencl.runtime import OpenclRuntime
from slotline_opencl.tensor import OpenclTensor

MOST_GROUPS = 4096
"""Of one launch; each goes on with the cells that are left."""
_FLOATS = {"float16": (5, 10), "bfloat16": (8, 7), "float32": (8, 23), "float64": (11, 52)}
"""Bits of exponent and mantissa."""

Axis = tuple[int, int, int]
"""Size, step in the destination, step in the source."""


def queue_copy(runtime: OpenclRuntime, kernels: Kernels, dst: OpenclTensor, src: OpenclTensor) -> None:
    """Queue ``dst[...] = src`` on the current stream, ``src`` broadcast as in NumPy; the two do not overlap."""
    axes = _joined(_axes(dst, src))
    outer, inner = axes[:-AXES], axes[-AXES:]
    sizes, to_steps, from_steps = (_long8([axis[part] for axis in inner]) for part in range(3))
    cells = math.prod(axis[0] for axis in inner)
    groups = min(MOST_GROUPS, -(-cells // kernels.threads))
    queue = runtime.lane(runtime.current_stream()).queue
    same = np.int32(dst.dtype == src.dtype)
    # More axes than one launch walks over, which nobody has in earnest: a launch for each step of the outer ones.
    for at in itertools.product(*(range(size) for size, _, _ in outer)):
        to_at = dst.offset + sum(i * step for i, (_, step, _) in zip(at, outer, strict=True))
        from_at = src.offset + sum(i * step for i, (_, _, step) in zip(at, outer, strict=True))
        with kernels.lock, native("clEnqueueNDRangeKernel"):
            kernels.copy.set_args(
                dst.buffer,
                np.int64(to_at),
                _format(dst),
                src.buffer,
                np.int64(from_at),
                _format(src),
                same,
                np.int64(cells),
                np.int32(len(inner)),
                sizes,
                to_steps,
                from_steps,
            )
            cl.enqueue_nd_range_kernel(queue, kernels.copy, (groups * kernels.threads,), (kernels.threads,))


def _axes(dst: OpenclTensor, src: OpenclTensor) -> list[Axis]:
    """The destination's axes with the source's steps; 0 along what is broadcast."""
    missing = dst.ndim - src.ndim
    out = []
    for axis, (size, step) in enumerate(zip(dst.shape, dst.strides, strict=True)):
        other = axis - missing
        wide = other >= 0 and src.shape[other] != 1
        out.append((size, step, src.strides[other] if wide else 0))
    return [axis for axis in out if axis[0] != 1]


def _joined(axes: Sequence[Axis]) -> list[Axis]:
    """Axes that follow each other on both sides made one."""
    out: list[Axis] = []
    for size, a, b in reversed(axes):
        if out and (a, b) == (out[0][0] * out[0][1], out[0][0] * out[0][2]):
            out[0] = (out[0][0] * size, out[0][1], out[0][2])
        else:
            out.insert(0, (size, a, b))
    return out


def _long8(values: Sequence[int]) -> NDArray[np.int64]:
    out = np.ones(AXES, np.int64)
    out[: len(values)] = values
    return out


def _format(tensor: OpenclTensor) -> NDArray[np.int32]:
    """A dtype as the kernel wants it: ``int4``."""
    name: Any = tensor.dtype.name
    kind, bits = (2, _FLOATS[name]) if name in _FLOATS else (int(tensor.dtype.kind == "i"), (0, 0))
    return np.array([tensor.dtype.itemsize, kind, *bits], np.int32)
