"""What a recording holds: a head with the layout, and records of operations (rule R, ``docs/recordings.md``).

Everything is checked when it is read; what is made of it (config, fields, requests, tasks) checks itself once more.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from slotline.core import record
from slotline.core.arrays import PackedArray
from slotline.core.config import BatchConfig
from slotline.core.errors import PacketError
from slotline.core.field import KEEP, Column, Extra, Field, Rule
from slotline.core.layout import BufferLayout
from slotline.core.redaction import Permutation, Plain
from slotline.core.sampling import SCALAR_KINDS, UNSET, SamplingParams
from slotline.core.tasks import AbortTask, DecodeTask, FinishTask, PreemptTask, PrefillTask, Request, Task

RELEASES: dict[str, type[PreemptTask | AbortTask | FinishTask]] = {
    "preempt": PreemptTask, "abort": AbortTask, "finish": FinishTask,
}  # fmt: skip


class Part(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A part of a recording."""


class FieldRecord(Part):
    name: str
    dims: tuple[int | str, ...]
    dtype: str
    fill: int | float | bool
    residency: str
    group: str
    slot_axis: int | None
    on: dict[str, tuple[str, Any]]
    """By kind of task: ("column", name), ("extra", name), ("value", number) or ("keep", None)."""
    engine_writes: bool | None
    step_writes: bool
    key: str
    twin_of: str | None
    token_ids: bool

    @classmethod
    def of(cls, f: Field) -> FieldRecord:
        values = {n: getattr(f, n) for n in cls.__struct_fields__ if n != "on"}
        values["fill"] = f.fill.item() if isinstance(f.fill, np.generic) else f.fill
        return cls(**values, on={kind: _rule_of(rule) for kind, rule in f.on.items()})

    def field(self) -> Field:
        values = {n: getattr(self, n) for n in self.__struct_fields__ if n != "on"}
        return Field(**values, on={kind: _rule(what, value) for kind, (what, value) in self.on.items()})


def _rule_of(rule: Rule) -> tuple[str, Any]:
    if isinstance(rule, (Column, Extra)):
        return type(rule).__name__.lower(), rule.name
    return ("keep", None) if rule is KEEP else ("value", rule.item() if isinstance(rule, np.generic) else rule)


def _rule(what: str, value: Any) -> Rule:
    if what in ("column", "extra"):
        return Column(str(value)) if what == "column" else Extra(str(value))
    if what == "keep":
        return KEEP
    return value  # type: ignore[no-any-return]  # Field checks it


class Head(Part):
    """The first part of a recording."""

    config: dict[str, Any]
    fields: tuple[FieldRecord, ...]
    fingerprint: str
    next_epoch: int
    num_blocks: int | None
    redacted: bool
    version: str
    """Of the slotline that wrote it; decides nothing."""

    def layout(self) -> BufferLayout:
        """The layout, checked by its own classes and by the fingerprint."""
        layout = BufferLayout(BatchConfig(**self.config), [f.field() for f in self.fields])
        if layout.fingerprint != self.fingerprint:
            raise PacketError(f"a recording: its layout is {layout.fingerprint}, its head says {self.fingerprint}")
        return layout


class RequestRecord(Part):
    """A request, told once; tasks name it by ``number``. Token ids are little-endian int32."""

    number: int
    request_id: str
    prompt: bytes
    output: bytes
    drafts: bytes
    values: bytes
    """The numbers of SamplingParams, one ``SamplingParams.RECORD``."""
    stops: tuple[bytes, ...]
    bad: bytes
    hidden: PackedArray | None
    extras: tuple[PackedArray, ...]

    @classmethod
    def of(cls, number: int, r: Request, hidden: Permutation | Plain, token_extras: frozenset[str]) -> RequestRecord:
        def ids(values: Any) -> bytes:
            return record.ids_to_bytes(hidden.of(values))

        extras = {n: hidden.of(v) if n in token_extras else v for n, v in sorted(r.extra.items())}
        return cls(
            number=number,
            request_id=r.request_id,
            prompt=ids(r.prompt_token_ids),
            output=ids(r.output_token_ids),
            drafts=ids(r.draft_token_ids),
            values=r.sampling.packed,
            stops=tuple(ids(s) for s in r.sampling.stop_lists),
            bad=ids(r.sampling.bad_tokens),
            hidden=None if r.hidden_state is None else PackedArray.of("hidden_state", r.hidden_state),
            extras=tuple(PackedArray.of(n, v) for n, v in extras.items()),
        )

    def request(self, vocab_size: int) -> Request:
        def ids(where: str, raw: bytes, limit: int = vocab_size) -> Any:
            record.check_ids(where, raw, limit)
            return record.ids_from_bytes(raw)

        if len(self.values) != SamplingParams.RECORD.itemsize:
            raise PacketError(f"values has {len(self.values)} bytes, allowed: {SamplingParams.RECORD.itemsize}")
        (values,) = np.frombuffer(self.values, SamplingParams.RECORD).tolist()
        numbers = dict(zip(SCALAR_KINDS, values, strict=True))
        if numbers["max_dec_len"] == UNSET:
            numbers["max_dec_len"] = None
        stops = [np.frombuffer(raw, "<i4").astype(np.int64) for raw in self.stops if not len(raw) % 4]
        sampling = SamplingParams(**numbers, stop_seqs=stops, bad_tokens=ids("bad", self.bad))
        return Request(
            self.request_id,
            ids("prompt", self.prompt),
            ids("output", self.output),
            ids("drafts", self.drafts),
            sampling,
            None if self.hidden is None else self.hidden.array,
            {a.name: a.array for a in self.extras},
        )


