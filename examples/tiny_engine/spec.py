"""Drafts: the loop over the MTP heads, and prompt lookup on the host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

import slotline as sl

if TYPE_CHECKING:
    from examples.tiny_engine.engine import Engine

LONGEST_MATCH = 4


def draft(engine: Engine, step: sl.Step, hidden: Any) -> Any:
    """Run the heads after the commit: drafts [S, K] by slot, -1 = none.

    ``hidden`` [T', D] are the step's; level k's row reads those of level k - 1. A prefill engine runs the levels that
    have heads, so that their caches are whole, and leaves the others to its peer.
    """
    config = engine.batch.config
    levels = config.num_levels if config.role == "prefill" else config.num_drafts
    # One row more than slots: there goes what -1 in ``logits_slots`` names, and no shape depends on the device (L2).
    drafted = engine.xp.full((config.max_num_seqs + 1, config.num_drafts), -1, dtype=engine.xp.int64)
    for level in range(1, levels + 1):
        packed = sl.prepare_draft(engine.batch, step, level, drafted[:-1, : level - 1])
        head = min(level, config.num_levels)
        former = hidden[engine.own(packed.hidden_rows)]
        hidden = engine.model.draft_forward(head, engine.inputs(packed), former, engine.cache)
        picked = engine.model.logits(hidden[engine.own(packed.logits_rows)]).argmax(-1)  # [S]
        drafted[engine.own(packed.logits_slots), level - 1] = picked
    return drafted[:-1]


def lookup(histories: Mapping[int, list[int]], config: sl.BatchConfig) -> NDArray[np.int64]:
    """Drafts [S, K] by slot: what followed the newest earlier place where the text's last tokens stand.

    Host work on fetched tokens; the longest run of last tokens that is found decides.
    """
    drafts = np.full((config.max_num_seqs, config.num_drafts), -1, np.int64)
    for slot, history in histories.items():
        found = _continuation(history, config.num_drafts)
        drafts[slot, : len(found)] = found
    return drafts


def _continuation(history: list[int], count: int) -> list[int]:
    for length in range(min(LONGEST_MATCH, len(history) - 1), 0, -1):
        tail = history[-length:]
        for start in range(len(history) - length - 1, -1, -1):
            if history[start : start + length] == tail:
                found = history[start + length :]
                return [found[i % len(found)] for i in range(count)]  # a loop may be shorter than the drafts
    return []
