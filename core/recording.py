"""Recording a batch: every operation with the digest after it, into a file (rule R)."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO
from weakref import WeakKeyDictionary

import numpy as np

from slotline.core import derived, record, recorded
from slotline.core.errors import PacketError
from slotline.core.field import Extra
from slotline.core.redaction import Permutation, Plain
from slotline.core.tasks import DecodeTask, PrefillTask, Request, Task

if TYPE_CHECKING:
    from slotline.core.batch import SlotBatch
    from slotline.core.packet import Packet
    from slotline.core.ticket import Ticket
    from slotline.core.validate import Checked

HEAD, ENTRY, END = b"SLRH", b"SLRE", b"SLRZ"
"""Magic of a recording's parts."""


class Recorder:
    """Writes one record for each operation of a batch. Each digest reads all buffers, so the device is waited for."""

    def __init__(self, batch: SlotBatch, file: BinaryIO, redact: bool) -> None:
        self.batch, self.file, self.records = batch, file, 0
        self.hidden: Permutation | Plain = Permutation(batch.config) if redact else Plain()
        self.token_extras = frozenset(
            rule.name for f in batch.layout if f.token_ids for rule in f.on.values() if isinstance(rule, Extra)
        )
        self.requests: dict[str, tuple[Request, int]] = {}
        """The newest request of each id that was told, and its number."""
        self.told = 0
        self.steps: WeakKeyDictionary[Ticket, int] = WeakKeyDictionary()
        self.prepared = 0
        config = {f.name: getattr(batch.config, f.name) for f in fields(batch.config) if f.init}
        head = recorded.Head(
            config=config,
            fields=tuple(recorded.FieldRecord.of(f) for f in batch.layout),
            fingerprint=batch.layout.fingerprint,
            next_epoch=batch.slots.next_epoch,
            num_blocks=batch.num_blocks,
            redacted=redact,
            version=_version(),
        )
        self._write(record.encode(head, HEAD))

    def _write(self, part: bytes) -> None:
        self.file.write(part)

    def add(self, operation: recorded.Operation) -> None:
        """One record, with the digest of now."""
        entry = recorded.Entry(operation=operation, digest=derived.digest(self.batch, self.hidden.hide))
        self._write(record.encode(entry, ENTRY))
        self.records += 1

    def close(self) -> None:
        self._write(record.encode(recorded.End(records=self.records), END))

    # -- what the operations of a batch tell

    def inserted(self, tasks: Sequence[Task], checked: Checked, packet: Packet) -> None:
        new: list[recorded.RequestRecord] = []
        told: list[recorded.TaskRecord] = []
        for task in self._accepted(tasks, checked):
            number = 0
            if isinstance(task, PrefillTask):
                request, number = self.requests.get(task.request_id, (None, 0))
                if request is not task.request:
                    self.told = number = self.told + 1
                    self.requests[task.request_id] = (task.request, number)
                    new.append(recorded.RequestRecord.of(number, task.request, self.hidden, self.token_extras))
            told.append(recorded.TaskRecord.of(task, number))
        self.add(
            recorded.Insert(
                requests=tuple(new), tasks=tuple(told), packet_bytes=packet.nbytes, segments=len(packet.segments)
            )
        )

    def _accepted(self, tasks: Sequence[Task], checked: Checked) -> list[Task]:
        """The tasks that were inserted; of a request with a fault only those without (``on_invalid="skip"``)."""
        bad = {fault.request_id for fault in checked.faults}
        if not bad:
            return list(tasks)
        released = {request_id for request_id, _ in checked.releases}
        prefilled = {id(task) for task in (*checked.takes.tasks, *checked.chunks.tasks)}

        def good(task: Task) -> bool:
            if task.request_id not in bad:
                return True
            if isinstance(task, PrefillTask):
                return id(task) in prefilled
            return not isinstance(task, DecodeTask) and task.request_id in released

        kept = [task for task in tasks if good(task)]
        table, grown = self.batch.slots, set(checked.tables.slots.tolist())
        for request_id in sorted(bad & set(table.by_id)):
            slot = table.by_id[request_id]
            if slot in grown:  # some of its decode tasks were good: what they led to
                kept.append(DecodeTask(request_id, block_table=table.blocks[slot, : table.num_blocks[slot]]))
        return kept

    def prepared_step(self, step: Ticket, *, packed: bool) -> None:
        self.prepared += 1
        self.steps[step] = self.prepared
        rows = tuple(step.request_ids)
        self.add(recorded.Prepare(step=self.prepared, packed=packed, rows=rows, num_tokens=step.num_tokens))

    def committed(self, step: Ticket, tokens: Any, counts: Any) -> None:
        ids, number = self.hidden.of(self._host(tokens)), self._host(counts)
        self.add(recorded.Commit(step=self._step(step), tokens=_bytes(ids), counts=_bytes(number)))

    def committed_drafts(self, step: Ticket, tokens: Any) -> None:
        self.add(recorded.Drafts(step=self._step(step), tokens=_bytes(self.hidden.of(self._host(tokens)))))

    def discarded(self, step: Ticket) -> None:
        if step in self.steps:
            self.add(recorded.Discard(step=self._step(step)))

    def taken(self, step: Ticket) -> None:
        if step in self.steps:
            self.add(recorded.Taken(step=self._step(step)))

    def _step(self, step: Ticket) -> int:
        number = self.steps.get(step)
        if number is None:
            raise PacketError("a step that was prepared before the recording began cannot be recorded")
        return number

    def _host(self, tensor: Any) -> Any:
        return tensor if isinstance(tensor, np.ndarray) else self.batch.backend.read(tensor, "record")


def _bytes(array: Any) -> bytes:
    return np.ascontiguousarray(array, "<i8").tobytes()


def _version() -> str:
    try:
        return version("slotline")
    except PackageNotFoundError:
        return "unknown"


@contextmanager
def record_batch(batch: SlotBatch, path: str | os.PathLike[str], *, redact: bool = True) -> Iterator[Recorder]:
    """Record what is done with ``batch`` inside the ``with`` into the file ``path`` (rule R).

    Each record holds one operation and the digest after it, so the device is waited for at each: for finding faults,
    not for production. ``redact``: token ids are replaced by a permutation of the vocabulary whose key is thrown away;
    request ids, lengths, sampling values, hidden states and other extras stay as they are. A block that
    raises leaves what was recorded so far, without its end.

    Writes past slotline's functions (``async_set_value``, the engine's kernels) are in the digests and in no record,
    so a recording of them does not replay. ``PacketError`` if the batch holds requests or is being recorded already;
    ``OSError`` if the file cannot be written.
    """
    if batch.recorder is not None:
        raise PacketError("the batch is being recorded already")
    if batch.occupied:
        raise PacketError(f"{len(batch.occupied)} slots are taken; begin a recording on an empty batch, see reset()")
    with Path(path).open("wb") as file:
        recorder = Recorder(batch, file, redact)
        batch.recorder = recorder
        try:
            yield recorder
        finally:
            batch.recorder = None
        recorder.close()
