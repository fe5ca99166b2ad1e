"""Strategies for draft levels: what a drafter gave so far, and parts of a step."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from slotline.testing.reference import ReferenceBatch, RefTicket


@st.composite
def drafted(draw: st.DrawFn, ref: ReferenceBatch, level: int, lowest: int = -1) -> NDArray[Any]:
    """The ids of the levels before ``level`` [S, level - 1] by slot at prepare time; -1: nobody drafted there."""
    config = ref.config
    ids = st.lists(st.integers(lowest, config.vocab_size - 1), min_size=level - 1, max_size=level - 1)
    made = [draw(ids) for _ in range(config.max_num_seqs)]
    return np.array(made, config.token_dtype).reshape(config.max_num_seqs, level - 1)


@st.composite
def micro_batches(draw: st.DrawFn, ticket: RefTicket) -> list[str] | None:
    """Some of a step's requests, living or not, or None for all."""
    ids = ticket.request_ids
    if not ids or draw(st.booleans()):
        return None
    return draw(st.lists(st.sampled_from(ids), unique=True))
