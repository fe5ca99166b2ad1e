"""Ragged rows as packed arrays: what preparing a step and preparing a draft share (rules L1, L2, P4)."""

from __future__ import annotations

from typing import Any, NamedTuple

from slotline.core.namespace import Array, cumulated, whole


def row_lengths(xp: Any, seq_lens_this_time: Array, rows: Array) -> Array:
    """int32 [S] by slot: what each row has in the step, 0 outside it; ``rows`` as of ``Ticket.rows``."""
    return xp.where(rows[1] > 0, whole(xp, seq_lens_this_time), 0)


class Grid(NamedTuple):
    """Where each of T' packed tokens lies; all int32 but ``inside``."""

    cu_seqlens: Array
    """[S + 1], by position"""
    at: Array
    """[T'], the token's position in the step"""
    j: Array
    """[T'], its place within the row; 0 behind the last"""
    inside: Array
    """[T'] bool, False behind the last"""


def spread(xp: Any, lengths: Array, num_tokens: int) -> Grid:
    """Lay rows of ``lengths`` [S] end to end on ``num_tokens`` cells."""
    cu = cumulated(xp, lengths)
    token = xp.arange(num_tokens, dtype=xp.int32)
    at = xp.clip(whole(xp, xp.searchsorted(cu[1:], token, side="right")), 0, lengths.shape[0] - 1)
    inside = token < cu[-1:]
    return Grid(cu, at, xp.where(inside, token - xp.take(cu, at, axis=0), 0), inside)


class Logits(NamedTuple):
    """Which packed tokens' logits are wanted; int32."""

    rows: Array
    """[n], packed tokens, 0 behind the last"""
    of: Array
    """[n], the position in the step that each belongs to"""
    inside: Array
    """[n] bool"""
    number: Array
    """[1]"""


def wanted_logits(xp: Any, cu_seqlens: Array, wanted: Array, size: int) -> Logits:
    """The last ``wanted`` [S] tokens of each row, in ``size`` cells."""
    grid = spread(xp, wanted, size)
    first = xp.take(cu_seqlens[1:] - wanted, grid.at, axis=0)
    return Logits(xp.where(grid.inside, first + grid.j, 0), grid.at, grid.inside, grid.cu_seqlens[-1:])


def write_all(xp: Any, writes: Any, values: dict[str, Array]) -> None:
    """Each value into the array of its name, in that array's dtype."""
    for key, value in values.items():
        writes[key][...] = xp.astype(value, writes[key].dtype, copy=False)
