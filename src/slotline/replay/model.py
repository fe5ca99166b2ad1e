"""The stand-in for a model: tokens, accepted counts and drafts as a pure function of the device's buffers.

The t-th generated token of a request depends on its ``infer_seed`` and t alone. So a request generates the same tokens
whatever the schedule, and one that was preempted and resumed does not change its mind.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slotline.core.batch import SlotBatch

EOS = 2
FIRST_SYMBOL = 100
NUM_SYMBOLS = 12
SYMBOLS = (EOS, *range(FIRST_SYMBOL, FIRST_SYMBOL + NUM_SYMBOLS))
"""All that the model ever says: few ids, so that stop sequences really match."""

_TABLE: NDArray[np.int64] = np.array([EOS] + [FIRST_SYMBOL + i % NUM_SYMBOLS for i in range(63)], np.int64)
_TOKEN, _ACCEPT, _DRAFT, _DRAFT_NUM, _NOISE = range(1, 6)
U64 = NDArray[np.uint64]


class StepResult(NamedTuple):
    """What the model gives for one step, by slot when the step was prepared."""

    accept_tokens: NDArray[Any]
    """[S, K + 1]; behind the accepted ones stands noise."""
    accept_num: NDArray[np.int32]
    """[S]; noise in rows that are not in the step."""
    draft_tokens: NDArray[Any]
    """[S, K], -1 = none."""


class StandIn:
    """``acceptance``: the chance of each draft to be accepted, if those before it were."""

    def __init__(self, acceptance: float) -> None:
        self.acceptance = acceptance

    def run(self, batch: SlotBatch) -> StepResult:
        """One step on the buffers as they are now."""
        seed = _column(batch, "infer_seed").astype(np.uint64)
        step_idx = _column(batch, "step_idx").astype(np.uint64)
        length = _column(batch, "seq_lens_this_time").astype(np.int64)
        prefills = _column(batch, "seq_lens_encoder") > 0
        width = batch.config.num_drafts + 1
        column = np.arange(width, dtype=np.uint64)
        t = step_idx[:, None] + column + np.uint64(1)  # [S, K + 1]
        tokens = generated(seed[:, None], t)
        count = self._accepted(seed, step_idx, width)
        count = np.where(prefills, 1, np.minimum(count, np.maximum(length, 1)))
        count = np.where(length > 0, count, width)
        noise = _TABLE[_hash(_NOISE, seed[:, None], t) % np.uint64(len(_TABLE))]
        tokens = np.where(column < count[:, None].astype(np.uint64), tokens, noise)
        return StepResult(
            tokens.astype(batch.config.token_dtype),
            count.astype(np.int32),
            _drafts(seed, step_idx, batch),
        )

    def _accepted(self, seed: U64, step_idx: U64, width: int) -> NDArray[np.int64]:
        """[S]: 1 + the drafts accepted, of a row with all its drafts."""
        column = np.arange(max(width - 1, 0), dtype=np.uint64)
        drawn = _hash(_ACCEPT, seed[:, None], step_idx[:, None] * np.uint64(64) + column)
        hit = (drawn >> np.uint64(11)).astype(np.float64) / 2**53 < self.acceptance
        counts: NDArray[np.int64] = 1 + np.cumprod(hit, axis=1, dtype=np.int64).sum(axis=1)
        return counts


def generated(seed: U64, t: U64) -> NDArray[np.int64]:
    """The t-th generated token (1-based) of the requests with these seeds."""
    tokens: NDArray[np.int64] = _TABLE[_hash(_TOKEN, seed, t) % np.uint64(len(_TABLE))]
    return tokens


def generated_by(infer_seed: int, count: int) -> list[int]:
    """The first ``count`` tokens that a request generates if nothing stops it."""
    t = np.arange(1, count + 1, dtype=np.uint64)
    tokens: list[int] = generated(np.full(count, infer_seed, np.uint64), t).tolist()
    return tokens


def _drafts(seed: U64, step_idx: U64, batch: SlotBatch) -> NDArray[Any]:
    """[S, K]; one row in four has fewer than K drafts. A prefill side always makes the one it hands over (D2)."""
    drafts = batch.config.num_drafts
    column = np.arange(drafts, dtype=np.uint64)
    at = step_idx[:, None] * np.uint64(64) + column
    ids = _TABLE[_hash(_DRAFT, seed[:, None], at) % np.uint64(len(_TABLE))]
    drawn = _hash(_DRAFT_NUM, seed, step_idx)
    least = np.uint64(1 if batch.config.role == "prefill" else 0)
    short = least + (drawn >> np.uint64(2)) % np.uint64(max(drafts, 1))
    number = np.where(drawn % np.uint64(4) == 0, short, np.uint64(drafts))
    return np.where(column < number[:, None], ids, -1).astype(batch.config.token_dtype)


def _column(batch: SlotBatch, name: str) -> NDArray[Any]:
    tensor = batch[name]
    array = tensor if isinstance(tensor, np.ndarray) else batch.backend.read(tensor, "model")
    return array.reshape(-1)


def _hash(purpose: int, seed: U64, number: U64) -> U64:
    """splitmix64 over purpose, seed and number, elementwise."""
    x = _mix(seed * np.uint64(0x9E3779B97F4A7C15) + np.uint64(purpose))
    return _mix(x ^ (number + np.uint64(0x632BE59BD9B4E019)))


def _mix(x: U64) -> U64:
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
