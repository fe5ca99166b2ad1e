"""What the two sides of a split say to each other: frames of bytes, checked as they arrive.

A frame is its length (little-endian uint32, of what follows), a byte for its kind, and the body.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple, TypeVar

import msgspec

import slotline as sl
from examples.tiny_engine.scheduler import Sequence

PEER, REQUEST, ABORT, HANDOVER, BLOCK, FINISHED, END = b"P", b"R", b"A", b"H", b"B", b"F", b"E"
KINDS = PEER + REQUEST + ABORT + HANDOVER + BLOCK + FINISHED + END
MAX_FRAME = 1 << 24
_LENGTH = struct.Struct("<I")
T = TypeVar("T", bound=msgspec.Struct)


class SplitError(RuntimeError):
    """The other side has gone, or says what it must not."""


class Frame(NamedTuple):
    kind: bytes
    body: bytes

    def encode(self) -> bytes:
        return _LENGTH.pack(1 + len(self.body)) + self.kind + self.body


class Reader:
    """Cuts a stream of bytes into frames. ``SplitError`` for a length or a kind that no frame has."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    @property
    def is_within(self) -> bool:
        """The bytes end in the middle of a frame."""
        return bool(self._bytes)

    def feed(self, data: bytes) -> list[Frame]:
        self._bytes += data
        frames = []
        while len(self._bytes) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._bytes)
            if not 1 <= length <= MAX_FRAME:
                raise SplitError(
                    f"a frame of {length} bytes, allowed: 1 to {MAX_FRAME}; is this a peer of this program?"
                )
            end = _LENGTH.size + length
            if len(self._bytes) < end:
                break
            kind, body = bytes(self._bytes[_LENGTH.size : _LENGTH.size + 1]), bytes(self._bytes[_LENGTH.size + 1 : end])
            if kind not in KINDS:
                raise SplitError(f"a frame of kind {kind!r}, known: {KINDS.decode()}")
            frames.append(Frame(kind, body))
            del self._bytes[:end]
        return frames


class RequestMessage(msgspec.Struct, frozen=True):
    """A request for the prefill side: a new one, or one that the decode side preempted (rule D1)."""

    request_id: str
    index: int
    prompt: list[int]
    outputs: list[int]
    stop_seqs: list[list[int]]
    min_dec_len: int
    max_dec_len: int | None
    ignore_eos: bool

    @classmethod
    def of(cls, seq: Sequence) -> RequestMessage:
        s = seq.sampling
        stops = [ids.tolist() for ids in s.stop_lists]
        return cls(
            seq.request_id, seq.index, seq.prompt, seq.outputs, stops, s.min_dec_len, s.max_dec_len, s.ignore_eos
        )

    def sampling(self) -> sl.SamplingParams:
        return sl.SamplingParams(
            stop_seqs=self.stop_seqs,
            min_dec_len=self.min_dec_len,
            max_dec_len=self.max_dec_len,
            ignore_eos=self.ignore_eos,
        )


class HandoverMessage(msgspec.Struct, frozen=True):
    """slotline's record; ``blocks`` frames with the content of the KV cache follow, one for each block."""

    request_id: str
    index: int
    blocks: int
    record: bytes


class FinishedMessage(msgspec.Struct, frozen=True):
    """A request that ended on the prefill side."""

    request_id: str
    index: int
    tokens: list[int]
    finish_reason: str
    stop_match: tuple[int, int] | None


def pack(kind: bytes, message: msgspec.Struct) -> Frame:
    return Frame(kind, msgspec.msgpack.encode(message))


def unpack(frame: Frame, message: type[T]) -> T:
    """The message in a frame. ``SplitError`` if it is not one."""
    try:
        return msgspec.msgpack.decode(frame.body, type=message)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise SplitError(f"not a {message.__name__}: {error}") from error


def text(frame: Frame) -> str:
    try:
        return frame.body.decode()
    except UnicodeDecodeError as error:
        raise SplitError(f"not text: {error}") from error


def unexpected(frame: Frame) -> Any:
    raise SplitError(f"an unexpected frame of kind {frame.kind!r} and {len(frame.body)} bytes")
