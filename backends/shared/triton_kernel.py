"""The apply kernel in Triton: the same work, cell for cell, as the CUDA C of ``cuda.kernel``. Imports Triton."""

# mypy: ignore-errors
# Triton has its own language: annotations are read by it, so they are not postponed, and types are not Python's.
from typing import Any

import triton
import triton.language as tl

from slotline.core.image import CELLS


@triton.jit
def _move(
    at: Any, payload: Any, source: Any, bits: Any, mask: Any, copies: Any, kind: tl.constexpr, width: tl.constexpr
):
    """Cells of one width, at the addresses ``at``: from the payload where ``copies``, else the bits of a fill."""
    where = (payload + source * width).to(tl.pointer_type(kind))
    copied = tl.load(where, mask=mask & copies, other=0)
    tl.store(at.to(tl.pointer_type(kind)), tl.where(copies, copied, bits.to(kind)), mask=mask)


@triton.jit(do_not_specialize=["image", "table", "numbers_at", "payload_at", "work_at"])
def apply_kernel(image, table, numbers_at, payload_at, work_at, cells: tl.constexpr):
    """One program handles one entry of the work list: ``cells`` cells of a segment's rows x extent.

    ``image``, ``table``: addresses; the format is that of docs/packet.md.
    """
    work = (image + work_at).to(tl.pointer_type(tl.int32)) + tl.program_id(0) * 4
    segment = (image + 40).to(tl.pointer_type(tl.int32)) + tl.load(work) * 8
    field = tl.load(segment)
    kind_width = tl.load(segment + 1)
    kind = kind_width & 0xFFFF
    width = kind_width >> 16
    rows = tl.load(segment + 2).to(tl.int64)
    numbers = (image + numbers_at).to(tl.pointer_type(tl.int32)) + tl.load(segment + 3)
    last = (tl.load(segment + 6).to(tl.int64) & 0xFFFFFFFF) | (tl.load(segment + 7).to(tl.int64) << 32)
    to = table.to(tl.int64).to(tl.pointer_type(tl.int64)) + field * 8

    extent = tl.load(work + 2).to(tl.int64)
    flat = tl.load(work + 1).to(tl.int64) * cells + tl.arange(0, cells)
    mask = flat < rows * extent
    row = flat // extent
    j = flat % extent

    kinds = kind + tl.zeros([cells], tl.int32)  # a mask is never a scalar: the interpreter would not take it
    spans = kinds == 2
    in_spans = mask & spans
    source = tl.load(numbers + rows + row, mask=in_spans, other=0).to(tl.int64)
    first = tl.load(numbers + 2 * rows + row, mask=in_spans, other=0).to(tl.int64)
    length = tl.load(numbers + 3 * rows + row, mask=in_spans, other=0).to(tl.int64)
    tail = tl.load(numbers + 4 * rows + row, mask=in_spans, other=0).to(tl.int64)
    start = tl.load(segment + 4).to(tl.int64)
    cell = tl.where(spans, first, start) + j
    mask = mask & ((kinds != 2) | (cell < tail))  # behind the row's tail nothing is written
    copies = (kinds == 1) | (spans & (j < length))
    taken = tl.where(spans, source + j, flat)
    bits = tl.where(kinds == 0, last, tl.load(to + 7))

    size1 = tl.load(to + 3)
    size2 = tl.load(to + 5)
    slot = tl.load(numbers + row, mask=mask, other=0).to(tl.int64)
    at = tl.load(to) + slot * tl.load(to + 1)
    at += cell // (size1 * size2) * tl.load(to + 2) + cell // size2 % size1 * tl.load(to + 4)
    at += cell % size2 * tl.load(to + 6)
    payload = image + payload_at + last
    if width == 1:
        _move(at, payload, taken, bits, mask, copies, tl.int8, 1)
    elif width == 2:
        _move(at, payload, taken, bits, mask, copies, tl.int16, 2)
    elif width == 4:
        _move(at, payload, taken, bits, mask, copies, tl.int32, 4)
    else:
        _move(at, payload, taken, bits, mask, copies, tl.int64, 8)


def launch(image: int, table: int, numbers_at: int, payload_at: int, work_at: int, programs: int) -> None:
    """Queue the kernel on torch's current stream. Addresses are those of the device."""
    apply_kernel[(programs,)](image, table, numbers_at, payload_at, work_at, cells=CELLS)
