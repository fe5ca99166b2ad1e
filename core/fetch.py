"""Taking a step's results to the host (rule L6)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slotline.core import result
from slotline.core.device import Download
from slotline.core.ticket import require_step
from slotline.core.trust import device_work

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
    """A result on its way: copies that were started when it was asked for. Nothing later changes it."""

    def __init__(self, batch: SlotBatch, step: Ticket, extra: Mapping[str, Any]) -> None:
        require_step(step, "committed", "fetch", batch)
        self._batch, self._step = batch, step
        self._extra = {name: self._started(name, tensor) for name, tensor in extra.items()}
        self._download = batch.backend.download(step.result, "fetch", batch.stats)
        self._outputs: list[Output] | None = None
        step.fetches += 1
        self._order = step.fetches

    def _started(self, name: str, tensor: Any) -> Download:
        batch = self._batch
        try:
            shape = tensor.shape if isinstance(tensor, np.ndarray) else batch.backend.inspect(tensor).shape
        except TypeError as error:
            raise TypeError(f"extra {name!r}: {error}") from None
        if not shape or shape[0] != batch.config.max_num_seqs:
            needed = f"[{batch.config.max_num_seqs}, ...], a row for each slot"
            raise ValueError(f"extra {name!r} has shape {list(shape)}, needed: {needed}")
        if isinstance(tensor, np.ndarray):
            return Download(tensor.copy())
        return batch.backend.download(tensor, "fetch", batch.stats)

    @property
    def is_done(self) -> bool:
        """The copy has landed; ``result()`` will not wait."""
        return self._download.is_done and all(d.is_done for d in self._extra.values())

    def result(self) -> list[Output]:
        """One entry for each row of the step, in its order; waits for the copy. The lists are the caller's own.

        A row of length 0 gives no entry, a chunk that is not last an empty one. The first call also tells the host
        which rows have ended (I7) and fills ``input_ids_cpu`` (M7). Nothing is released.
        """
        if self._outputs is None:
            with device_work(self._batch.backend, "fetch"):
                rows = self._download.array()
            length, step_idx = result.column(rows, "length"), result.column(rows, "step_idx")
            entries = [e for e in self._step.entries if length[e.slot] > 0]
            outputs = {e.epoch: self._output(e, rows) for e in entries}
            generated = {e.epoch: int(step_idx[e.slot]) for e in entries}
            self._batch.take_result(self._step, self._order, outputs, generated)
            with device_work(self._batch.backend, "fetch"):
                extra = {name: d.array() for name, d in self._extra.items()}
            self._outputs = [
                outputs[e.epoch]._replace(extra={n: np.array(a[e.slot]) for n, a in extra.items()}) for e in entries
            ]
        return [o._replace(tokens=list(o.tokens), draft_tokens=list(o.draft_tokens)) for o in self._outputs]

    def _output(self, entry: Entry, rows: NDArray[Any]) -> Output:
        row, num_drafts, at = rows[entry.slot], self._batch.config.num_drafts, result.AT
        drafts = result.drafts(rows, num_drafts)[entry.slot]
        match = (int(row[at["match"]]), int(row[at["match_start"]]))
        return Output(
            entry.occupant.request_id,
            result.tokens(rows, num_drafts)[entry.slot, : row[at["count"]]].tolist(),
            int(row[at["reason"]]),
            None if match[0] < 0 else match,
            drafts[: int(np.count_nonzero(drafts >= 0))].tolist(),
            entry.epoch in self._step.stale,
        )
