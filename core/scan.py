"""The stop rule (T) for all rows at once, against an array namespace. No shape depends on data (L2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from slotline.core.namespace import Array, whole

LIMITS = ("min_dec_len", "max_dec_len", "ignore_eos", "stop_seqs", "stop_seqs_len")
"""What the rule reads of a row beside its tokens."""


class StopScan(NamedTuple):
    """What the rule says of each row; all of the dtype of the accepted tokens."""

    kept: Array
    """[S], accepted tokens that stay"""
    reason: Array
    """[S], a ``FinishReason``; 0: it goes on"""
    match: Array
    """[S, 2], sequence and start; -1 without a match"""


def scan(
    xp: Any,
    accepted: Array,
    count: Array,
    generated: Array,
    tail: Array,
    limits: Mapping[str, Array],
    eos: Sequence[int],
) -> StopScan:
    """Look at each row's ``accepted[:count]`` in order; ``accepted`` [S, T] and ``count`` [S] are of one dtype.

    ``generated`` [S], of that dtype too: tokens generated before. ``tail`` [S, W - 1], too: the last of them,
    right-aligned; cells before the first generated token may hold anything. ``limits``: arrays of ``LIMITS``, by row.
    """
    rows, width = accepted.shape
    dtype = accepted.dtype
    column = xp.arange(width, dtype=dtype)
    t = generated[:, None] + (column + 1)  # [S, T]
    counts = (column < count[:, None]) & (t >= whole(xp, limits["min_dec_len"], dtype)[:, None])
    is_eos = xp.zeros((rows, width), dtype=xp.bool)
    for token in eos:
        is_eos = is_eos | (accepted == token)
    is_eos = is_eos & ~limits["ignore_eos"][:, None]
    # The rules in order: what is asked first wins where several say the same token.
    code = xp.where(t >= whole(xp, limits["max_dec_len"], dtype)[:, None], 3, xp.zeros_like(t))
    lens = whole(xp, limits["stop_seqs_len"], dtype)
    num_seqs, max_len = limits["stop_seqs"].shape[1:]
    if num_seqs and max_len:
        which = _lowest_match(xp, xp.concat((tail, accepted), axis=1), t, whole(xp, limits["stop_seqs"], dtype), lens)
        code = xp.where(which < num_seqs, 2, code)
    code = xp.where(is_eos, 1, code)
    code = xp.where(counts, code, 0)
    ended = code > 0
    # [S, 1]; 0 where no token ends the row.
    first = whole(xp, xp.argmax(xp.astype(ended, xp.int32), axis=1), dtype)[:, None]
    reason = xp.take_along(code, first, 1)[:, 0]
    kept = xp.where(reason > 0, first[:, 0] + 1, count)
    if not (num_seqs and max_len):
        return StopScan(kept, reason, xp.full((rows, 2), -1, dtype=dtype))
    matched = xp.take_along(which, first, 1)
    size = xp.take_along(lens, xp.clip(matched, None, num_seqs - 1), 1)
    start = xp.take_along(t, first, 1) - size
    match = xp.where((reason == 2)[:, None], xp.concat((matched, start), axis=1), -1)
    return StopScan(kept, reason, match)


def _lowest_match(xp: Any, context: Array, t: Array, stop_seqs: Array, lens: Array) -> Array:
    """[S, T]: the lowest stop sequence that ends at each accepted token, or N. ``context`` is [S, W - 1 + T]."""
    rows, num_seqs, max_len = stop_seqs.shape
    width = t.shape[1]
    # Slots last, so that every operation runs along many of them; reshaped, so that they lie side by side.
    lens_of, stops = xp.permute_dims(lens, (1, 0)), xp.reshape(stop_seqs, (-1,))
    j = xp.arange(max_len, dtype=t.dtype)[:, None, None]
    ahead = max_len - lens_of  # [N, S]: unused cells once the sequences are right-aligned
    outside = j < ahead  # [W, N, S]
    number = xp.arange(num_seqs, dtype=t.dtype)[:, None]
    first = xp.arange(rows, dtype=t.dtype) * num_seqs + number
    cell = xp.clip(first * max_len - ahead + j, 0, None)
    aligned = xp.reshape(xp.take(stops, xp.reshape(cell, (-1,)), axis=0), (max_len, num_seqs, rows))
    turned = xp.permute_dims(xp.clip(context, -1, None), (1, 0))
    said = xp.reshape(xp.reshape(turned, (-1,)), (max_len - 1 + width, rows))
    windows = xp.stack([said[i : i + width] for i in range(max_len)], axis=0)  # [W, T, S]
    hits = xp.all((windows[:, :, None] == aligned[:, None]) | outside[:, None], axis=0)  # [T, N, S]
    usable = (lens_of > 0) & (lens_of <= xp.permute_dims(t, (1, 0))[:, None])
    return xp.permute_dims(xp.min(xp.where(hits & usable, number, num_seqs), axis=1), (1, 0))


def history_tail(xp: Any, token_ids_all: Array, history: Array, width: int) -> Array:
    """[S, width], of the dtype of ``history`` [S]: the last tokens before that position; where there are fewer, any."""
    longest = token_ids_all.shape[1]
    at = history[:, None] - width + xp.arange(width, dtype=history.dtype)
    return whole(xp, xp.take_along(token_ids_all, xp.clip(at, 0, longest - 1), 1), history.dtype)
