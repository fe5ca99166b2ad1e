"""Playing a recording on a backend, with the digest compared after each record (rule R)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from slotline.core import recorded
from slotline.core.commit import commit_step
from slotline.core.derived import Difference
from slotline.core.drafts import commit_drafts
from slotline.core.errors import ConfigError, DeviceError, LayoutError, PacketError, TaskError
from slotline.core.host_memory import machine_bytes
from slotline.core.insert import insert_tasks
from slotline.core.recorded_requests import Told
from slotline.core.recording_file import SLACK, Recording
from slotline.core.step import Step, prepare_step

if TYPE_CHECKING:
    from slotline.core.backend import Backend
    from slotline.core.tasks import Request
    from slotline.core.ticket import Ticket

_REFUSALS = (TaskError, LayoutError, ConfigError, ValueError, TypeError, KeyError, OverflowError)
"""What slotline's own functions raise for a record that does not fit the state before it."""


class Played(NamedTuple):
    """A record after it was played."""

    number: int
    """From 1."""
    kind: str
    expected: str
    digest: str


class Player:
    """A batch that does what a recording says. Memory: the layout's buffers, the requests that own a slot, and the
    steps that later records may name.

    ``PacketError`` if the machine cannot have the buffers.
    """

    def __init__(self, recording: Recording, backend: Backend) -> None:
        from slotline.core.batch import SlotBatch  # a batch is recorded, so it imports what records are

        self.recording, self.config = recording, recording.layout.config
        head, present = recording.head, machine_bytes()
        if present is not None and recording.nbytes > present:
            raise PacketError(
                f"a recording's head: its batch needs {recording.nbytes} bytes, this machine has {present}"
            )
        try:
            self.batch = SlotBatch(recording.layout, backend, only=head.only)
        except (MemoryError, OverflowError, ValueError) as error:
            raise PacketError(
                f"a recording's head: its {recording.layout.nbytes} bytes of buffers cannot be had here: {error}"
            ) from error
        self.batch.slots.next_epoch = head.next_epoch
        self.batch.num_blocks = head.num_blocks
        self.reached = (0, "")
        """The record that is played or was played last, and its kind."""
        self.refused = False
        """It could not be played on the records before it."""
        self._told = Told.by(recording.layout)
        self._requests: dict[int, Request] = {}
        self._newest = self._prepared = 0
        self._steps: dict[int, Ticket] = {}
        self._held = 0
        """Bytes of the steps, about."""

    def play(self) -> Iterator[Played]:
        """Play record after record. ``PacketError`` naming one that cannot follow on those before it."""
        for number, entry in enumerate(self.recording, 1):
            kind = kind_of(entry.operation)
            self.reached = (number, kind)
            try:
                self._do(entry.operation)
                digest = self.batch.digest()  # here too a device may say that it failed
            except DeviceError:
                self.refused = True
                raise
            except (PacketError, *_REFUSALS) as error:
                self.refused = True
                raise PacketError(f"record {number} ({kind}) does not fit: {error}") from error
            yield Played(number, kind, entry.digest, digest)

    def _do(self, operation: recorded.Operation) -> None:
        batch, slots, width = self.batch, self.config.max_num_seqs, self.config.num_drafts + 1
        match operation:
            case recorded.Insert():
                self._insert(operation)
            case recorded.Prepare():
                self._prepare(operation)
            case recorded.Commit():
                tokens, counts = _numbers(operation.tokens, (slots, width)), _numbers(operation.counts, (slots,))
                commit_step(batch, self._step(operation.step), tokens, counts)
            case recorded.Drafts():
                commit_drafts(batch, self._step(operation.step), _numbers(operation.tokens, (slots, width - 1)))
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

    def _insert(self, operation: recorded.Insert) -> None:
        batch = self.batch
        operation.check(self.config)
        known = dict(self._requests)
        for told in operation.requests:
            self._newest += 1
            if told.number != self._newest:
                raise PacketError(f"request {told.number} is told, allowed: {self._newest}, the next")
            known[told.number] = told.request(batch.layout, self._told)
        tasks = [t.task(known, self.config.max_blocks_per_seq) for t in operation.tasks]
        insert_tasks(batch, tasks)
        newest = {request.request_id: number for number, request in known.items()}
        self._requests = {n: known[n] for name, n in newest.items() if name in batch}

    def _prepare(self, operation: recorded.Prepare) -> None:
        batch, config = self.batch, self.config
        for number in operation.gone:
            if self._steps.pop(number, None) is None:
                raise PacketError(f"step {number} is gone, allowed: a step that is known")
            self._held -= self._cost
        if operation.step != self._prepared + 1:
            raise PacketError(f"step {operation.step} is prepared, allowed: {self._prepared + 1}, the next")
        if self._held > 2 * self.recording.size + self.recording.layout.nbytes + SLACK:
            raise PacketError(f"{len(self._steps)} steps are kept, more than the file and its buffers pay for")
        if operation.packed:
            # More than all rows may have is padding, which no buffer depends on.
            most = config.max_num_seqs * max(config.max_chunk_tokens, config.num_drafts + 1)
            num_tokens = min(operation.num_tokens, 1 << (most - 1).bit_length())
            step: Ticket = prepare_step(batch, rows=operation.rows, num_tokens=num_tokens)
        else:
            step = batch.ticket(operation.rows)
        if tuple(step.request_ids) != operation.rows:
            if step.state == "open":
                step.discard()
            raise PacketError(f"the step holds {step.request_ids}, recorded: {list(operation.rows)}")
        if isinstance(step, Step):
            del step.arrays  # the recorded model has read them
        self._prepared += 1
        self._steps[operation.step] = step
        self._held += self._cost

    @property
    def _cost(self) -> int:
        """Bytes of one step: its lists, lengths and result."""
        return self.config.max_num_seqs * (160 + 8 * self.config.num_drafts) + 1024

    def _step(self, number: int) -> Ticket:
        if number not in self._steps:
            raise PacketError(f"step {number} is not known: never prepared, or gone")
        return self._steps[number]


