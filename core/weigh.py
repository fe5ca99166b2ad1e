"""What msgpack bytes would become in memory, before they do: a byte of them can cost a hundred (rule R)."""

from __future__ import annotations

from slotline.core.errors import PacketError
from slotline.core.record import Buffer

_OBJECT, _POINTER = 56, 16
_COSTS = {"number": 32, "text": 56, "bytes": 40}
"""Bytes of CPython's objects beside their content; a tuple is made of a list, so a pointer counts twice."""
_DEPTH = 12
_SIZES = {0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8}
"""Bytes behind the first of a float or a whole number."""
_LENGTHS = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4, 0xDC: 2, 0xDD: 4, 0xDE: 2, 0xDF: 4}
"""Bytes of the length behind the first of bytes, text, an array or a mapping."""


def require_light(what: str, body: Buffer, most: int) -> None:
    """``PacketError`` if decoding ``body`` would take more than about ``most`` bytes, or is no msgpack.

    Lengths and counts are compared with the bytes that are there first. Runs in time of the items. Keys of a mapping
    weigh nothing: they are names of a Struct, which are there already.
    """
    at, stop, weight = 0, len(body), 0
    open_values, in_map = [1], [False]  # of each container that is being read: values to come, keys too
    while open_values:
        if not open_values[-1]:
            open_values.pop()
            in_map.pop()
            continue
        open_values[-1] -= 1
        is_key = in_map[-1] and open_values[-1] % 2
        if at >= stop:
            raise PacketError(f"{what}: its body ends after {stop} bytes, in the middle of a value")
        first = body[at]
        at += 1
        kind, length = _kind(first)
        size = _LENGTHS.get(first)
        if size is not None:
            length = int.from_bytes(body[at : at + size], "big")
            at += size
        values = length if kind == "array" else 2 * length if kind == "map" else 0
        if values > stop - at:
            raise PacketError(f"{what}: its body says {values} values, {max(stop - at, 0)} bytes are left")
        if values:
            weight += _OBJECT + _POINTER * values
            open_values.append(values)
            in_map.append(kind == "map")
            if len(open_values) > _DEPTH:
                raise PacketError(f"{what}: values lie in values {_DEPTH} deep, allowed: less")
        elif kind == "":
            raise PacketError(f"{what}: byte {at - 1} of its body is {first:#x}, which no recording holds")
        elif kind in ("number", "text", "bytes"):
            at += length
            if length > 1 and not is_key:
                weight += length + _COSTS[kind]
        if weight > most:
            raise PacketError(f"{what}: its {stop} bytes would take more than {most} in memory")
    if at != stop:
        raise PacketError(f"{what}: its body has {stop} bytes, its content {at}")


def _kind(first: int) -> tuple[str, int]:
    """The kind of value that ``first`` begins, and its length where the byte says it."""
    if first < 0x80 or first >= 0xE0 or first in (0xC0, 0xC2, 0xC3):
        return "number", 0
    if first < 0x90:
        return "map", first & 0x0F
    if first < 0xA0:
        return "array", first & 0x0F
    if first < 0xC0:
        return "text", first & 0x1F
    if first in _SIZES:
        return "number", _SIZES[first]
    if 0xC4 <= first <= 0xC6:
        return "bytes", 0
    if 0xD9 <= first <= 0xDB:
        return "text", 0
    if 0xDC <= first <= 0xDD:
        return "array", 0
    return ("map", 0) if 0xDE <= first <= 0xDF else ("", 0)
