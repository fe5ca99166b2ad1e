"""Requests and tasks as a recording holds them (rule R)."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import msgspec
import numpy as np

from slotline.core import record
from slotline.core.arrays import PackedArray
from slotline.core.errors import PacketError
from slotline.core.field import Extra
from slotline.core.layout import BufferLayout
from slotline.core.padding import strip_padding
from slotline.core.redaction import Permutation, Plain, token_extras
from slotline.core.sampling import SCALAR_KINDS, UNSET, SamplingParams
from slotline.core.tasks import AbortTask, DecodeTask, FinishTask, PreemptTask, PrefillTask, Request, Task
from slotline.core.values import from_host

RELEASES: dict[str, type[PreemptTask | AbortTask | FinishTask]] = {
    "preempt": PreemptTask, "abort": AbortTask, "finish": FinishTask,
}  # fmt: skip
_INT64 = 2**63


class Part(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A part of a recording."""


class RecordedArray(PackedArray, frozen=True):
    """A value of a request; NaN and infinities too, which fields of one's own may hold."""

    def __post_init__(self) -> None:
        self._check(finite=False)


class Told(NamedTuple):
    """What of a request a layout looks at: the rest is not recorded, and not read."""

    extras: dict[str, tuple[str, int]]
    """By name: the dtype of the fields that take it, "" where they differ, and the most cells of them."""
    token_extras: frozenset[str]
    drafts: int
    hidden: bool

    @classmethod
    def by(cls, layout: BufferLayout) -> Told:
        extras: dict[str, tuple[str, int]] = {}
        for f in layout:
            for name in {rule.name for rule in f.on.values() if isinstance(rule, Extra)}:
                dtype, cells = extras.get(name, (f.dtype, 0))
                extras[name] = (dtype if dtype == f.dtype else "", max(cells, layout.row_cells(f.name)))
        config = layout.config
        drafts = config.num_drafts + 1 if config.role == "decode" else 0
        return cls(extras, token_extras(layout), drafts, config.hidden_size is not None)


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
    hidden: RecordedArray | None
    extras: tuple[RecordedArray, ...]

    @classmethod
    def of(cls, number: int, r: Request, hidden: Permutation | Plain, told: Told) -> RequestRecord:
        def ids(values: Any) -> bytes:
            return record.ids_to_bytes(hidden.of(values))

        state = r.hidden_state if told.hidden else None
        return cls(
            number=number,
            request_id=r.request_id,
            prompt=ids(r.prompt_token_ids),
            output=ids(r.output_token_ids),
            drafts=ids(r.draft_token_ids[: told.drafts]),
            values=r.sampling.packed,
            stops=tuple(ids(strip_padding(s)) for s in r.sampling.stop_lists),
            bad=ids(r.sampling.bad_tokens),
            hidden=None if state is None else RecordedArray.of("hidden_state", state),
            extras=tuple(
                RecordedArray.of(name, _extra(r.extra[name], told.extras[name][0], name in told.token_extras, hidden))
                for name in sorted(told.extras.keys() & r.extra.keys())
            ),
        )

    def request(self, layout: BufferLayout, told: Told) -> Request:
        """``PacketError`` for what breaks a bound of ``layout``; no array is made before its size is known to fit."""
        config = layout.config

        def ids(where: str, raw: bytes, most: int, least: int = 0) -> Any:
            record.check_ids(where, raw, config.vocab_size, least, most)
            return record.ids_from_bytes(raw)

        if len(self.values) != SamplingParams.RECORD.itemsize:
            raise PacketError(f"values has {len(self.values)} bytes, allowed: {SamplingParams.RECORD.itemsize}")
        (values,) = np.frombuffer(self.values, SamplingParams.RECORD).tolist()
        numbers = dict(zip(SCALAR_KINDS, values, strict=True))
        if numbers["max_dec_len"] == UNSET:
            numbers["max_dec_len"] = None
        if len(self.stops) > config.max_stop_seqs:
            raise PacketError(f"stops has {len(self.stops)} sequences, allowed: {config.max_stop_seqs}")
        stops = [ids("stops", raw, config.stop_seqs_max_len, 1) for raw in self.stops]
        bad = ids("bad", self.bad, config.max_bad_tokens)
        for value in self.extras:
            most = told.extras.get(value.name, ("", -1))[1]
            if value.cells > most:
                allowed = f"{most}, the row's" if most >= 0 else "a name that a field takes"
                raise PacketError(f"extras {value.name!r} has {value.cells} cells, allowed: {allowed}")
        if self.hidden is not None and self.hidden.cells != (config.hidden_size or 0):
            raise PacketError(f"hidden has {self.hidden.cells} cells, allowed: hidden_size {config.hidden_size}")
        return Request(
            self.request_id,
            ids("prompt", self.prompt, config.max_model_len - 1, 1),
            ids("output", self.output, config.max_model_len),
            ids("drafts", self.drafts, told.drafts),
            SamplingParams(**numbers, stop_seqs=stops, bad_tokens=bad),
            None if self.hidden is None else self.hidden.array,
            {a.name: a.array for a in self.extras},
        )


def _extra(value: Any, dtype: str, holds_tokens: bool, hidden: Permutation | Plain) -> Any:
    if holds_tokens:
        return hidden.of(value)
    return from_host(value, dtype, np.shape(value)) if dtype else value


class TaskRecord(Part):
    kind: Literal["prefill", "decode", "preempt", "abort", "finish"]
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
            start = min(max(task.start, -_INT64), _INT64 - 1)  # role decode ignores it, so it may be any number
            return cls(kind="prefill", request=number, start=start, end=task.end, slot=task.slot, blocks=blocks)
        if isinstance(task, DecodeTask):
            appended = task.block_table is None
            blocks = record.ids_to_bytes(task.new_blocks if appended else task.block_table)
            return cls(kind="decode", request_id=task.request_id, blocks=blocks, appended=appended)
        kind: Any = next(name for name, kind in RELEASES.items() if isinstance(task, kind))
        return cls(kind=kind, request_id=task.request_id)

    def task(self, requests: dict[int, Request], most_blocks: int) -> Task:
        """``requests``: those told, by number; ``most_blocks``: of one request."""
        if self.kind in RELEASES:
            return RELEASES[self.kind](self.request_id)
        record.check_ids("blocks", self.blocks, 2**31 - 1, 0, most_blocks)
        blocks = record.ids_from_bytes(self.blocks)
        if self.kind == "decode":
            if self.appended:
                return DecodeTask(self.request_id, new_blocks=blocks)
            return DecodeTask(self.request_id, block_table=blocks)
        if self.request not in requests:
            raise PacketError(f"a task names request {self.request}, which no record has told")
        return PrefillTask(requests[self.request], self.start, self.end, blocks, self.slot)
