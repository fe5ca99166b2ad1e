"""Reading a recording, part by part (rule R, ``docs/recordings.md``)."""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from slotline.core import record, recorded
from slotline.core.errors import ConfigError, LayoutError, PacketError
from slotline.core.layout import BufferLayout
from slotline.core.recording import END, ENTRY, HEAD
from slotline.core.weigh import require_light

_REFUSALS = (LayoutError, ConfigError, ValueError, TypeError, OverflowError, RecursionError)
"""What config, fields and layout raise for values that make none."""
SLACK = 1 << 24
"""Bytes beside the file and the buffers: of objects that even a small recording needs."""


class Recording:
    """A recording in a file. The file is mapped, not read: what is read at a time is one part, in no more memory than
    twice the file.

    ``PacketError`` for anything that does not begin with a whole head; ``OSError`` if the file cannot be read.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        mode = self.path.stat().st_mode
        if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # opening a pipe would wait for its other end
            raise PacketError(f"{self.path.name} is no regular file, allowed: a recording that lies on a disk")
        with self.path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size < record.HEADER.size:
                raise PacketError(f"a recording has at least {record.HEADER.size} bytes, {self.path.name} has {size}")
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self.size = size
        with memoryview(self._map) as view:
            self.head, self._first = _part(view, 0, HEAD, recorded.Head, "a recording's head")
        try:
            self.layout: BufferLayout = self.head.layout()
            for name in self.head.only or ():
                self.layout[name]
        except _REFUSALS as error:
            raise PacketError(f"a recording's head: {error}") from error
        tables = _tables(self.layout)
        if tables > self.layout.nbytes + SLACK:
            raise PacketError(
                f"a recording's head: the tables of its slots need {tables} bytes on the host, "
                f"allowed: what its fields have, {self.layout.nbytes}"
            )

    @property
    def nbytes(self) -> int:
        """What a batch of its layout needs: buffers, mirrors, and the tables on the host."""
        return self.layout.nbytes + _tables(self.layout)

    def __iter__(self) -> Iterator[recorded.Entry]:
        """The records in order. ``PacketError`` naming the first that is broken, or if the end is missing."""
        at, count = self._first, 0
        with memoryview(self._map) as view:
            while bytes(view[at : at + 4]) != END:
                what = f"record {count + 1}"
                if at >= len(view):
                    raise PacketError(f"the recording was cut off behind record {count}: its end is missing")
                entry, at = _part(view, at, ENTRY, recorded.Entry, what)
                count += 1
                yield entry
            end, at = _part(view, at, END, recorded.End, "a recording's end")
            if end.records != count or at != len(view):
                behind = f"{len(view) - at} bytes behind it, allowed: 0"
                raise PacketError(f"a recording's end: it says {end.records} records, found {count}; {behind}")


def _tables(layout: BufferLayout) -> int:
    """Bytes that a batch keeps on the host for each slot, about."""
    return layout.config.max_num_seqs * (4 * layout.config.max_blocks_per_seq + 128)


def _part(view: memoryview, at: int, magic: bytes, kind: Any, what: str) -> tuple[Any, int]:
    """The part at ``at``, and where the next begins; nothing of it is copied but the values in it."""
    if len(view) - at < record.HEADER.size:
        raise PacketError(f"{what}: the file ends after {len(view) - at} bytes of it")
    found, version, flags, size, checksum = record.HEADER.unpack_from(view, at)
    begin = at + record.HEADER.size
    if found != magic:
        raise PacketError(f"not {what}: it begins with {bytes(found)!r}, not {magic!r}")
    if (version, flags) != (record.VERSION, 0):
        raise PacketError(f"{what}: version {version}, flags {flags}; this slotline reads version {record.VERSION}")
    if size > len(view) - begin or size > record.MAX_BYTES:
        raise PacketError(
            f"{what}: it says {size} bytes, the file has {len(view) - begin}, allowed: {record.MAX_BYTES}"
        )
    with view[begin : begin + size] as body:
        if checksum != record.checksum(body):
            raise PacketError(f"{what}: the checksum does not fit its {size} bytes; record or copy the file again")
        require_light(what, body, 2 * len(view) + SLACK // 16)
        try:
            return msgspec.msgpack.decode(body, type=kind), begin + size
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, PacketError) as error:
            raise PacketError(f"{what}: {error}") from error
