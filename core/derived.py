"""Swap, condense, reset, digest and diff: derived from the layout's one table (rules S3 to S6)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from slotline.core import recorded

if TYPE_CHECKING:
    from slotline.core.batch import SlotBatch
    from slotline.core.field import Field


class Difference(NamedTuple):
    """Two batches differ: the first cell that does, of one field and one slot (None: not per slot)."""

    field: str
    slot: int | None
    cell: int
    left: Any
    right: Any


def swap(batch: SlotBatch, i: int, j: int) -> None:
    """Exchange two slots (S4)."""
    if i == j:
        return
    permute(batch, np.array([i, j], np.intp), np.array([j, i], np.intp))
    _record(batch, recorded.Swap(i=i, j=j))
    for slot, other in ((i, j), (j, i)):
        _tell_moved(batch, slot, other)


def permute(batch: SlotBatch, dst: NDArray[np.intp], src: NDArray[np.intp]) -> None:
    """Row ``dst[k]`` of everything per slot becomes what row ``src[k]`` was; the two name the same rows."""
    axes = {f.name: f.slot_axis for f in batch.layout if f.slot_axis is not None}

    def run(xp: Any, writes: Mapping[str, Any], dst: Any, src: Any) -> None:
        for name, array in writes.items():
            axis = axes[name] or 0
            xp.put_rows(array, dst, xp.take(array, src, axis=axis), axis)

    batch.buffers.run_on({name: name for name in axes}, run, "move", {"dst": dst, "src": src})
    batch.slots.permute(dst, src)
    batch.planner.reach.permute(dst, src)
    batch.sides.permute(dst.tolist(), src.tolist())


def condense(batch: SlotBatch) -> list[tuple[int, int]]:
    """Close the gaps (S5): the highest occupied row moves into the lowest free one, until there is none below."""
    moves = []
    free, used = batch.slots.free_slots(), batch.occupied
    while free and used and free[0] < used[-1]:
        moves.append((used.pop(), free.pop(0)))
    if not moves:
        return []
    # The vacated rows take what the free rows held: the fill (P2).
    src = np.array([s for s, _ in moves] + [d for _, d in moves], np.intp)
    dst = np.array([d for _, d in moves] + [s for s, _ in moves], np.intp)
    permute(batch, dst, src)
    vacated = np.array(sorted(s for s, _ in moves), np.intp)
    batch.buffers.apply(batch.planner.clear(vacated, "condense"), None)
    batch.planner.reach.clear(vacated)
    _record(batch, recorded.Condense())
    for s, d in moves:
        _tell_moved(batch, d, s)
    return moves


def _record(batch: SlotBatch, operation: recorded.Operation) -> None:
    """Before the engine's callbacks, which may do more, or raise."""
    if batch.recorder is not None:
        batch.recorder.add(operation)


def _tell_moved(batch: SlotBatch, slot: int, before: int) -> None:
    occupant = batch.slots.occupants[slot]
    if occupant is not None:
        for moved in batch.sides.moved:
            moved(occupant.request_id, before, slot)


def reset(batch: SlotBatch) -> None:
    """Everything as in a new batch, in the same memory (S6). Epochs go on counting (S2)."""
    batch.buffers.fill_all("reset")  # first: where it fails, every request still owns its slot
    slots = batch.occupied
    gone = [(o.request_id, slot) for o, slot in zip(batch.slots.vacate(slots), slots, strict=True)]
    batch.sides.drop(slots)
    batch.planner.reach.clear(slice(None))
    _record(batch, recorded.Reset())
    for request_id, slot in gone:
        for released in batch.sides.released:
            released(request_id, slot)


def digest(batch: SlotBatch, hide: Callable[[Field, NDArray[Any]], NDArray[Any]] | None = None) -> str:
    """64 hexadecimal digits over every byte of every field and over the slot map with its epochs.

    ``hide``: what each field's cells are replaced by first (a redacted recording's token ids).
    """
    hasher = hashlib.blake2b(batch.layout.fingerprint.encode(), digest_size=32)
    for f in batch.layout:
        for array in (batch.host_array(f.name), *([batch.mirror(f.name)] if f.residency == "mirrored" else [])):
            shown = array if hide is None else hide(f, array)
            hasher.update(np.ascontiguousarray(shown).reshape(-1).view(np.uint8).data)
    hasher.update(msgspec.json.encode([(slot, o.request_id, o.epoch) for slot, o in batch.slots]))
    return hasher.hexdigest()


def diff(left: SlotBatch, right: SlotBatch) -> list[Difference]:
    """The first differing cell of each field and slot; empty if the two hold the same bytes."""
    if left.layout != right.layout:
        raise ValueError("diff needs two batches of one layout")
    found: list[Difference] = []
    for f in left.layout:
        a, b = left.host_array(f.name), right.host_array(f.name)
        if f.slot_axis is None:
            a, b = a[None], b[None]
        else:
            a, b = np.moveaxis(a, f.slot_axis, 0), np.moveaxis(b, f.slot_axis, 0)
        a, b = a.reshape(len(a), -1), b.reshape(len(b), -1)
        unlike = _bits(a) != _bits(b)
        for row in np.flatnonzero(unlike.any(axis=1)).tolist():
            cell = int(np.argmax(unlike[row]))
            slot = None if f.slot_axis is None else row
            found.append(Difference(f.name, slot, cell, a[row, cell].item(), b[row, cell].item()))
    return found


def _bits(array: NDArray[Any]) -> NDArray[Any]:
    """The cells as whole numbers, so that NaN equals itself and -0.0 does not equal 0.0."""
    return np.ascontiguousarray(array).view(f"u{array.itemsize}")
