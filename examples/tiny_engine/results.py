"""What an engine gives: results, counts, and on a prefill engine what it hands over."""

from __future__ import annotations

from dataclasses import dataclass

from examples.tiny_engine.model import EOS

ENDED = ("eos", "stop", "length")
REFUSED = "refused: "


@dataclass(frozen=True, slots=True)
class Result:
    """A request that has ended."""

    request_id: str
    index: int
    """Its age: the order of arrival. It tells two requests of one id apart."""
    tokens: list[int]
    finish_reason: str
    """``eos``, ``stop``, ``length``, ``aborted``, or ``refused: `` and why."""
    stop_match: tuple[int, int] | None = None
    """(index of the stop sequence, generated token that it starts at)"""

    @property
    def output(self) -> bytes:
        return bytes(t for t in self.tokens if t != EOS)


@dataclass(frozen=True, slots=True)
class Handed:
    """What a prefill engine gives to a decode engine: slotline's record and the content of the blocks."""

    request_id: str
    index: int
    record: bytes
    blocks: list[bytes]


class Counts:
    """What an engine did. ``offered`` and ``accepted`` count drafts by position."""

    def __init__(self, num_drafts: int) -> None:
        self.steps = 0
        self.decode_rows = 0
        """Rows that decoded, summed over the steps."""
        self.decode_tokens = 0
        """Tokens that they gave."""
        self.cut = 0
        """Groups of accepted tokens that a stop has shortened."""
        self.offered, self.accepted = [0] * num_drafts, [0] * num_drafts

    def add_row(self, offered: int, accepted: int, kept: int) -> None:
        """A decoding row: drafts offered, tokens accepted with the target's own, and kept by the stop rule."""
        self.decode_rows += 1
        self.decode_tokens += kept
        self.cut += kept < accepted
        for i in range(offered):
            self.offered[i] += 1
            self.accepted[i] += accepted > i + 1
