"""The smallest backend: bytes of host memory behind the required hooks, and nothing else.

Its tensors are no arrays, so everything that slotline does with them goes through the base class.
"""

from __future__ import annotations

import ctypes
import math

import slotline as sl


class Tensor:
    """A view of some bytes: shape, strides and offset in bytes."""

    def __init__(self, memory, shape, dtype, strides=None, offset=0):
        self.memory, self.shape, self.dtype, self.offset = memory, tuple(shape), dtype, offset
        if strides is None:
            item = sl.core.field.DTYPES[dtype]
            strides = [item * math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
        self.strides = tuple(strides)

    def __getitem__(self, key):
        keys = key if isinstance(key, tuple) else (key,)
        shape, strides, offset = [], [], self.offset
        for axis, size in enumerate(self.shape):
            k = keys[axis] if axis < len(keys) else slice(None)
            if isinstance(k, slice):
                start, stop, step = k.indices(size)
                shape.append(len(range(start, stop, step)))
                strides.append(self.strides[axis] * step)
                offset += start * self.strides[axis]
            else:
                offset += (k % size) * self.strides[axis]
        return Tensor(self.memory, shape, self.dtype, strides, offset)


class HostMemory(sl.Backend):
    name = "hostmem"

    @classmethod
    def _probe(cls, *, framework, vendor, device):
        return sl.Probe(usable=True, versions={"hostmem": "1.0"})

    def _allocate(self, specs):
        return [
            Tensor(bytearray(math.prod(shape) * sl.core.field.DTYPES[dtype]), shape, dtype) for _, shape, dtype in specs
        ]

    def _inspect(self, tensor):
        if not isinstance(tensor, Tensor):
            return None
        start = ctypes.addressof(ctypes.c_char.from_buffer(tensor.memory)) if tensor.memory else id(tensor.memory)
        pointer = start + tensor.offset
        return sl.TensorInfo(
            shape=tensor.shape, strides=tensor.strides, dtype=tensor.dtype, place="hostmem", pointer=pointer
        )

    def _write(self, tensor, offset, data):
        at = tensor.offset + offset
        tensor.memory[at : at + len(data)] = data

    def _read(self, tensor, offset, nbytes):
        at = tensor.offset + offset
        return bytes(tensor.memory[at : at + nbytes])
