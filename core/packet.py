"""Packet: one insertion, ready for a device. Format on the wire: ``docs/packet.md`` and ``codec``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slotline.core.layout import BufferLayout
from slotline.core.segments import Rows, Segment, Spans, write_rows


class Packet:
    """Segments that write into the fields of one layout. No two segments of a packet write the same cell."""

    def __init__(self, layout: BufferLayout, segments: Sequence[Segment], operation: str) -> None:
        self.layout = layout
        self.segments = tuple(segments)
        self.operation = operation
        self._axes = [f.slot_axis or 0 for f in layout]

    def __len__(self) -> int:
        return len(self.segments)

    @property
    def nbytes(self) -> int:
        """Bytes of the payload; what several segments share counts once."""
        shared: dict[int, int] = {}
        total = 0
        for s in self.segments:
            if isinstance(s, Spans):
                shared[id(s.data)] = s.data.nbytes
            else:
                total += s.nbytes
        return total + sum(shared.values())

    def apply(self, buffers: Sequence[NDArray[Any] | None]) -> None:
        """Write into host arrays, one for each field of the layout in order (None: not written here)."""
        for segment in self.segments:
            buffer = buffers[segment.field]
            if buffer is not None:
                write_rows(segment, buffer, self._axes[segment.field])

    def apply_field(self, index: int, buffer: NDArray[Any]) -> None:
        """Write only what concerns the field at ``index``."""
        for segment in self.segments:
            if segment.field == index:
                write_rows(segment, buffer, self._axes[index])

    def rows_by_field(self) -> dict[int, Rows]:
        """For each field that is written, its rows, ascending."""
        rows: dict[int, list[Rows]] = {}
        for segment in self.segments:
            rows.setdefault(segment.field, []).append(segment.rows)
        return {index: np.unique(np.concatenate(found)) for index, found in rows.items()}

    def only(self, fields: set[int]) -> Packet:
        """The part that writes into ``fields``."""
        return Packet(self.layout, [s for s in self.segments if s.field in fields], self.operation)
