"""Records between machines: one msgspec Struct in a frame with magic, version and checksum (rule D5).

The formats are described in ``docs/handover.md``. A record that is read back is the one that was written: what decodes
must encode to the same bytes again, so no second spelling of a record exists.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from slotline.core.errors import PacketError
from slotline.core.ids import Ids

VERSION = 1
HEADER = struct.Struct("<4sHHQ8s")
"""magic, version, flags (0), bytes of the body, checksum of the body"""
MAX_BYTES = 2**30
"""Longest body, a bound for what comes from outside; 1 GiB is a quarter of a thousand million token ids."""
_I4 = np.dtype("<i4")

T = TypeVar("T", bound=msgspec.Struct)
Buffer = bytes | bytearray | memoryview


def encode(record: msgspec.Struct, magic: bytes) -> bytes:
    """The record as bytes: header, then the Struct as msgpack. ``PacketError`` if it is longer than ``MAX_BYTES``."""
    body = msgspec.msgpack.encode(record)
    if len(body) > MAX_BYTES:
        raise PacketError(f"the record has {len(body)} bytes, allowed: {MAX_BYTES}")
    return HEADER.pack(magic, VERSION, 0, len(body), checksum(body)) + body


def decode(data: Buffer, magic: bytes, kind: type[T], what: str) -> T:
    """The record of type ``kind`` in ``data``, every part checked; its bytes are copies.

    Raises ``PacketError`` for anything else than a whole record of this version, ``TypeError`` if ``data`` is not
    bytes at all. No more memory is taken than a small multiple of ``data``.
    """
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise TypeError(f"{what} is {type(data).__name__}, allowed: bytes")
    raw = bytes(data)
    if len(raw) < HEADER.size:
        raise PacketError(f"{what}: at least {HEADER.size} bytes, got {len(raw)}")
    found, version, flags, size, given = HEADER.unpack_from(raw)
    if found != magic:
        raise PacketError(f"not {what}: it begins with {found!r}, not {magic!r}")
    if (version, flags) != (VERSION, 0):
        raise PacketError(f"{what}: version {version}, flags {flags}; this slotline reads version {VERSION}, flags 0")
    if size != len(raw) - HEADER.size or size > MAX_BYTES:
        raise PacketError(
            f"{what}: the header says {size} bytes behind it, got {len(raw) - HEADER.size}, allowed: {MAX_BYTES}"
        )
    body = raw[HEADER.size :]
    if given != checksum(body):
        raise PacketError(f"{what}: the checksum is {given.hex()}, the bytes give {checksum(body).hex()}; send again")
    try:
        record = msgspec.msgpack.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise PacketError(f"{what}: {error}") from error
    if msgspec.msgpack.encode(record) != body:
        raise PacketError(
            f"{what}: a part is doubled or not in its shortest form; only slotline's own encoding is read"
        )
    return record


def checksum(body: Buffer) -> bytes:
    """8 bytes over the body of a record."""
    return hashlib.blake2b(body, digest_size=8).digest()


def ids_to_bytes(ids: Any) -> bytes:
    """Token ids or counts below 2**31 as little-endian int32."""
    return np.asarray(ids, _I4).tobytes()


def ids_from_bytes(raw: bytes) -> Ids:
    """The ids in ``raw``, int64 [n]; their bounds were checked when the record was made."""
    return np.frombuffer(raw, _I4).astype(np.int64)


def check_ids(where: str, raw: bytes, limit: int, least: int = 0, most: int | None = None) -> NDArray[Any]:
    """The int32 numbers in ``raw`` [n]: each in [0, limit), ``least`` to ``most`` of them; else ``PacketError``."""
    if len(raw) % _I4.itemsize:
        raise PacketError(f"{where} has {len(raw)} bytes, allowed: a multiple of 4, little-endian int32")
    ids = np.frombuffer(raw, _I4)
    if len(ids) < least or (most is not None and len(ids) > most):
        upper = "" if most is None else f" to {most}"
        raise PacketError(f"{where} has {len(ids)} numbers, allowed: {least}{upper or ' and more'}")
    wrong = np.flatnonzero((ids < 0) | (ids >= limit))
    if len(wrong):
        raise PacketError(f"{where}[{wrong[0]}] is {ids[wrong[0]]}, allowed: 0 to {limit - 1}")
    return ids