class TaskRecord(Part):
    kind: str
    """``prefill``, ``decode``, ``preempt``, ``abort`` or ``finish``."""
    request_id: str = ""
    request: int = 0
    """A prefill's, by number."""
    start: int = 0
    end: int = 0
    slot: int | None = None
    blocks: bytes = b""
    appended: bool = False
    """``blocks`` are a decode task's new blocks, not its whole table."""

    @classmethod
    def of(cls, task: Task, number: int) -> TaskRecord:
        if isinstance(task, PrefillTask):
            blocks = record.ids_to_bytes(task.block_table)
            return cls(kind="prefill", request=number, start=task.start, end=task.end, slot=task.slot, blocks=blocks)
        if isinstance(task, DecodeTask):
            appended = task.block_table is None
            blocks = record.ids_to_bytes(task.new_blocks if appended else task.block_table)
            return cls(kind="decode", request_id=task.request_id, blocks=blocks, appended=appended)
        kind = next(name for name, kind in RELEASES.items() if isinstance(task, kind))
        return cls(kind=kind, request_id=task.request_id)

    def task(self, requests: dict[int, Request]) -> Task:
        if self.kind in RELEASES:
            return RELEASES[self.kind](self.request_id)
        record.check_ids("blocks", self.blocks, 2**31 - 1)
        blocks = record.ids_from_bytes(self.blocks)
        if self.kind == "decode":
            if self.appended:
                return DecodeTask(self.request_id, new_blocks=blocks)
            return DecodeTask(self.request_id, block_table=blocks)
        if self.kind != "prefill":
            raise PacketError(f"a task's kind is {self.kind!r}, allowed: prefill, decode, {', '.join(RELEASES)}")
        if self.request not in requests:
            raise PacketError(f"a task names request {self.request}, which no record has told")
        return PrefillTask(requests[self.request], self.start, self.end, blocks, self.slot)


class Insert(Part, tag="insert"):
    requests: tuple[RequestRecord, ...]
    tasks: tuple[TaskRecord, ...]
    packet_bytes: int
    segments: int


class Prepare(Part, tag="prepare"):
    """``prepare_step``, or a ticket alone."""

    step: int
    packed: bool
    rows: tuple[str, ...]
    """The requests in the step."""
    num_tokens: int


class Commit(Part, tag="commit"):
    step: int
    tokens: bytes
    """int64 [S, K + 1]"""
    counts: bytes
    """int64 [S]"""


class Drafts(Part, tag="drafts"):
    step: int
    tokens: bytes
    """int64 [S, K]"""


class Discard(Part, tag="discard"):
    step: int


class Taken(Part, tag="taken"):
    """A fetched result was taken on the host (I7, M7)."""

    step: int


class Swap(Part, tag="swap"):
    i: int
    j: int


class Condense(Part, tag="condense"):
    pass


class Reset(Part, tag="reset"):
    pass


class NumBlocks(Part, tag="num_blocks"):
    num_blocks: int


Operation = Insert | Prepare | Commit | Drafts | Discard | Taken | Swap | Condense | Reset | NumBlocks


class Entry(Part):
    """One record: what was done, and the batch's digest after it."""

    operation: Operation
    digest: str


class End(Part):
    """The last part: a recording without it was cut off."""

    records: int
