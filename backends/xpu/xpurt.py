"""Kunlun's runtime library, as far as it is needed: asynchronous copies and page-locked memory, by ctypes.

The names and the numbers of the copies' ways are those of the library's public header; a status of 0 is success.
"""

from __future__ import annotations

import ctypes
from typing import Any

from slotline.core.errors import DeviceError
from slotline.core.runtime import Copy

LIBRARY = "libxpurt.so"
WAYS = {Copy.HOST_TO_DEVICE: 0, Copy.DEVICE_TO_HOST: 1, Copy.DEVICE_TO_DEVICE: 2}
_POINTER, _SIZE, _INT = ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int
_CALLS: dict[str, tuple[Any, ...]] = {
    "xpu_memcpy_async": (_POINTER, _POINTER, _SIZE, _INT, _POINTER),
    "xpu_host_alloc": (ctypes.POINTER(_POINTER), _SIZE, _INT),
    "xpu_host_free": (_POINTER,),
}


class XpuRt:
    """The library's calls, checked. ``why`` says what is missing where ``found`` is False."""

    def __init__(self, library: str = LIBRARY) -> None:
        self.why = ""
        self._library: Any = None
        try:
            loaded = ctypes.CDLL(library)
        except OSError as error:
            self.why = f"{library} cannot be loaded: {error}"
            return
        for name, types in _CALLS.items():
            try:
                call = getattr(loaded, name)
            except AttributeError:
                self.why = f"{library} has no {name}"
                return
            call.argtypes, call.restype = types, _INT
        self._library = loaded

    @property
    def found(self) -> bool:
        """The library is there with all calls."""
        return self._library is not None

    def copy(self, dst: int, src: int, nbytes: int, way: Copy, stream: int) -> None:
        """Queue a copy; host memory is read or written when it runs."""
        self._check("xpu_memcpy_async", dst, src, nbytes, WAYS[way], stream)

    def allocate_host(self, nbytes: int) -> int:
        """Page-locked memory."""
        address = _POINTER()
        self._check("xpu_host_alloc", ctypes.byref(address), nbytes, 0)
        return int(address.value or 0)

    def free_host(self, address: int) -> None:
        self._check("xpu_host_free", address)

    def _check(self, name: str, *arguments: Any) -> None:
        status = int(getattr(self._library, name)(*arguments))
        if status:
            raise DeviceError("xpu", name, status, None)
