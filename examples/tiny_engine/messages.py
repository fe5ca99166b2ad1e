"""What the two sides of a split say to each other: frames of bytes, checked as they arrive.

A frame is its length (little-endian uint32, of what follows), a byte for its kind, and the body.
"""

from __future__ import annotations

import struct
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec

import slotline as sl
from examples.tiny_engine.model import VOCAB_SIZE
from examples.tiny_engine.requests import SERVED
from examples.tiny_engine.scheduler import Sequence

PEER, REQUEST, ABORT, HANDOVER, BLOCK, FINISHED, END = b"P", b"R", b"A", b"H", b"B", b"F", b"E"
KINDS = PEER + REQUEST + ABORT + HANDOVER + BLOCK + FINISHED + END
MAX_FRAME = 1 << 24
MAX_REASON = 1000
_LENGTH = struct.Struct("<I")
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
Token = Annotated[int, msgspec.Meta(ge=0, lt=VOCAB_SIZE)]
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
    """A request for the prefill side: a new one, or one that the decode side preempted (rule D1).

    From ``stop_seqs`` on the fields are what the engine serves of SamplingParams; other values it has refused.
    """

    request_id: str
    index: Int64
    """Its age; with the id it names one request for ever, though a client may use the id again."""
    prompt: list[Int64]
    outputs: list[Int64]
    stop_seqs: list[list[Int64]]
    min_dec_len: Int64
    max_dec_len: Int64 | None
    ignore_eos: bool

    @classmethod
    def of(cls, seq: Sequence) -> RequestMessage:
        values = {name: getattr(seq.sampling, name) for name in SERVED}
        values["stop_seqs"] = [ids.tolist() for ids in seq.sampling.stop_lists]
        return cls(seq.request_id, seq.index, seq.prompt, seq.outputs, **values)

    def sampling(self) -> sl.SamplingParams:
        return sl.SamplingParams(**{name: getattr(self, name) for name in SERVED})


class AbortMessage(msgspec.Struct, frozen=True):
    """The decode side does not want the answer to this request any more."""

    request_id: str
    index: Int64


class HandoverMessage(msgspec.Struct, frozen=True):
    """slotline's record; ``blocks`` frames with the content of the KV cache follow, one for each block."""

    request_id: str
    index: Int64
    blocks: Int64
    record: bytes


class FinishedMessage(msgspec.Struct, frozen=True):
    """A request that ended on the prefill side, or was refused there."""

    request_id: str
    index: Int64
    tokens: list[Token]
    finish_reason: Annotated[str, msgspec.Meta(max_length=MAX_REASON)]
    stop_match: tuple[Int64, Int64] | None


def pack(kind: bytes, message: msgspec.Struct) -> Frame:
    return Frame(kind, msgspec.msgpack.encode(message))


def unpack(frame: Frame, message: type[T]) -> T:
    """The message in a frame. ``SplitError`` if it is not one."""
    try:
        return msgspec.msgpack.decode(frame.body, type=message)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise SplitError(f"not a {message.__name__}: {error}") from error


def unexpected(frame: Frame) -> Any:
    raise SplitError(f"an unexpected frame of kind {frame.kind!r} and {len(frame.body)} bytes")