def _numbers(raw: bytes, shape: tuple[int, ...]) -> Any:
    cells = int(np.prod(shape, dtype=np.int64))
    if len(raw) != 8 * cells:
        raise PacketError(f"{len(raw)} bytes, allowed: {8 * cells}, int64 of shape {list(shape)}")
    return np.frombuffer(raw, "<i8").astype(np.int64).reshape(shape)


def kind_of(operation: recorded.Operation) -> str:
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
    refused: str | None = None
    """Why the backend's batch cannot do what NumPy's can: what steps decided there differs, not the buffers."""


def verify(recording: Recording | str | os.PathLike[str], backend: Backend, reference: Backend) -> Verdict:
    """Play the recording on ``backend`` and compare digests after each record (rule R).

    At the first that differs both ``backend`` and ``reference`` (``cpu`` on NumPy) play up to it, and the first cell in
    which they differ is told. ``PacketError`` for what is no recording, ``DeviceError`` if the device fails.
    """
    if not isinstance(recording, Recording):
        recording = Recording(recording)
    player, failed = Player(recording, backend), None
    try:
        for played in player.play():
            if played.digest != played.expected:
                break
        else:
            return Verdict(player.reached[0], None, "", None)
    except (PacketError, DeviceError) as error:
        if not player.refused:
            raise
        failed = error
    number, kind = player.reached
    other = _played_until(number, recording, reference)  # raises where it is the recording's fault
    if isinstance(failed, DeviceError):
        raise failed
    found = other.batch.diff(player.batch)
    return Verdict(number, number, kind, found[0] if found else None, None if failed is None else str(failed))


def _played_until(number: int, recording: Recording, reference: Backend) -> Player:
    player = Player(recording, reference)
    try:
        for reached in player.play():
            if reached.number == number:
                break
    except DeviceError as error:  # NumPy does not fail: fields that contradict each other, which no batch can have
        reached_number, kind = player.reached
        raise PacketError(f"record {reached_number} ({kind}): no batch of its layout can do it: {error}") from error
    return player
