"""What a commit decided of each row, in one tensor: drafts and handovers build on it, ``fetch`` takes it to the host.

int32 [S, n], by slot when the step was prepared. Nothing later changes it but the drafts of handed-over rows (L6).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slotline.core.namespace import Array

COLUMNS = ("length", "count", "reason", "match", "match_start", "step_idx", "start", "prefill", "on", "room")
"""- length: of the row in the step; start: its seq_lens_decoder before the commit; prefill: it had prompt tokens
- count: tokens accepted after the cut; reason: a FinishReason; match, match_start: the stop sequence, -1 without
- step_idx: generated tokens before the commit; on: the row decodes on; room: drafts that M9 allows behind them"""
AT = {name: index for index, name in enumerate(COLUMNS)}


def shape(size: int, num_drafts: int) -> tuple[int, int]:
    """Of the tensor: the columns, then K + 1 accepted tokens, then the K drafts of a handed-over row."""
    return (size, len(COLUMNS) + 2 * num_drafts + 1)


def column(result: Array, name: str) -> Array:
    """[S], a view."""
    return result[:, AT[name]]


def tokens(result: Array, num_drafts: int) -> Array:
    """[S, K + 1], a view: accepted tokens after the cut, -1 behind; of a stale row as accepted, uncut."""
    first = len(COLUMNS)
    return result[:, first : first + num_drafts + 1]


def drafts(result: Array, num_drafts: int) -> Array:
    """[S, K], a view: drafts of rows that a handover ended, -1 behind."""
    return result[:, len(COLUMNS) + num_drafts + 1 :]


def fill(xp: Any, result: Array, columns: Mapping[str, Array], accepted: Array) -> None:
    """Write the whole tensor: columns [S] by name and the accepted tokens [S, K + 1]; there are no drafts yet."""
    for name, values in columns.items():
        column(result, name)[...] = xp.astype(values, result.dtype, copy=False)
    num_drafts = accepted.shape[1] - 1
    tokens(result, num_drafts)[...] = accepted
    if num_drafts:
        drafts(result, num_drafts)[...] = -1
