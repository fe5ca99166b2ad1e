"""Packet: one insertion, ready for a device. Format on the wire: ``docs/packet.md`` and ``codec``."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slotline.core.layout import BufferLayout
from slotline.core.runs import Runs
from slotline.core.scalars import Scalars
from slotline.core.segments import Rows, Segment, Spans, write_rows

Part = Segment | Runs | Scalars


class Packet:
    """Segments that write into the fields of one layout. No two segments of a packet write the same cell.

    ``parts``: as the planner makes them, some for several fields at once; ``segments``: field by field, as on the wire.
    """

    def __init__(self, layout: BufferLayout, parts: Sequence[Part], operation: str) -> None:
        self.layout = layout
        self.parts = tuple(parts)
        self.operation = operation

    def __len__(self) -> int:
        return len(self.parts)

    @functools.cached_property
    def segments(self) -> tuple[Segment, ...]:
        return tuple(s for part in self.parts for s in _segments(part))

    @property
    def nbytes(self) -> int:
        """Bytes of the payload; what several segments share counts once."""
        shared: dict[int, int] = {}
        total = 0
        for s in self.parts:
            if isinstance(s, Spans):
                shared[id(s.data)] = s.data.nbytes
            elif isinstance(s, Runs):
                shared[id(s.source)] = s.source.size * s.dtype.itemsize
            else:
                total += s.nbytes
        return total + sum(shared.values())

    def apply(self, buffers: Sequence[NDArray[Any] | None]) -> None:
        """Write into host arrays, one for each field of the layout in order (None: not written here)."""
        axes = [f.slot_axis or 0 for f in self.layout]
        for segment in self.segments:
            buffer = buffers[segment.field]
            if buffer is not None:
                write_rows(segment, buffer, axes[segment.field])

    def apply_field(self, index: int, buffer: NDArray[Any]) -> None:
        """Write only what concerns the field at ``index``."""
        axis = list(self.layout)[index].slot_axis or 0
        for segment in self.segments:
            if segment.field == index:
                write_rows(segment, buffer, axis)

    def rows_by_field(self) -> dict[int, Rows]:
        """For each field that is written, its rows, ascending."""
        rows: dict[int, list[Rows]] = {}
        for segment in self.segments:
            rows.setdefault(segment.field, []).append(segment.rows)
        return {index: np.unique(np.concatenate(found)) for index, found in rows.items()}

    def on_device(self, fields: Sequence[bool]) -> Packet:
        """The part that writes into device memory; ``fields``: whether each field has some."""
        parts: list[Part] = []
        for part in self.parts:
            if isinstance(part, Scalars):
                if part.group.device.stop:
                    parts.append(part.of(part.group.device))
            elif fields[part.field]:
                parts.append(part)
        return Packet(self.layout, parts, self.operation)


def _segments(part: Part) -> Iterator[Segment]:
    if isinstance(part, Scalars):
        yield from part.segments()
    elif isinstance(part, Runs):
        yield part.spans()
    else:
        yield part
