"""OpenclTensors: what ``slotline`` must know of the tensors. Host tensors are NumPy arrays."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pyopencl as cl
from numpy.typing import NDArray

from slotline.device import DTYPES, DeviceTensors, TensorInfo, numpy_dtype
from slotline_opencl.copies import queue_copy
from slotline_opencl.failures import failed
from slotline_opencl.kernels import Kernels
from slotline_opencl.runtime import OpenclRuntime
from slotline_opencl.tensor import OpenclTensor

ALIGNMENT = 256
"""Where a field begins within the one block, in bytes."""


class OpenclTensors(DeviceTensors):
    """Tensors of one backend; another's are refused."""

    framework = "numpy"
    versions = {"numpy": np.__version__, "pyopencl": cl.VERSION_TEXT}  # noqa: RUF012

    def __init__(self, runtime: OpenclRuntime, kernels: Kernels) -> None:
        self.runtime, self.kernels = runtime, kernels
        self.lacks = {} if _knows_bfloat16() else {"bfloat16": "float32, or install ml_dtypes"}

    def empty(self, shape: tuple[int, ...], dtype: str) -> OpenclTensor:
        (tensor,) = self.empty_all([(shape, dtype)])
        return tensor

    def empty_all(self, specs: Sequence[tuple[tuple[int, ...], str]]) -> list[OpenclTensor]:
        """Dense tensors side by side in one new memory object (B10)."""
        self.runtime.require_open()
        offsets, end = [], 0
        for shape, dtype in specs:
            offsets.append(end)
            end += -(-math.prod(shape) * numpy_dtype(dtype).itemsize // ALIGNMENT) * ALIGNMENT
        most = int(self.runtime.device.max_mem_alloc_size)
        if end > most:
            names = f"{len(specs)} tensors need {end} bytes in one block, the device allows {most}"
            raise failed("clCreateBuffer", -61, f"{names}; take fewer slots or a shorter max_model_len")
        memory = self.runtime.space.make(end)
        return [
            OpenclTensor(memory, offset, tuple(shape), dense(shape, numpy_dtype(dtype).itemsize), numpy_dtype(dtype))
            for offset, (shape, dtype) in zip(offsets, specs, strict=True)
        ]

    def inspect(self, tensor: Any) -> TensorInfo | None:
        if not isinstance(tensor, OpenclTensor) or tensor.memory.space is not self.runtime.space:
            return None
        return TensorInfo(
            shape=tensor.shape,
            strides=tensor.strides,
            dtype=tensor.dtype.name,
            place="opencl",
            pointer=tensor.address,
        )

    def why_not(self, tensor: Any) -> str:
        if isinstance(tensor, OpenclTensor):
            return "a tensor of another OpenCL backend; each has its own"
        if isinstance(tensor, np.ndarray):
            return f"host memory, {tensor.dtype} {list(tensor.shape)}; backend.upload gives a tensor"
        if isinstance(tensor, cl.MemoryObjectHolder) or type(tensor).__module__ == "pyopencl.array":
            return "memory of OpenCL without slotline's shape; backend.wrap gives a tensor over it"
        return ""

    def why_not_written(self, tensor: Any) -> str:
        if tensor.memory.read_only:
            return "memory that kernels may not write (CL_MEM_READ_ONLY); make it with CL_MEM_READ_WRITE"
        return ""

    def host_view(self, tensor: Any) -> NDArray[Any] | None:
        if isinstance(tensor, OpenclTensor):
            raise TypeError(f"a source is {self.why_not(tensor)}")
        return tensor if isinstance(tensor, np.ndarray) and tensor.dtype.name in DTYPES else None

    def host_tensor(self, array: NDArray[Any]) -> NDArray[Any]:
        return array

    def copy(self, dst: OpenclTensor, src: OpenclTensor) -> None:
        """Queue ``dst[...] = src`` as one kernel; as two, with memory of its own between, where both overlap (W7)."""
        if not dst.size:
            return
        if src.memory is dst.memory and src.offset < dst.offset + dst.span and dst.offset < src.offset + src.span:
            between = self.empty(src.shape, src.dtype.name)
            queue_copy(self.runtime, self.kernels, between, src)
            src = between  # the kernel that reads it keeps the memory alive, as clReleaseMemObject promises
        queue_copy(self.runtime, self.kernels, dst, src)

    def current_stream(self) -> int:
        return self.runtime.current_stream()

    def stream_of(self, stream: Any) -> int | None:
        return self.runtime.adopt(stream) if isinstance(stream, cl.CommandQueue) else None

    def running(self, stream: int) -> AbstractContextManager[Any]:
        return self.runtime.on_stream(stream)


def dense(shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
    """Strides in bytes of a tensor without gaps, in C order."""
    steps = itertools.accumulate(reversed(shape[1:]), lambda step, size: step * size, initial=itemsize)
    return tuple(reversed(list(steps)))[: len(shape)] if shape else ()


def _knows_bfloat16() -> bool:
    try:
        import ml_dtypes  # noqa: F401  (teaches NumPy the dtype)
    except ImportError:
        return False
    return True


__all__ = ["OpenclTensors", "dense"]
