"""A packet as bytes, and back with every number checked (rule R). The format is described in ``docs/packet.md``."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slotline.core.errors import PacketError
from slotline.core.field import Field
from slotline.core.layout import BufferLayout, numpy_dtype
from slotline.core.packet import Packet
from slotline.core.segments import Block, Fill, Segment, Spans

MAGIC = b"SLPK"
VERSION = 1
FILL, BLOCK, SPANS = 0, 1, 2
HEADER = struct.Struct("<4sHH16sIIQ")
"""magic, version, flags (0), fingerprint, segments, 32-bit numbers, payload bytes"""
SEGMENT = struct.Struct("<IHHIIIIQ")
"""field, kind, bytes of a cell, rows, first number, a, b, payload offset (a fill: the value's bits)"""
_U32 = np.dtype("<u4")


def encode(packet: Packet) -> bytes:
    """The packet as one block of bytes: header, segments, numbers, payload."""
    writer = _Writer(packet.layout)
    for segment in packet.segments:
        writer.add(segment)
    return writer.bytes()


def decode(layout: BufferLayout, data: bytes | bytearray | memoryview) -> Packet:
    """The packet in ``data``, for ``layout``. Its arrays are copies.

    Raises ``PacketError`` for anything that is not a whole packet of this version and layout: nothing has been
    written then, and no more memory was taken than a small multiple of ``data``.
    """
    return _Reader(layout, memoryview(data).cast("B")).packet()


class _Writer:
    def __init__(self, layout: BufferLayout) -> None:
        self.layout = layout
        self.fields = list(layout)
        self.segments: list[bytes] = []
        self.numbers: list[NDArray[Any]] = []
        self.count = 0
        self.payload: list[bytes] = []
        self.size = 0
        self.shared: dict[int, int] = {}

    def add(self, s: Segment) -> None:
        f = self.fields[s.field]
        first = self._put_numbers(s.rows)
        if isinstance(s, Fill):
            self._segment(s, FILL, f, first, s.start, s.stop, _bits(s.value, f))
        elif isinstance(s, Block):
            self._segment(s, BLOCK, f, first, s.start, s.data.shape[1], self._put_payload(s.data))
        else:
            offset = self.shared.get(id(s.data))
            if offset is None:
                offset = self.shared[id(s.data)] = self._put_payload(s.data)
            for numbers in (s.source, s.first, s.length, s.tail):
                self._put_numbers(numbers)
            self._segment(s, SPANS, f, first, len(s.data), 0, offset)

    def _segment(self, s: Segment, kind: int, f: Field, first: int, a: int, b: int, last: int) -> None:
        self.segments.append(SEGMENT.pack(s.field, kind, f.itemsize, len(s.rows), first, a, b, last))

    def _put_numbers(self, numbers: NDArray[Any]) -> int:
        first = self.count
        self.numbers.append(numbers.astype(_U32))
        self.count += len(numbers)
        return first

    def _put_payload(self, data: NDArray[Any]) -> int:
        offset = self.size
        raw = np.ascontiguousarray(data, data.dtype.newbyteorder("<") if data.dtype.kind != "V" else None).tobytes()
        raw += bytes(-len(raw) % 8)
        self.payload.append(raw)
        self.size += len(raw)
        return offset

    def bytes(self) -> bytes:
        if self.count % 2:
            self._put_numbers(np.zeros(1, _U32))  # so that the payload begins at a multiple of 8
        fingerprint = bytes.fromhex(self.layout.fingerprint)
        head = HEADER.pack(MAGIC, VERSION, 0, fingerprint, len(self.segments), self.count, self.size)
        return b"".join((head, *self.segments, *(n.tobytes() for n in self.numbers), *self.payload))


class _Reader:
    def __init__(self, layout: BufferLayout, data: memoryview) -> None:
        self.layout, self.data = layout, data
        self.fields = list(layout)
        if len(data) < HEADER.size:
            raise PacketError(f"a packet has at least {HEADER.size} bytes, got {len(data)}")
        magic, version, flags, fingerprint, self.segments, self.count, self.size = HEADER.unpack_from(data)
        if magic != MAGIC:
            raise PacketError(f"not a packet: it begins with {bytes(magic)!r}, not {MAGIC!r}")
        if (version, flags) != (VERSION, 0):
            raise PacketError(
                f"packet version {version}, flags {flags}; this slotline reads version {VERSION}, flags 0"
            )
        if fingerprint.hex() != layout.fingerprint:
            raise PacketError(f"the packet is for layout {fingerprint.hex()}, this one is {layout.fingerprint}")
        whole = HEADER.size + self.segments * SEGMENT.size + self.count * 4 + self.size
        if whole != len(data):
            raise PacketError(f"the packet says that it has {whole} bytes, got {len(data)}")
        at = HEADER.size + self.segments * SEGMENT.size
        self.numbers = np.frombuffer(data, _U32, self.count, at).astype(np.int64)
        self.shared: dict[tuple[int, int, str], NDArray[Any]] = {}
        self.payload = bytes(data[at + self.count * 4 :])  # one copy; however many segments name the same bytes

    def packet(self) -> Packet:
        return Packet(self.layout, [self._segment(i) for i in range(self.segments)], "packet")

    def _segment(self, i: int) -> Segment:
        index, kind, itemsize, num_rows, first, a, b, last = SEGMENT.unpack_from(
            self.data, HEADER.size + i * SEGMENT.size
        )
        if index >= len(self.fields):
            raise PacketError(f"segment {i}: field {index}, the layout has {len(self.fields)}")
        f = self.fields[index]
        if itemsize != f.itemsize or f.slot_axis is None:
            raise PacketError(f"segment {i}: field {f.name!r} has cells of {f.itemsize} bytes per slot, got {itemsize}")
        rows = self._numbers(i, first, num_rows)
        if not num_rows or (np.diff(rows) <= 0).any() or rows[-1] >= self.layout.config.max_num_seqs:
            raise PacketError(f"segment {i}: rows must ascend and lie below {self.layout.config.max_num_seqs}")
        cells = self.layout.row_cells(f.name)
        slots = rows.astype(np.intp, copy=False)
        if kind == FILL:
            self._require(i, a < b <= cells, f"cells [{a}, {b}) of {cells}")
            return Fill(index, slots, a, b, _value(last, f, i))
        if kind == BLOCK:
            self._require(i, b > 0 and a + b <= cells, f"cells [{a}, {a + b}) of {cells}")
            return Block(index, slots, a, self._payload(i, f, last, num_rows * b).reshape(num_rows, b))
        if kind != SPANS:
            raise PacketError(f"segment {i}: kind {kind}, known: {FILL}, {BLOCK}, {SPANS}")
        runs = [self._numbers(i, first + k * num_rows, num_rows) for k in range(1, 5)]
        source, start, length, tail = runs
        stop = start + length
        self._require(i, bool((source + length <= a).all()), "a run ends behind the payload")
        self._require(i, bool(((stop <= tail) & (tail <= cells)).all()), f"a run leaves the row of {cells} cells")
        return Spans(index, slots, self._payload(i, f, last, a), source, start, length, tail, f.fill)

    def _require(self, i: int, good: bool, what: str) -> None:
        if not good:
            raise PacketError(f"segment {i}: {what}")

    def _numbers(self, i: int, first: int, count: int) -> NDArray[np.int64]:
        self._require(
            i, first + count <= len(self.numbers), f"numbers [{first}, {first + count}) of {len(self.numbers)}"
        )
        return self.numbers[first : first + count]

    def _payload(self, i: int, f: Field, offset: int, cells: int) -> NDArray[Any]:
        known = self.shared.get((offset, cells, f.dtype))
        if known is not None:
            return known
        stop = offset + cells * f.itemsize
        self._require(i, stop <= len(self.payload), f"payload [{offset}, {stop}) of {len(self.payload)} bytes")
        found = np.frombuffer(self.payload, numpy_dtype(f.dtype), cells, offset)
        if f.dtype == "bool" and (found.view(np.uint8) > 1).any():
            raise PacketError(f"segment {i}: field {f.name!r} is bool, the payload holds something else")
        self.shared[offset, cells, f.dtype] = found
        return found


def _bits(value: Any, f: Field) -> int:
    return int.from_bytes(np.array(value, numpy_dtype(f.dtype)).tobytes(), "little")


def _value(bits: int, f: Field, i: int) -> Any:
    if bits >= 1 << (8 * f.itemsize) or (f.dtype == "bool" and bits > 1):
        raise PacketError(f"segment {i}: field {f.name!r} is {f.dtype}, the fill has more bits")
    return np.frombuffer(bits.to_bytes(f.itemsize, "little"), numpy_dtype(f.dtype))[0]
