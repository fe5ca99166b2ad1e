"""SimTensor: a tensor of the simulated device."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from slotline.backends.sim.machine import Machine
from slotline.backends.sim.memory import Allocation


class SimTensor:
    """Shape, strides in bytes, dtype; basic slicing gives views of the same memory.

    ``numpy()`` looks at the memory from the host *without waiting*: the detector reports what was still on its way.
    ``backend.read(tensor)`` waits first. Written by ``slotline.async_set_value`` and by kernels, never by ``[...] =``.
    """

    __slots__ = ("__weakref__", "_allocation", "_array", "_machine")

    def __init__(self, machine: Machine, allocation: Allocation, array: NDArray[Any]) -> None:
        self._machine, self._allocation, self._array = machine, allocation, array

    @property
    def shape(self) -> tuple[int, ...]:
        return self._array.shape

    @property
    def strides(self) -> tuple[int, ...]:
        return self._array.strides

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._array.dtype

    @property
    def ndim(self) -> int:
        return self._array.ndim

    @property
    def size(self) -> int:
        return self._array.size

    @property
    def itemsize(self) -> int:
        return self._array.itemsize

    @property
    def pointer(self) -> int:
        """Address of the first cell."""
        return int(self._array.__array_interface__["data"][0])

    @property
    def machine(self) -> Machine:
        return self._machine

    def __getitem__(self, index: Any) -> SimTensor:
        for part in index if isinstance(index, tuple) else (index,):
            if isinstance(part, (bool, np.bool_)) or not isinstance(
                part, (int, np.integer, slice, type(None), type(Ellipsis))
            ):
                raise TypeError(f"index {part!r} ({type(part).__name__}), allowed: integers, slices, ... and None")
        whole = (*index, Ellipsis) if isinstance(index, tuple) and Ellipsis not in index else index
        if not isinstance(index, tuple) and index is not Ellipsis:
            whole = (index, Ellipsis)  # with an ellipsis a single cell stays an array, too
        return SimTensor(self._machine, self._allocation, self._array[whole])

    def reshape(self, *shape: Any) -> SimTensor:
        """A view in another shape; ``ValueError`` where that needs a copy."""
        found = self._array.reshape(*shape)
        if self.size and not np.may_share_memory(found, self._array):
            raise ValueError(f"a tensor of strides {self.strides} cannot be seen as {shape} without a copy")
        return SimTensor(self._machine, self._allocation, found)

    def __setitem__(self, index: Any, value: Any) -> None:
        raise TypeError("a tensor of the simulated device is written by slotline.async_set_value(tensor[...], value)")

    def numpy(self) -> NDArray[Any]:
        """What the memory holds now, as a copy. Waits for nothing, which the detector minds."""
        with self._machine.lock:
            if self.size:
                self._machine.host_touches(self._machine.array(self._array), writing=False)
            return self._array.copy()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        found = self.numpy()
        return found if dtype is None else found.astype(dtype)

    def tolist(self) -> Any:
        return self.numpy().tolist()

    def __len__(self) -> int:
        return len(self._array)

    def __bool__(self) -> bool:
        raise TypeError("a tensor of the simulated device has no truth value; backend.read(tensor) gives its cells")

    def __repr__(self) -> str:
        return f"SimTensor({self._allocation.name}, {self.dtype.name} {list(self.shape)})"


def inside(tensor: SimTensor) -> NDArray[Any]:
    """The memory itself, for what runs on the simulated device."""
    return tensor._array
