"""HostBuffer: page-locked host memory of an engine, on the simulated device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from slotline.backends.sim.tensor import SimTensor
from slotline.core.arguments import shape as checked_shape
from slotline.core.device import Event
from slotline.core.layout import numpy_dtype
from slotline.core.runtime import Copy

if TYPE_CHECKING:
    from slotline.backends.sim import SimBackend


class HostBuffer:
    """What an engine stages its copies in, until ``free`` or as long as it is held, by queued copies too.

    Each use by the host is told to the detector. Shape and dtype: ``ValueError`` and ``LayoutError`` as for tensors.

    ``upload`` and ``download`` are a driver's asynchronous copies: the memory is read, or written, whenever the copy
    runs. That it is not touched before is the engine's affair.
    """

    def __init__(self, backend: SimBackend, shape: tuple[int, ...], dtype: str, name: str) -> None:
        self._backend = backend
        kind, shape = numpy_dtype(dtype), checked_shape(name, shape)
        nbytes = int(np.prod(shape, dtype=np.int64)) * kind.itemsize
        self._allocation = backend.machine.memory.allocate(nbytes, "host", f"host buffer {name!r}")
        self._array = self._allocation.array(shape, kind)

    def write(self, values: Any) -> None:
        """The host writes ``values``, broadcast as in NumPy assignment, at once."""
        self._backend.machine.host_access(self._allocation.base, self._array.nbytes, writing=True)
        self._array[...] = values

    def read(self) -> NDArray[Any]:
        """What it holds now, as a copy."""
        self._backend.machine.host_access(self._allocation.base, self._array.nbytes, writing=False)
        return self._array.copy()

    def upload(self, tensor: SimTensor, *, stream: Any = None) -> Event:
        """Queue a copy into ``tensor``, contiguous and of the same size."""
        return self._copy(tensor, Copy.HOST_TO_DEVICE, stream)

    def download(self, tensor: SimTensor, *, stream: Any = None) -> Event:
        """Queue a copy of ``tensor``, contiguous and of the same size, into the buffer."""
        return self._copy(tensor, Copy.DEVICE_TO_HOST, stream)

    def free(self) -> None:
        """Give the memory back without waiting: a race if something queued still uses it.

        Any use afterwards is a ``DeviceError``.
        """
        self._backend.machine.released(self._allocation.base, len(self._allocation.bytes))
        self._allocation.freed = True

    def _copy(self, tensor: SimTensor, way: Copy, stream: Any) -> Event:
        info = self._backend.inspect(tensor)
        wanted, got = (self._array.shape, self._array.dtype.name), (info.shape, info.dtype)
        if got != wanted or info.strides != self._array.strides:
            raise ValueError(f"a tensor of {got[1]} {list(got[0])}, needed: contiguous, {wanted[1]} {list(wanted[0])}")
        handle, here = self._backend.stream(stream), self._allocation.base
        to, source = (info.pointer, here) if way == Copy.HOST_TO_DEVICE else (here, info.pointer)
        self._backend.runtime.copy(to, source, self._array.nbytes, way, handle)
        return self._backend.record(handle)
