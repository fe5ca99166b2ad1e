"""The stop rule (T), for all rows at once and for one token.

Only generated tokens count; a match never reaches into the prompt. At the t-th generated token (1-based): below
``min_dec_len`` go on; end-of-sequence; a stop sequence (the lowest that matches); ``max_dec_len``.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class FinishReason(enum.IntEnum):
    """Why a row ended; the values of the field ``finish_reason``."""

    NONE = 0
    EOS = 1
    STOP = 2
    LENGTH = 3
    HANDOVER = 4


class StopScan(NamedTuple):
    """What the rule says of each row: tokens kept [S], reason [S], and the match (sequence, start) [S, 2]."""

    kept: NDArray[Any]
    reason: NDArray[Any]
    match: NDArray[Any]


def scan(
    accepted: NDArray[Any],
    count: NDArray[Any],
    generated: NDArray[Any],
    tail: NDArray[Any],
    *,
    min_dec_len: NDArray[Any],
    max_dec_len: NDArray[Any],
    ignore_eos: NDArray[Any],
    stop_seqs: NDArray[Any],
    stop_seqs_len: NDArray[Any],
    eos_token_ids: Sequence[int],
) -> StopScan:
    """Look at each row's ``accepted[:count]`` [S, T] in order.

    ``generated`` [S]: tokens generated before. ``tail`` [S, W - 1]: the last of them, right-aligned; cells before the
    first generated token may hold anything. Shapes do not depend on data (L2).
    """
    rows, width = accepted.shape
    context = np.concatenate((tail, accepted), axis=1)  # [S, W - 1 + T]
    kept, reason = count.astype(np.int32), np.zeros(rows, np.int32)
    match = np.full((rows, 2), -1, np.int32)
    running = np.ones(rows, bool)
    is_eos = np.isin(accepted, eos_token_ids) & ~ignore_eos[:, None]  # [S, T]
    found = _matches(context, tail.shape[1], width, generated, stop_seqs, stop_seqs_len)  # [S, T], lowest or N
    num_seqs = stop_seqs.shape[1]
    for i in range(width):
        t = generated + (i + 1)
        here = running & (i < count)
        may_stop = here & (t >= min_dec_len)
        eos = may_stop & is_eos[:, i]
        stop = may_stop & ~eos & (found[:, i] < num_seqs)
        length = here & ~eos & ~stop & (t >= max_dec_len)
        # A token below min_dec_len goes on, whatever it is; min_dec_len never exceeds max_dec_len.
        length &= t >= min_dec_len
        ended = eos | stop | length
        reason = np.where(eos, 1, np.where(stop, 2, np.where(length, 3, reason))).astype(np.int32)
        kept = np.where(ended, i + 1, kept).astype(np.int32)
        if num_seqs:
            which = np.where(stop, found[:, i], 0)
            size = np.take_along_axis(stop_seqs_len, which[:, None], axis=1)[:, 0]
            match = np.where(stop[:, None], np.stack((which, t - size), axis=1), match).astype(np.int32)
        running &= ~ended
    return StopScan(kept, reason, match)


def _matches(
    context: NDArray[Any],
    before: int,
    width: int,
    generated: NDArray[Any],
    stop_seqs: NDArray[Any],
    stop_seqs_len: NDArray[Any],
) -> NDArray[Any]:
    """[S, T]: the lowest stop sequence that ends at each accepted token, or N."""
    rows, num_seqs, max_len = stop_seqs.shape
    ends = before + np.arange(width)  # [T]
    lens = stop_seqs_len[:, None, :, None]  # [S, 1, N, 1]
    j = np.arange(max_len)  # [W]
    at = ends[None, :, None, None] - lens + 1 + j  # [S, T, N, W]
    inside = j < lens  # [S, 1, N, W]
    at = np.where(inside, at, 0)
    tokens = np.take_along_axis(context, at.reshape(rows, -1), axis=1).reshape(at.shape)
    equal = ((tokens == stop_seqs[:, None]) | ~inside).all(axis=3)  # [S, T, N]
    t = generated[:, None] + np.arange(1, width + 1)  # [S, T]
    equal &= (stop_seqs_len[:, None] > 0) & (stop_seqs_len[:, None] <= t[:, :, None])
    index = np.where(equal, np.arange(num_seqs), num_seqs)
    lowest: NDArray[Any] = index.min(axis=2, initial=num_seqs)
    return lowest


def match_token(
    output: Sequence[int] | NDArray[Any],
    *,
    min_dec_len: int,
    max_dec_len: int,
    ignore_eos: bool,
    stop_lists: Iterable[NDArray[Any]],
    eos_token_ids: Sequence[int],
) -> tuple[FinishReason, tuple[int, int] | None]:
    """The rule for the last token of ``output`` (all tokens generated so far), on the host: D4."""
    t = len(output)
    if t < min_dec_len:
        return FinishReason.NONE, None
    if output[t - 1] in eos_token_ids and not ignore_eos:
        return FinishReason.EOS, None
    for index, seq in enumerate(stop_lists):
        n = len(seq)
        if 0 < n <= t and np.array_equal(output[t - n :], seq):
            return FinishReason.STOP, (index, t - n)
    return (FinishReason.LENGTH, None) if t >= max_dec_len else (FinishReason.NONE, None)
