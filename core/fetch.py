"""Taking a step's results to the host (rule L6)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slotline.core import result

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
    """Drafts of a row that a handover ended, if they were committed before the fetch."""
    stale: bool
    """The row's epoch had ended at the commit; the tokens were applied to nothing."""
    extra: Mapping[str, NDArray[Any]] = MappingProxyType({})
    """The row's part of each tensor that rode along; host arrays of its own."""


class Fetch:
    """A result on its way: one copy, started when it was asked for. Decided at the commit; nothing later changes it."""

    def __init__(self, batch: SlotBatch, step: Ticket, extra: Mapping[str, Any]) -> None:
        step.require("committed", "fetch", batch)
        self._batch, self._step = batch, step
        size = batch.config.max_num_seqs
        for name, tensor in extra.items():
            shape = batch.backend.inspect(tensor).shape
            if not shape or shape[0] != size:
                raise ValueError(
                    f"extra {name!r} has shape {list(shape)}, needed: [{size}, ...], one row for each slot"
                )
        self._extra = {name: batch.backend.download(t, "fetch", batch.stats) for name, t in extra.items()}
        self._download = batch.backend.download(step.result, "fetch", batch.stats)
        self._outputs: list[Output] | None = None

    @property
    def is_done(self) -> bool:
        """The copy has landed; ``result()`` will not wait."""
        return self._download.is_done and all(d.is_done for d in self._extra.values())

    def result(self) -> list[Output]:
        """One entry for each row of the step, in its order; waits for the copy.

        A row of length 0 gives no entry, a chunk that is not last an empty one. The first call also tells the host
        which rows have ended (I7) and fills ``input_ids_cpu`` (M7). Nothing is released.
        """
        if self._outputs is None:
            rows = self._download.array()
            length, step_idx = result.column(rows, "length"), result.column(rows, "step_idx")
            entries = [e for e in self._step.entries if length[e.slot] > 0]
            extra = {name: d.array() for name, d in self._extra.items()}
            outputs = {
                e.epoch: self._output(e, rows)._replace(extra={n: a[e.slot].copy() for n, a in extra.items()})
                for e in entries
            }
            self._batch.take_result(self._step, outputs, {e.epoch: int(step_idx[e.slot]) for e in entries})
            self._outputs = list(outputs.values())
        return list(self._outputs)

    def _output(self, entry: Entry, rows: NDArray[Any]) -> Output:
        row = rows[entry.slot]
        num_drafts = self._batch.config.num_drafts
        drafts = result.drafts(row[None], num_drafts)[0]
        at = result.AT
        match = (int(row[at["match"]]), int(row[at["match_start"]]))
        return Output(
            entry.occupant.request_id,
            result.tokens(row[None], num_drafts)[0, : row[at["count"]]].tolist(),
            int(row[at["reason"]]),
            None if match[0] < 0 else match,
            drafts[: int(np.count_nonzero(drafts >= 0))].tolist(),
            entry.epoch in self._step.stale,
        )
