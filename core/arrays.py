"""Host arrays inside a record: dtype, shape and bytes, checked on arrival (rule D5)."""

from __future__ import annotations

import math
from typing import Any, Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from slotline.core.errors import PacketError

_INTS = tuple(f"{sign}int{8 * size}" for sign in ("", "u") for size in (1, 2, 4, 8))
_FLOATS: dict[str, tuple[str, int]] = {
    "float16": ("<u2", 0x7C00),
    "bfloat16": ("<u2", 0x7F80),
    "float32": ("<u4", 0x7F80_0000),
    "float64": ("<u8", 0x7FF0_0000_0000_0000),
}
"""The bits of each float, and its exponent: all ones in a number that is not finite."""
DTYPES = ("bool", *_INTS, *_FLOATS)
MAX_AXES = 8
MAX_CELLS = 2**31 - 1
"""Also of an array without cells, whose axes no byte pays for."""
_AXIS = np.dtype("<i8")


class PackedArray(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of the request's own values. ``PacketError`` when made of parts that do not fit together."""

    name: str
    dtype: str
    shape: bytes
    """The axes, little-endian int64; empty: one number."""
    data: bytes
    """Little-endian, C order."""

    def __post_init__(self) -> None:
        self._check(finite=True)

    def _check(self, *, finite: bool) -> None:
        if len(self.shape) % _AXIS.itemsize or len(self.shape) > MAX_AXES * _AXIS.itemsize:
            allowed = f"8 for each of at most {MAX_AXES} axes"
            raise PacketError(f"extras {self.name!r}: shape has {len(self.shape)} bytes, allowed: {allowed}")
        check(f"extras {self.name!r}", self.data, self.dtype, self._axes, finite=finite)

    @classmethod
    def of(cls, name: str, value: Any) -> Self:
        """``value``: a number, nested lists or an array; ``PacketError`` if it holds something else."""
        array = np.asarray(value)
        shape = np.array(array.shape, _AXIS).tobytes()
        return cls(name=name, dtype=array.dtype.name, shape=shape, data=pack(array))

    @property
    def _axes(self) -> tuple[int, ...]:
        return tuple(np.frombuffer(self.shape, _AXIS).tolist())

    @property
    def cells(self) -> int:
        return math.prod(self._axes)

    @property
    def array(self) -> NDArray[Any]:
        """A copy; bfloat16 as float32, which holds the same numbers."""
        return unpack(self.data, self.dtype, self._axes)


def pack(array: NDArray[Any]) -> bytes:
    """The cells in C order, little-endian. Nothing of an array of objects: ``check`` refuses its dtype."""
    if array.dtype.hasobject:
        return b""
    return np.ascontiguousarray(array, array.dtype.newbyteorder("<") if array.dtype.kind != "V" else None).tobytes()


def check(where: str, raw: bytes, dtype: str, shape: tuple[int, ...], *, finite: bool = True) -> None:
    """``PacketError`` unless ``raw`` holds an array of (``finite``) numbers of this dtype and shape."""
    if dtype not in DTYPES:
        raise PacketError(f"{where}: dtype is {dtype!r}, allowed: {', '.join(DTYPES)}")
    if any(n < 0 for n in shape) or math.prod(max(n, 1) for n in shape) > MAX_CELLS:
        raise PacketError(f"{where}: shape is {shape}, allowed: axes of 0 and more, {MAX_CELLS} cells at most")
    needed = math.prod(shape) * _itemsize(dtype)
    if len(raw) != needed:
        raise PacketError(f"{where} has {len(raw)} bytes, allowed: {needed}, {dtype} of shape {shape}")
    if dtype == "bool" and any(raw.translate(None, b"\0\1")):
        raise PacketError(f"{where} is bool, allowed: bytes 0 and 1")
    if finite and dtype in _FLOATS:
        bits, exponent = _FLOATS[dtype]
        wrong = np.flatnonzero((np.frombuffer(raw, bits) & exponent) == exponent)
        if len(wrong):
            raise PacketError(f"{where}: cell {wrong[0]} is not finite, allowed: finite numbers")


def unpack(raw: bytes, dtype: str, shape: tuple[int, ...]) -> NDArray[Any]:
    """The array that ``check`` has seen, of its own memory. bfloat16 becomes float32: NumPy may not know it here."""
    if dtype == "bfloat16":
        return (np.frombuffer(raw, "<u2").astype(np.uint32) << 16).view(np.float32).reshape(shape)
    return np.frombuffer(raw, np.dtype(dtype).newbyteorder("<")).astype(dtype).reshape(shape)


def _itemsize(dtype: str) -> int:
    return int(np.dtype(_FLOATS[dtype][0] if dtype in _FLOATS else dtype).itemsize)
