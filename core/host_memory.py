"""Host memory: how much there is, and what belongs to something else as NumPy arrays."""

from __future__ import annotations

import ctypes
import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slotline.core.device import TensorInfo
from slotline.core.layout import numpy_dtype


def machine_bytes() -> int | None:
    """What this machine has; None where it does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


class _Memory:
    """NumPy's door to foreign memory; keeps its owner alive as long as an array lies on it."""

    __slots__ = ("__array_interface__", "owner")

    def __init__(self, owner: Any, interface: dict[str, Any]) -> None:
        self.owner = owner
        self.__array_interface__ = interface


def over_memory(owner: Any, info: TensorInfo) -> NDArray[Any]:
    """The memory of ``owner`` as an array: any strides, dtype bfloat16 too, no copy."""
    dtype = numpy_dtype(info.dtype)
    if 0 in info.shape:  # no memory; the pointer may be 0, which NumPy would take for "allocate"
        return np.empty(info.shape, dtype)
    plain = np.dtype(f"u{dtype.itemsize}") if info.dtype == "bfloat16" else dtype
    interface = {
        "version": 3,
        "shape": info.shape,
        "strides": info.strides,
        "typestr": plain.str,
        "data": (info.pointer, False),
    }
    array = np.asarray(_Memory(owner, interface))
    return array if plain is dtype else array.view(dtype)


def host_bytes(address: int, nbytes: int) -> NDArray[np.uint8]:
    """Memory at ``address`` as bytes; the caller keeps it alive."""
    found: NDArray[np.uint8] = np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))
    return found
