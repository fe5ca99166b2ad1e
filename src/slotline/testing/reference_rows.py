"""What the reference remembers of each row and each step, and the stop rule as a plain matcher (rules T, S, L)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from slotline.core.tasks import Request

NONE, EOS, STOP, LENGTH, HANDOVER = range(5)


def stop_rule(
    output_before: Sequence[int],
    accepted: Sequence[int],
    min_dec_len: int,
    max_dec_len: int,
    eos_ids: Sequence[int],
    ignore_eos: bool,
    stop_seqs: Sequence[Sequence[int]],
) -> tuple[int, int, tuple[int, int] | None]:
    """(accepted tokens kept, reason, match) of rule T, token by token."""
    output = list(output_before)
    for index, token in enumerate(accepted):
        output.append(token)
        t = len(output)
        if t < min_dec_len:
            continue
        if token in eos_ids and not ignore_eos:
            return index + 1, EOS, None
        for number, seq in enumerate(stop_seqs):
            n = len(seq)
            if 0 < n <= t and output[t - n :] == list(seq):
                return index + 1, STOP, (number, t - n)
        if t >= max_dec_len:
            return index + 1, LENGTH, None
    return len(accepted), NONE, None


class RefEnded(NamedTuple):
    """A request that its handed-over token ended (D4)."""

    token: int
    finish_reason: int
    stop_match: tuple[int, int] | None


class RefReceipt(NamedTuple):
    """What an insertion did (I7)."""

    slots: dict[str, int]
    epochs: dict[str, int]
    ended: dict[str, RefEnded]
    released: tuple[str, ...]
    cut: dict[str, int]
    launch_tokens: int
    num_active: int
    has_prefill: bool


class RefOutput(NamedTuple):
    """One entry of a fetched result (L6)."""

    request_id: str
    tokens: list[int]
    finish_reason: int
    stop_match: tuple[int, int] | None
    draft_tokens: list[int]
    stale: bool
    extra: Mapping[str, Any] = {}
    """What rode along; the reference has nothing of its own."""


class Mismatch(NamedTuple):
    """The first difference between the reference and a batch."""

    field: str
    slot: int | None
    request_id: str | None
    cell: int | None
    expected: Any
    got: Any


@dataclass
class RefRow:
    """One request in its slot, as plain numbers."""

    request: Request
    epoch: int
    prompt: list[int]
    output: list[int]
    blocks: list[int]
    stops: list[list[int]]
    min_dec_len: int
    max_dec_len: int
    ignore_eos: bool
    start: int = 0
    end: int = 0
    last: bool = False
    """The newest chunk reaches the end of the history, or the row decodes."""
    length: int = 0
    encoder: int = 0
    decoder: int = 0
    bound: int = 0
    committed: bool = False
    known_finished: bool = False
    ticket: RefTicket | None = None

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def in_open_step(self) -> bool:
        return self.ticket is not None and self.ticket.state == "open"


@dataclass
class RefEntry:
    """A row of a step: as it was when the step was prepared, then what the commit decided."""

    slot: int
    row: RefRow
    length: int
    last: bool
    step_idx: int
    prefill: bool
    start: int
    """seq_lens_decoder before the commit."""
    end: int
    """Where the row's newest chunk ended; a continuing chunk moves it."""
    tokens: list[int] = field(default_factory=list)
    reason: int = NONE
    match: tuple[int, int] | None = None
    drafts: list[int] = field(default_factory=list)
    goes_on: bool = False
    stale: bool = False
    former: RefTicket | None = None
    """The row's newest step before this one."""


@dataclass
class RefTicket:
    """The rows of one step."""

    slots: list[int]
    entries: list[RefEntry]
    state: str = "open"

    @property
    def request_ids(self) -> list[str]:
        return [e.row.request_id for e in self.entries]

    @property
    def epochs(self) -> list[int]:
        return [e.row.epoch for e in self.entries]

    def discard(self) -> None:
        """As if it had never been prepared (L3)."""
        self.state = "discarded"
        for e in self.entries:
            if e.row.ticket is self:
                e.row.ticket = e.former
