"""Recording a batch: every operation with the digest after it, into a file (rule R)."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from slotline.core import derived, record, recorded
from slotline.core.errors import PacketError, SlotlineError
from slotline.core.recorded_requests import RequestRecord, TaskRecord, Told
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
    """Writes one record for each operation of a batch. Each digest reads all buffers, so the device is waited for.

    Where a record cannot be written the recording stops, and ``record`` raises at the end of its block: an operation
    that has been done must not look refused.
    """

    def __init__(self, batch: SlotBatch, redact: bool) -> None:
        self.batch, self.records = batch, 0
        self.hidden: Permutation | Plain = Permutation(batch.layout) if redact else Plain()
        self.failed: SlotlineError | OSError | None = None
        """Why the recording stopped."""
        self._file: BinaryIO | None = None
        self._lock = threading.Lock()
        self._shown = Told.by(batch.layout)
        self._requests: dict[str, tuple[Request, int]] = {}
        """The newest request of each owner of a slot, and its number."""
        self._told = self._prepared = 0
        self._steps: WeakKeyDictionary[Ticket, int] = WeakKeyDictionary()
        self._named: set[int] = set()
        """The steps that a player keeps."""
        only = batch.planner.only
        head = recorded.Head(
            config={f.name: getattr(batch.config, f.name) for f in fields(batch.config) if f.init},
            fields=tuple(recorded.FieldRecord.of(f) for f in batch.layout),
            only=None if only is None else tuple(sorted(only)),
            fingerprint=batch.layout.fingerprint,
            next_epoch=batch.slots.next_epoch,
            num_blocks=None if batch.num_blocks is None else min(batch.num_blocks, recorded.MAX_NUMBER),
            redacted=redact,
            version=_version(),
        )
        self._head = record.encode(head, HEAD)

    def open(self, file: BinaryIO) -> None:
        self._file = file
        file.write(self._head)

    def close(self) -> None:
        """Write the end. Raises why the recording stopped, if it did."""
        if self.failed is not None:
            raise self.failed
        self._write(record.encode(recorded.End(records=self.records), END))

    def add(self, operation: recorded.Operation) -> None:
        """One record, with the digest of now."""
        self._add(lambda: operation)

    def _add(self, make: Callable[[], recorded.Operation]) -> None:
        with self._lock:
            if self.failed is not None:
                return
            try:
                entry = recorded.Entry(operation=make(), digest=derived.digest(self.batch, self.hidden.hide))
                self._write(record.encode(entry, ENTRY))
            except (SlotlineError, OSError) as error:
                error.add_note(f"the recording stopped behind record {self.records}; what was done stands")
                self.failed = error
            else:
                self.records += 1

    def _write(self, part: bytes) -> None:
        assert self._file is not None
        self._file.write(part)

    # -- what the operations of a batch tell

    def inserted(self, tasks: Sequence[Task], checked: Checked, packet: Packet) -> None:
        self._add(lambda: self._insert(tasks, checked, packet))

    def _insert(self, tasks: Sequence[Task], checked: Checked, packet: Packet) -> recorded.Insert:
        new: list[RequestRecord] = []
        told: list[TaskRecord] = []
        for task in self._accepted(tasks, checked):
            number = 0
            if isinstance(task, PrefillTask):
                request, number = self._requests.get(task.request_id, (None, 0))
                if request is not task.request:
                    self._told = number = self._told + 1
                    self._requests[task.request_id] = (task.request, number)
                    new.append(RequestRecord.of(number, task.request, self.hidden, self._shown))
            told.append(TaskRecord.of(task, number))
        # What owns no slot any more is told again when it comes back: neither side keeps it.
        self._requests = {name: known for name, known in self._requests.items() if name in self.batch}
        operation = recorded.Insert(
            requests=tuple(new), tasks=tuple(told), packet_bytes=packet.nbytes, segments=len(packet.segments)
        )
        operation.check(self.batch.config)
        return operation

    def _accepted(self, tasks: Sequence[Task], checked: Checked) -> list[Task]:
        """The tasks that were inserted; of a request with a fault only those without (``on_invalid="skip"``)."""
        bad = {fault.request_id for fault in checked.faults}
        if not bad:
            return list(tasks)
        released = {request_id for request_id, _ in checked.releases}
        groups = [g for g in (checked.takes, checked.chunks) if g is not None]
        prefilled = {id(task) for group in groups for task in group.tasks}

        def good(task: Task) -> bool:
            if task.request_id not in bad:
                return True
            if isinstance(task, PrefillTask):
                return id(task) in prefilled
            return not isinstance(task, DecodeTask) and task.request_id in released

        kept = [task for task in tasks if good(task)]
        table, tables = self.batch.slots, checked.tables
        grown = {table.occupant(slot).request_id for slot in tables.slots.tolist()} | tables.prefilled.keys()
        for request_id in sorted(bad & grown):  # some of its decode tasks were good: what they led to
            slot = table.by_id[request_id]
            kept.append(DecodeTask(request_id, block_table=table.blocks[slot, : table.num_blocks[slot]]))
        return kept

    def prepared_step(self, step: Ticket, *, packed: bool) -> None:
        self._prepared += 1
        self._steps[step] = self._prepared
        gone = tuple(sorted(self._named - set(self._steps.values())))
        self._named = set(self._steps.values())
        rows, number = tuple(step.request_ids), self._prepared
        self.add(recorded.Prepare(step=number, packed=packed, rows=rows, num_tokens=step.num_tokens, gone=gone))

    def hosts(self, *arguments: Any) -> list[NDArray[Any]]:
        """A step's arguments on the host, as they are before it: a commit may write into the very buffers."""
        read = self.batch.backend.read
        return [np.array(a) if isinstance(a, np.ndarray) else read(a, "record", self.batch.stats) for a in arguments]

    def committed(self, step: Ticket, tokens: NDArray[Any], counts: NDArray[Any]) -> None:
        """What counts of the arguments; the rest may be anything, text of other requests too."""
        rows = [slot for slot, last in zip(step.inside, step.last, strict=True) if last]
        number, inside = np.zeros(counts.shape, np.int64), np.arange(tokens.shape[1])
        number[rows] = counts[rows]
        said = np.where(inside < number[:, None], tokens, -1)
        if (known := self._steps.get(step)) is not None:
            self.add(recorded.Commit(step=known, tokens=_bytes(self.hidden.of(said)), counts=_bytes(number)))

    def committed_drafts(self, step: Ticket, tokens: NDArray[Any]) -> None:
        rows = [slot for slot, last in zip(step.inside, step.last, strict=True) if last]
        said = np.full(tokens.shape, -1, np.int64)
        said[rows] = np.where(np.logical_or.accumulate(tokens[rows] < 0, axis=1), -1, tokens[rows])
        if (known := self._steps.get(step)) is not None:
            self.add(recorded.Drafts(step=known, tokens=_bytes(self.hidden.of(said))))

    # Steps of before the recording are not told: nothing that they were for is left in the batch.

    def discarded(self, step: Ticket) -> None:
        if (known := self._steps.get(step)) is not None:
            self.add(recorded.Discard(step=known))

    def taken(self, step: Ticket) -> None:
        if (known := self._steps.get(step)) is not None:
            self.add(recorded.Taken(step=known))


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
    request ids, lengths, sampling values, hidden states and other extras stay as they are. A block that raises leaves
    what was recorded so far, without its end. Where a record cannot be written (a full disk, say) the recording stops
    there, and the end of the block raises that error. Take results on the thread that drives the batch.

    Writes past slotline's functions (``async_set_value``, the engine's kernels) are in the digests and in no record,
    so a recording of them does not replay.

    Raises ``PacketError`` if the batch holds requests or is being recorded already, and for a layout that cannot be
    redacted; ``OSError`` if the file cannot be written.
    """
    if batch.recorder is not None:
        raise PacketError("the batch is being recorded already; one recording at a time")
    if batch.occupied:
        raise PacketError(f"{len(batch.occupied)} slots are taken; begin a recording on an empty batch, see reset()")
    recorder, path = Recorder(batch, redact), Path(path)
    if path.is_file() and not path.is_symlink():
        with suppress(PermissionError):
            path.unlink()  # a new file: who has mapped the former one goes on reading it
    with path.open("wb") as file:
        recorder.open(file)
        batch.recorder = recorder
        try:
            yield recorder
        except BaseException as error:
            if recorder.failed is not None:
                error.add_note(f"the recording had stopped behind record {recorder.records}: {recorder.failed}")
            raise
        finally:
            batch.recorder = None
        recorder.close()
