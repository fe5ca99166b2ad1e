"""What the two sides of a prefill/decode split must agree on, and the check when they meet (rule D5)."""

from __future__ import annotations

from typing import Any

import msgspec

from slotline.core import record
from slotline.core.config import ROLES, SPEC_METHODS
from slotline.core.errors import LayoutError, PacketError
from slotline.core.field import DTYPES
from slotline.core.layout import BufferLayout

MAGIC = b"SLPE"
_INT32_MAX = 2**31 - 1
_FLOATS = tuple(name for name in DTYPES if "float" in name)
_SIZES = ("vocab_size", "max_model_len", "block_size")
_ADVICE = {
    "vocab_size": "one side's token ids mean nothing to the other; serve one model with one vocabulary",
    "max_model_len": "each side must hold every request of the other; choose one max_model_len",
    "block_size": "KV blocks are copied as they are; choose one block_size",
    "eos_token_ids": "both sides test the first token (D4); choose one set of eos_token_ids",
    "hidden_size": "the hidden-state row of one side does not fit the other; choose one hidden_size, or None on both",
    "hidden_dtype": "the hidden-state row is copied as it is; choose one hidden_dtype",
}
"""What must be equal, and why."""


class Peer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a side tells when it meets another. ``PacketError`` for values that no layout has."""

    role: str
    spec_method: str
    vocab_size: int
    max_model_len: int
    block_size: int
    eos_token_ids: tuple[int, ...]
    """Ascending, each once."""
    hidden_size: int | None
    """Width of ``mtp.first_token_hidden_states``; None: the layout does not keep it."""
    hidden_dtype: str | None

    def __post_init__(self) -> None:
        _one_of("role", self.role, ROLES)
        _one_of("spec_method", self.spec_method, SPEC_METHODS)
        for name in _SIZES:
            _bounded(name, getattr(self, name), 1, _INT32_MAX)
        for token in self.eos_token_ids:
            _bounded("eos_token_ids", token, 0, self.vocab_size - 1)
        if list(self.eos_token_ids) != sorted(set(self.eos_token_ids)):
            raise PacketError(f"peer: eos_token_ids is {self.eos_token_ids}, allowed: ascending, each once")
        if (self.hidden_size is None) != (self.hidden_dtype is None):
            raise PacketError(
                f"peer: hidden_size is {self.hidden_size}, hidden_dtype is {self.hidden_dtype}; allowed: both or none"
            )
        if self.hidden_size is not None and self.hidden_dtype is not None:
            _bounded("hidden_size", self.hidden_size, 1, _INT32_MAX)
            _one_of("hidden_dtype", self.hidden_dtype, _FLOATS)

    @classmethod
    def of(cls, layout: BufferLayout) -> Peer:
        """What ``layout`` is."""
        config = layout.config
        hidden = layout.by_key("mtp.first_token_hidden_states")
        return cls(
            role=config.role,
            spec_method=config.spec_method,
            vocab_size=config.vocab_size,
            max_model_len=config.max_model_len,
            block_size=config.block_size,
            eos_token_ids=tuple(sorted(set(config.eos_token_ids))),
            hidden_size=None if hidden is None else config.hidden_size,
            hidden_dtype=None if hidden is None else hidden.dtype,
        )

    def encode(self) -> bytes:
        """For the other side, which calls ``check_peer`` with it. Format: ``docs/handover.md``."""
        return record.encode(self, MAGIC)

    @classmethod
    def decode(cls, data: record.Buffer) -> Peer:
        """The peer in ``data``; ``PacketError`` for anything else than a whole one of this version."""
        return record.decode(data, MAGIC, cls, "a peer")


def check_peer(layout: BufferLayout, peer: Peer | record.Buffer) -> None:
    """Whether a batch of ``layout`` can hand requests to, or take them from, the side that sent ``peer``.

    ``LayoutError`` naming every difference with both values and what to change; ``PacketError`` for bytes that are
    not a peer.
    """
    there = peer if isinstance(peer, Peer) else Peer.decode(peer)
    here = Peer.of(layout)
    found = [
        f"{name} is {_shown(here, name)} here and {_shown(there, name)} there ({advice})"
        for name, advice in _ADVICE.items()
        if getattr(here, name) != getattr(there, name)
    ]
    if {here.role, there.role} != {"prefill", "decode"}:
        found.insert(0, f"role is {here.role!r} here and {there.role!r} there (one side prefills, the other decodes)")
    else:
        found += _speculation(here, there)
    if found:
        raise LayoutError("the two sides cannot work together: " + "; ".join(found))


def _speculation(here: Peer, there: Peer) -> list[str]:
    """D2: an MTP decode side begins with a draft that only an MTP prefill side makes."""
    decode, prefill = (here, there) if here.role == "decode" else (there, here)
    if decode.spec_method != "mtp" or prefill.spec_method == "mtp":
        return []
    return [
        f"spec_method is {here.spec_method!r} here and {there.spec_method!r} there "
        "(role decode with 'mtp' needs a first draft and so a prefill side with 'mtp')"
    ]


def _shown(peer: Peer, name: str) -> Any:
    value = getattr(peer, name)
    return list(value) if isinstance(value, tuple) else value


def _bounded(name: str, value: int, low: int, high: int) -> None:
    if not low <= value <= high:
        raise PacketError(f"peer: {name} is {value}, allowed: {low} to {high}")


def _one_of(name: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise PacketError(f"peer: {name} is {value!r}, allowed: {', '.join(allowed)}")
