"""The reference's state: arrays, owners, launch bounds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slotline.core.layout import BufferLayout
from slotline.core.standard import target_layout
from slotline.core.tasks import Request
from slotline.testing import reference_rules as rules


class Mismatch(NamedTuple):
    """The first difference: expected is the reference's."""

    field: str
    slot: int | None
    request_id: str | None
    cell: int | None
    expected: Any
    got: Any


@dataclass
class Owner:
    """A request in its slot."""

    request: Request
    epoch: int
    start: int = 0
    end: int = 0
    pending: bool = False
    """Its newest chunk is not committed yet."""
    last: bool = False
    blocks: list[int] = field(default_factory=list)
    bound: int = 0
    ticket: RefTicket | None = None


class RefRow:
    """One row of a step: whose it was, and what became of it."""

    def __init__(self, slot: int, owner: Owner, length: int) -> None:
        self.slot, self.owner, self.length = slot, owner, length
        self.epoch = owner.epoch
        self.request = owner.request
        self.last = owner.last
        self.tokens: list[int] = []
        self.reason = 0
        self.match: tuple[int, int] | None = None
        self.drafts: list[int] = []
        self.stale = False
        self.goes_on = False
        self.step_idx = 0


class RefTicket:
    def __init__(self, rows: list[RefRow]) -> None:
        self.rows = rows
        self.state = "open"

    def discard(self) -> None:
        self.state = "discarded"


class ReferenceState:
    """Arrays, owners and launch bounds."""

    def __init__(self, layout: BufferLayout) -> None:
        self.layout, self.config = layout, layout.config
        self.arrays: dict[str, NDArray[Any]] = {
            f.name: np.full(layout.shape(f.name), f.fill, np.dtype(f.dtype)) for f in layout
        }
        standard = {f.key for f in target_layout(self.config)}
        self.own = [f for f in layout if f.key not in standard and not f.key.startswith("mtp.")]
        self.owners: list[Owner | None] = [None] * self.config.max_num_seqs
        self.next_epoch = 1
        self.num_blocks = self.config.num_blocks
        self.stale = 0

    # -- looking

    def row(self, name: str, slot: int) -> Any:
        """The row of a field as a view, or None if the layout lacks the field."""
        if name not in self.arrays:
            return None
        axis = self.layout[name].slot_axis
        return None if axis is None else rules.row_of(self.arrays[name], slot, axis)

    def put(self, name: str, slot: int, value: Any) -> None:
        """Set every cell of a row, or the leading ones if ``value`` is a list; the others get the fill."""
        row = self.row(name, slot)
        if row is None:
            return
        if isinstance(value, (list, np.ndarray)):
            row[...] = self.layout[name].fill
            row[: len(value)] = value
        else:
            row[...] = value

    def slot_map(self) -> dict[str, int]:
        return {o.request.request_id: s for s, o in enumerate(self.owners) if o is not None}

    @property
    def launch_tokens(self) -> int:
        return sum(o.bound for o in self.owners if o is not None)

    @property
    def num_active(self) -> int:
        return sum(1 for o in self.owners if o is not None and o.bound > 0)

    @property
    def has_prefill(self) -> bool:
        return any(
            o is not None and o.pending and o.bound > 0 and not (o.ticket is not None and o.ticket.state == "open")
            for o in self.owners
        )

    def lengths(self, slot: int, **values: int) -> None:
        names = {"encoder": "seq_lens_encoder", "decoder": "seq_lens_decoder", "this_time": "seq_lens_this_time"}
        for key, value in values.items():
            for prefix in ("", "mtp."):
                self.put(prefix + names.get(key, key), slot, value)
