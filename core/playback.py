"""Reading a recording and playing it on a backend, with the digest compared after each record (rule R)."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from slotline.core import record, recorded
from slotline.core.commit import commit_step
from slotline.core.derived import Difference
from slotline.core.drafts import commit_drafts
from slotline.core.errors import ConfigError, LayoutError, PacketError, TaskError
from slotline.core.insert import insert_tasks
from slotline.core.recording import END, ENTRY, HEAD
from slotline.core.step import prepare_step

if TYPE_CHECKING:
    from slotline.core.backend import Backend
    from slotline.core.layout import BufferLayout
    from slotline.core.tasks import Request
    from slotline.core.ticket import Ticket

_REFUSALS = (TaskError, LayoutError, ConfigError, ValueError, TypeError, KeyError, OverflowError)
"""What slotline's own functions raise for a record that does not fit the state before it."""


class Recording:
    """A recording in a file. The file is mapped, not read: no more memory is taken than a part of it needs.

    ``PacketError`` for anything that is not a whole head; ``OSError`` if the file cannot be read.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        with self.path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size < record.HEADER.size:
                raise PacketError(f"a recording has at least {record.HEADER.size} bytes, {self.path.name} has {size}")
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        with memoryview(self._map) as view:
            self.head, self._first = _part(view, 0, HEAD, recorded.Head, "a recording's head")
        try:
            self.layout: BufferLayout = self.head.layout()
        except (*_REFUSALS, RecursionError) as error:
            raise PacketError(f"a recording's head: {error}") from error
        vocab, blocks = self.layout.config.vocab_size, self.head.num_blocks
        if self.head.next_epoch < 1 or (blocks is not None and not 1 <= blocks < 2**31):
            raise PacketError(
                f"a recording's head: next_epoch {self.head.next_epoch}, num_blocks {blocks}, allowed: 1 and more"
            )
        self.vocab_size = vocab

    def __iter__(self) -> Iterator[recorded.Entry]:
        """The records in order. ``PacketError`` naming the first that is broken, or if the end is missing."""
        at, count = self._first, 0
        with memoryview(self._map) as view:
            while bytes(view[at : at + 4]) != END:
                what = f"record {count + 1}"
                if at >= len(view):
                    raise PacketError(f"the recording was cut off behind record {count}: its end is missing")
                entry, at = _part(view, at, ENTRY, recorded.Entry, what)
                count += 1
                yield entry
            end, at = _part(view, at, END, recorded.End, "a recording's end")
            if end.records != count or at != len(view):
                behind = f"{len(view) - at} bytes behind it, allowed: 0"
                raise PacketError(f"a recording's end: it says {end.records} records, found {count}; {behind}")


def _part(view: memoryview, at: int, magic: bytes, kind: Any, what: str) -> tuple[Any, int]:
    """The part at ``at``, and where the next begins; nothing of it is copied but the values in it."""
    if len(view) - at < record.HEADER.size:
        raise PacketError(f"{what}: the file ends after {len(view) - at} bytes of it")
    found, version, flags, size, checksum = record.HEADER.unpack_from(view, at)
    begin = at + record.HEADER.size
    if found != magic:
        raise PacketError(f"not {what}: it begins with {bytes(found)!r}, not {magic!r}")
    if (version, flags) != (record.VERSION, 0):
        raise PacketError(f"{what}: version {version}, flags {flags}; this slotline reads version {record.VERSION}")
    if size > len(view) - begin or size > record.MAX_BYTES:
        raise PacketError(
            f"{what}: it says {size} bytes, the file has {len(view) - begin}, allowed: {record.MAX_BYTES}"
        )
    with view[begin : begin + size] as body:
        if checksum != record.checksum(body):
            raise PacketError(f"{what}: the checksum does not fit its {size} bytes; record or copy the file again")
        try:
            return msgspec.msgpack.decode(body, type=kind), begin + size
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, PacketError) as error:
            raise PacketError(f"{what}: {error}") from error


class Played(NamedTuple):
    """A record after it was played."""

    number: int
    """From 1."""
    kind: str
    expected: str
    digest: str


class Player:
    """A batch that does what a recording says. Memory: the layout's buffers, and the recording's open steps."""

    def __init__(self, recording: Recording, backend: Backend) -> None:
        from slotline.core.batch import SlotBatch  # a batch is recorded, so it imports what records are

        self.recording = recording
        self.batch = SlotBatch(recording.layout, backend)
        self.batch.slots.next_epoch = recording.head.next_epoch
        self.batch.num_blocks = recording.head.num_blocks
        self._requests: dict[int, Request] = {}
        self._steps: dict[int, Ticket] = {}

    def play(self) -> Iterator[Played]:
        """Play record after record. ``PacketError`` naming one that cannot follow on those before it."""
        for number, entry in enumerate(self.recording, 1):
            kind = _kind(entry.operation)
            try:
                self._do(entry.operation)
            except PacketError as error:
                raise PacketError(f"record {number} ({kind}): {error}") from error
            except _REFUSALS as error:
                raise PacketError(f"record {number} ({kind}) does not fit: {error}") from error
            yield Played(number, kind, entry.digest, self.batch.digest())

    def _do(self, operation: recorded.Operation) -> None:
        batch, config = self.batch, self.batch.config
        match operation:
            case recorded.Insert():
                new = {r.number: r.request(config.vocab_size) for r in operation.requests}
                self._requests |= new
                insert_tasks(batch, [t.task(self._requests) for t in operation.tasks])
                self._forget()
            case recorded.Prepare():
                self._prepare(operation)
            case recorded.Commit():
                tokens = _numbers(operation.tokens, (config.max_num_seqs, config.num_drafts + 1))
                commit_step(
                    batch, self._step(operation.step), tokens, _numbers(operation.counts, (config.max_num_seqs,))
                )
            case recorded.Drafts():
                tokens = _numbers(operation.tokens, (config.max_num_seqs, config.num_drafts))
                commit_drafts(batch, self._step(operation.step), tokens)
            case recorded.Discard():
                self._step(operation.step).discard()
            case recorded.Taken():
                batch.fetch(self._step(operation.step)).result()
            case recorded.Swap():
                batch.swap(operation.i, operation.j)
            case recorded.Condense():
                batch.condense()
            case recorded.Reset():
                batch.reset()
            case recorded.NumBlocks():
                batch.set_num_blocks(operation.num_blocks)

    def _prepare(self, operation: recorded.Prepare) -> None:
        config = self.batch.config
        most = config.max_num_seqs * max(config.max_chunk_tokens, config.num_drafts + 1)
        if operation.step in self._steps or not 0 <= operation.num_tokens <= max(4 * most, 1 << 20):
            raise PacketError(
                f"step {operation.step} of {operation.num_tokens} tokens, allowed: a new step, {4 * most} tokens"
            )
        if operation.packed:
            step: Ticket = prepare_step(self.batch, rows=operation.rows, num_tokens=operation.num_tokens)
        else:
            step = self.batch.ticket(operation.rows)
        if tuple(step.request_ids) != operation.rows:
            raise PacketError(f"the step holds {step.request_ids}, recorded: {list(operation.rows)}")
        self._steps[operation.step] = step

    def _step(self, number: int) -> Ticket:
        if number not in self._steps:
            raise PacketError(f"step {number} was never prepared")
        return self._steps[number]

    def _forget(self) -> None:
        """Requests that own no slot any more are told again when they come back."""
        owned = {o.request for _, o in self.batch.slots}
        newest = max(self._requests, default=0)
        self._requests = {n: r for n, r in self._requests.items() if r in owned or n > newest - 4096}


def _numbers(raw: bytes, shape: tuple[int, ...]) -> Any:
    cells = int(np.prod(shape, dtype=np.int64))
    if len(raw) != 8 * cells:
        raise PacketError(f"{len(raw)} bytes, allowed: {8 * cells}, int64 of shape {list(shape)}")
    return np.frombuffer(raw, "<i8").astype(np.int64).reshape(shape)


def _kind(operation: recorded.Operation) -> str:
    return str(type(operation).__struct_config__.tag)


class Verdict(NamedTuple):
    """What ``verify`` found."""

    records: int
    """That were played."""
    record: int | None
    """The first whose digest differs; None: none does."""
    kind: str
    difference: Difference | None
    """Its first differing cell, left what NumPy has, right what the backend has; None: the two agree, so the recording
    itself differs from both."""


def verify(path: str | os.PathLike[str], backend: Backend, reference: Backend) -> Verdict:
    """Play the recording on ``backend`` and compare digests after each record (rule R).

    At the first that differs both ``backend`` and ``reference`` (``cpu`` on NumPy) play up to it, and the first cell in
    which they differ is told. ``PacketError`` for what is no recording, ``DeviceError`` if the device fails.
    """
    recording, count = Recording(path), 0
    player = Player(recording, backend)
    for played in player.play():
        count = played.number
        if played.digest != played.expected:
            other = Player(recording, reference)
            for reached in other.play():
                if reached.number == played.number:
                    break
            found = other.batch.diff(player.batch)
            return Verdict(count, played.number, played.kind, found[0] if found else None)
    return Verdict(count, None, "", None)
