"""What a packet writes, cell by cell in plain Python from ``docs/packet.md``; shares no code with who applies it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slotline.core.layout import BufferLayout
from slotline.core.segments import Block, Fill, Segment


def filled(layout: BufferLayout) -> dict[str, NDArray[Any]]:
    """Each field as after allocation."""
    return {f.name: np.full(layout.shape(f.name), f.fill, f.dtype) for f in layout}


def written(layout: BufferLayout, parts: Iterable[Segment]) -> dict[str, NDArray[Any]]:
    """Freshly filled buffers after ``parts`` were applied."""
    buffers = filled(layout)
    names = layout.names
    for part in parts:
        name = names[part.field]
        axis = layout[name].slot_axis or 0
        for position, slot in enumerate(part.rows.tolist()):
            key: tuple[Any, ...] = (slice(None),) * axis + (slot,)
            row = buffers[name][key].reshape(-1).copy()  # cells of a row, in C order
            for cell, value in _cells(part, position):
                row[cell] = value
            buffers[name][key] = row.reshape(buffers[name][key].shape)
    return buffers


def _cells(part: Segment, position: int) -> Iterable[tuple[int, Any]]:
    if isinstance(part, Fill):
        for cell in range(part.start, part.stop):
            yield cell, part.value
    elif isinstance(part, Block):
        for step, value in enumerate(part.data[position].tolist()):
            yield part.start + step, value
    else:
        source, first, length, tail = (
            int(numbers[position]) for numbers in (part.source, part.first, part.length, part.tail)
        )
        for cell in range(first, tail):
            step = cell - first
            yield cell, part.data[source + step].item() if step < length else part.fill
