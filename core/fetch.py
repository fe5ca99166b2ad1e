"""Taking a step's results to the host (rule L6)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from slotline.core.batch import SlotBatch
    from slotline.core.ticket import Entry, Ticket


class Output(NamedTuple):
    """What one row of a step produced."""

    request_id: str
    tokens: list[int]
    """Accepted tokens after the stop rule; of a stale row as accepted, uncut."""
    finish_reason: int
    stop_match: tuple[int, int] | None
    """(index of the stop sequence, generated token that it starts at)"""
    draft_tokens: list[int]
    """Drafts of a row that a handover ended."""
    stale: bool
    """The row's epoch had ended at the commit; the tokens were applied to nothing."""


class Fetch:
    """A result on its way. Decided at the commit: nothing later changes it."""

    def __init__(self, batch: SlotBatch, step: Ticket) -> None:
        step.require("committed", "fetch", batch)
        self._batch, self._step = batch, step
        self._outputs: list[Output] | None = None

    @property
    def is_done(self) -> bool:
        """The copy has landed; ``result()`` will not wait."""
        return True

    def result(self) -> list[Output]:
        """One entry for each row of the step, in its order; waits for the copy.

        A row of length 0 gives no entry, a chunk that is not last an empty one. The first call also tells the host
        which rows have ended (I7) and fills ``input_ids_cpu`` (M7). Nothing is released.
        """
        if self._outputs is None:
            self._outputs = [self._output(e) for e in self._step.entries if self._step.lengths[e.slot] > 0]
            self._batch.take_result(self._step)
        return list(self._outputs)

    def _output(self, entry: Entry) -> Output:
        result, s = self._step.result, entry.slot
        assert result is not None
        match = None if result.match[s, 0] < 0 else (int(result.match[s, 0]), int(result.match[s, 1]))
        drafts = result.drafts[s]
        return Output(
            entry.occupant.request_id,
            result.tokens[s, : result.counts[s]].tolist(),
            int(result.reason[s]),
            match,
            drafts[: int(np.count_nonzero(drafts >= 0))].tolist(),
            bool(result.stale[s]),
        )
