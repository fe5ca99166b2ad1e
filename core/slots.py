"""SlotTable: who owns which slot, since when, and what the host knows of each row (rules S, I7)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from slotline.core.config import BatchConfig
from slotline.core.errors import Fault, TaskError, nearest
from slotline.core.tasks import Request

if TYPE_CHECKING:
    from slotline.core.fetch import Output
    from slotline.core.ticket import Ticket


class Occupant:
    """What the host knows of one request that owns a slot."""

    __slots__ = ("committed", "end", "epoch", "finished", "last", "output", "request", "request_id", "ticket")

    def __init__(self, request: Request, epoch: int, end: int, last: bool, committed: bool) -> None:
        self.request_id = request.request_id
        self.request = request
        self.epoch = epoch
        self.end = end
        """Where the newest chunk ends."""
        self.last = last
        """The newest chunk reaches the end of the history, or the request decodes."""
        self.committed = committed
        """The newest chunk has been committed: there is no prefill to do."""
        self.finished = False
        """The host knows that it has ended; a step that was opened before does not raise its launch bound again."""
        self.ticket: Ticket | None = None
        """The newest step that the request's present epoch is in."""
        self.output: Output | None = None
        """The newest result of the present epoch that was taken; ``export_handover`` reads it."""

    @property
    def in_open_step(self) -> bool:
        ticket = self.ticket
        return ticket is not None and ticket.state == "open"


class SlotTable:
    """The slot map. One owner for each slot, by construction (S7)."""

    def __init__(self, config: BatchConfig) -> None:
        self.size = config.max_num_seqs
        self.occupants: list[Occupant | None] = [None] * self.size
        self.by_id: dict[str, int] = {}
        self.by_epoch: dict[int, int] = {}
        self.bound: NDArray[np.int64] = np.zeros(self.size, np.int64)
        """Launch bound of each row (I7)."""
        self.blocks: NDArray[np.int32] = np.full((self.size, config.max_blocks_per_seq), -1, np.int32)
        """Block table of each row, for appending and for the check of doubles."""
        self.num_blocks: NDArray[np.int32] = np.zeros(self.size, np.int32)
        self.next_epoch = 1
        self.to_prefill: NDArray[np.bool_] = np.zeros(self.size, bool)
        """Rows whose owner has a chunk that is not committed."""
        self._is_free: NDArray[np.bool_] = np.ones(self.size, bool)

    def __iter__(self) -> Iterator[tuple[int, Occupant]]:
        return ((slot, o) for slot, o in enumerate(self.occupants) if o is not None)

    def slot_of(self, request_id: str) -> int:
        """The request's slot; ``TaskError`` if it owns none (S7)."""
        try:
            return self.by_id[request_id]
        except (KeyError, TypeError):
            hint = f"it owns no slot{nearest(request_id, self.by_id)}" if isinstance(request_id, str) else ""
            raise TaskError(
                [Fault(str(request_id), "request_id", request_id, "a request that owns a slot")], [hint]
            ) from None

    def occupant(self, slot: int) -> Occupant:
        found = self.occupants[slot]
        if found is None:
            raise LookupError(f"slot {slot} is free")
        return found

    def free_slots(self) -> list[int]:
        free: list[int] = np.flatnonzero(self._is_free).tolist()
        return free

    def is_free(self, slot: int) -> bool:
        """False too for what is no slot."""
        return 0 <= slot < self.size and bool(self._is_free[slot])

    def lowest_free(self, count: int, more: list[int]) -> list[int]:
        """At most ``count`` free slots, ascending, as if ``more`` were free too."""
        free: list[int] = np.flatnonzero(self._is_free)[:count].tolist()
        return sorted((*free, *more))[:count] if more else free

    def take(self, slots: list[int], occupants: list[Occupant]) -> None:
        """``occupants`` own ``slots`` from now on."""
        for slot, occupant in zip(slots, occupants, strict=True):
            self.occupants[slot] = occupant
            self.by_id[occupant.request_id] = slot
            self.by_epoch[occupant.epoch] = slot
        self.to_prefill[slots] = not occupants[0].committed  # all of one role
        self._is_free[slots] = False

    def vacate(self, slots: list[int]) -> list[Occupant]:
        """End the epochs of the slots' owners (S2)."""
        gone = [self.occupant(slot) for slot in slots]
        for slot, occupant in zip(slots, gone, strict=True):
            self.occupants[slot] = None
            del self.by_id[occupant.request_id]
            del self.by_epoch[occupant.epoch]
        self.bound[slots] = 0
        self.to_prefill[slots] = False
        self.blocks[slots, : self.num_blocks[slots].max(initial=0)] = -1
        self.num_blocks[slots] = 0
        self._is_free[slots] = True
        return gone

    def commit(self, occupants: list[Occupant], now: NDArray[Any]) -> None:
        """Their newest chunks are committed; ``now``: the rows of those that still own one."""
        for occupant in occupants:
            occupant.committed = True
        self.to_prefill[now] = False

    def permute(self, dst: NDArray[np.intp], src: NDArray[np.intp]) -> None:
        """Row ``dst[i]`` becomes what row ``src[i]`` was; the two name the same rows."""
        moved = [self.occupants[s] for s in src]
        for slot, occupant in zip(dst.tolist(), moved, strict=True):
            self.occupants[slot] = occupant
            if occupant is not None:
                self.by_id[occupant.request_id] = slot
                self.by_epoch[occupant.epoch] = slot
        for array in (self.bound, self.blocks, self.num_blocks, self.to_prefill, self._is_free):
            array[dst] = array[src]

    @property
    def has_prefill(self) -> bool:
        """Some row of the next step has a chunk to prefill; rows in an open step do not count."""
        rows = np.flatnonzero(self.to_prefill & (self.bound > 0)).tolist()
        return any(not self.occupant(row).in_open_step for row in rows)
