"""What a backend is made of on one device. Imported only once pyopencl is known to be there."""

from __future__ import annotations

from typing import Any, NamedTuple

import pyopencl as cl

from slotline.device import staging_kind
from slotline_opencl.apply import OpenclApplier
from slotline_opencl.failures import native
from slotline_opencl.kernels import Kernels
from slotline_opencl.runtime import OpenclRuntime
from slotline_opencl.tensors import OpenclTensors


class Parts(NamedTuple):
    """What ``StreamedBackend.start`` takes."""

    runtime: OpenclRuntime
    tensors: OpenclTensors
    applier: OpenclApplier


def make(queue: Any) -> Parts:
    """The parts over a compute queue. ``DeviceError`` where the device fails."""
    runtime = OpenclRuntime(queue)
    kernels = Kernels(runtime.context, runtime.device)
    tensors = OpenclTensors(runtime, kernels)
    return Parts(runtime, tensors, OpenclApplier(runtime, kernels, tensors))


def new_queue(device: Any) -> cl.CommandQueue:
    """An in-order queue in a context of its own."""
    with native("clCreateContext"):
        return cl.CommandQueue(cl.Context([device]), device)


def try_out(device: Any) -> str:
    """Make the parts, compile, copy there and back, and give everything back; what staging memory there is."""
    parts = make(new_queue(device))
    try:
        return staging_kind(parts.runtime)[1]
    finally:
        parts.runtime.close()
