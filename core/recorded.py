"""What a recording holds: a head with the layout, and records of operations (rule R, ``docs/recordings.md``).

Everything is checked when it is read; what is made of it (config, fields, requests, tasks) checks itself once more.
Where a mapping is read, or the number of parts decides how much is made of them, there is a bound.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import numpy as np

from slotline.core.config import BatchConfig
from slotline.core.errors import PacketError
from slotline.core.field import KEEP, Column, Extra, Field, Rule
from slotline.core.layout import BufferLayout
from slotline.core.recorded_requests import Part, RequestRecord, TaskRecord

MAX_FIELDS = 4096
MAX_NUMBER = 2**62
_Number = Annotated[int, msgspec.Meta(ge=1, le=MAX_NUMBER)]
Scalar = int | float | bool | str | None


class FieldRecord(Part):
    name: str
    dims: Annotated[tuple[int | str, ...], msgspec.Meta(max_length=64)]
    dtype: str
    fill: int | float | bool
    residency: str
    group: str
    slot_axis: int | None
    on: Annotated[dict[str, tuple[str, Scalar]], msgspec.Meta(max_length=16)]
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

    config: Annotated[dict[str, Scalar | tuple[int, ...]], msgspec.Meta(max_length=64)]
    fields: Annotated[tuple[FieldRecord, ...], msgspec.Meta(max_length=MAX_FIELDS)]
    only: tuple[str, ...] | None
    """The fields that insertion and clearing write (F4); None: all."""
    fingerprint: str
    next_epoch: _Number
    num_blocks: _Number | None
    redacted: bool
    version: Annotated[str, msgspec.Meta(max_length=64, pattern=r"\A[!-~]*\Z")]
    """Of the slotline that wrote it; decides nothing."""

    def layout(self) -> BufferLayout:
        """The layout, checked by its own classes and by the fingerprint."""
        values: dict[str, Any] = self.config  # which BatchConfig checks
        layout = BufferLayout(BatchConfig(**values), [f.field() for f in self.fields])
        if layout.fingerprint != self.fingerprint:
            raise PacketError(f"a recording: its layout is {layout.fingerprint}, its head says {self.fingerprint}")
        return layout


class Insert(Part, tag="insert"):
    requests: tuple[RequestRecord, ...]
    tasks: tuple[TaskRecord, ...]
    packet_bytes: int
    segments: int

    def check(self, config: BatchConfig) -> None:
        """``PacketError`` for more requests or tasks than a call can have; before any of them is made."""
        size = config.max_num_seqs
        prefills = sum(t.kind == "prefill" for t in self.tasks)
        decodes = sum(t.kind == "decode" for t in self.tasks)
        most = size * (config.max_blocks_per_seq + 4) + 1024  # empty ones too
        for what, number, allowed in (
            ("requests", len(self.requests), size),
            ("prefills", prefills, size),
            ("releases", len(self.tasks) - prefills - decodes, size),
            ("decode tasks", decodes, most),
        ):
            if number > allowed:
                raise PacketError(f"{number} {what}, allowed: {allowed}, as max_num_seqs is {size}")


class Prepare(Part, tag="prepare"):
    """``prepare_step``, or a ticket alone."""

    step: _Number
    packed: bool
    rows: tuple[str, ...]
    """The requests in the step."""
    num_tokens: _Number
    gone: tuple[int, ...]
    """Steps that no record names any more."""


class Commit(Part, tag="commit"):
    step: _Number
    tokens: bytes
    """int64 [S, K + 1]"""
    counts: bytes
    """int64 [S]"""


class Drafts(Part, tag="drafts"):
    step: _Number
    tokens: bytes
    """int64 [S, K]"""


class Discard(Part, tag="discard"):
    step: _Number


class Taken(Part, tag="taken"):
    """A fetched result was taken on the host (I7, M7)."""

    step: _Number


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
    digest: Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]


class End(Part):
    """The last part: a recording without it was cut off."""

    records: int
