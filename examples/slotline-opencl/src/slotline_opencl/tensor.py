"""OpenclTensor: a part of a ``cl_mem`` object with shape, strides and dtype."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyopencl as cl

from slotline_opencl.memory import Memory


class OpenclTensor:
    """Basic slicing gives views of the same memory; ``buffer`` and ``offset`` are what an engine's kernel takes.

    Written by ``slotline.async_set_value`` and by kernels, read by ``backend.read``. Keeps its memory alive.
    """

    __slots__ = ("__weakref__", "dtype", "memory", "offset", "shape", "strides")

    def __init__(
        self, memory: Memory, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: np.dtype[Any]
    ) -> None:
        self.memory, self.offset, self.shape, self.strides, self.dtype = memory, offset, shape, strides, dtype

    @property
    def buffer(self) -> cl.Buffer:
        """The ``cl_mem`` object that it lies in."""
        return self.memory.buffer

    @property
    def address(self) -> int:
        """The made-up address of the first cell."""
        return self.memory.base + self.offset

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Of its cells; gaps between them are not counted."""
        return self.size * self.dtype.itemsize

    @property
    def span(self) -> int:
        """Bytes from the first cell's begin to the last cell's end; 0 without cells."""
        if not self.size:
            return 0
        return sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True)) + self.dtype.itemsize

    def __getitem__(self, index: Any) -> OpenclTensor:
        parts = self._whole(index)
        offset, shape, strides = self.offset, [], []
        axes = iter(zip(self.shape, self.strides, strict=True))
        for part in parts:
            if part is None:
                shape.append(1)
                strides.append(0)
                continue
            size, stride = next(axes)
            if isinstance(part, slice):
                start, stop, step = part.indices(size)
                if step < 0:
                    raise ValueError(f"a step is {step}, allowed: 1 and more")
                count = len(range(start, stop, step))
                offset += start * stride if count else 0
                shape.append(count)
                strides.append(stride * step)
            else:
                if not -size <= part < size:
                    raise IndexError(f"index {part} is out of bounds for an axis of length {size}")
                offset += part % size * stride
        return OpenclTensor(self.memory, offset, tuple(shape), tuple(strides), self.dtype)

    def _whole(self, index: Any) -> list[Any]:
        """The index with one entry for each axis, and None for each new one."""
        parts = list(index) if isinstance(index, tuple) else [index]
        for part in parts:
            if isinstance(part, (bool, np.bool_)) or not isinstance(
                part, (int, np.integer, slice, type(None), type(Ellipsis))
            ):
                raise TypeError(f"index {part!r} ({type(part).__name__}), allowed: integers, slices, ... and None")
        dots = [i for i, part in enumerate(parts) if part is Ellipsis]
        taken = sum(part is not None and part is not Ellipsis for part in parts)
        if len(dots) > 1 or taken > self.ndim:
            raise IndexError(f"index {index!r} does not fit a tensor of {self.ndim} axes")
        at = dots[0] if dots else len(parts)
        return [*parts[:at], *[slice(None)] * (self.ndim - taken), *parts[at + 1 :]]

    def __setitem__(self, index: Any, value: Any) -> None:
        raise TypeError("an OpenCL tensor is written by slotline.async_set_value(tensor[...], value)")

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        raise TypeError("an OpenCL tensor is not on the host; backend.read(tensor) gives a copy")

    def __iter__(self) -> Iterator[OpenclTensor]:
        return (self[i] for i in range(len(self)))

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a tensor without axes has no length")
        return self.shape[0]

    def __bool__(self) -> bool:
        raise TypeError("an OpenCL tensor has no truth value; backend.read(tensor) gives its cells")

    def __repr__(self) -> str:
        return f"OpenclTensor({self.dtype.name} {list(self.shape)} at byte {self.offset})"
