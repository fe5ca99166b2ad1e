"""Field: one row of the table, which says everything about one buffer (rules F1, F2)."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import numpy as np

from slotline.core.errors import LayoutError, nearest


class Keep(enum.Enum):
    """``KEEP``: this kind of task leaves the field as it is."""

    KEEP = "KEEP"

    def __repr__(self) -> str:
        return "KEEP"


KEEP = Keep.KEEP


@dataclass(frozen=True, slots=True)
class Column:
    """One of the named quantities that the planner computes once per call."""

    name: str


@dataclass(frozen=True, slots=True)
class Extra:
    """A value of the request's own ``extra`` mapping; a request without it leaves the fill."""

    name: str


_FLOAT_MAX = {"float16": 65504.0, "bfloat16": 3.38e38, "float32": float(np.finfo("float32").max), "float64": 1.8e308}

_DECODE_RULES = (Column("block_table"), Column("num_blocks"))
"""A decode task brings nothing but blocks."""

Rule = int | float | bool | Column | Extra | Keep

KINDS = ("prefill", "chunk", "handover", "decode")
"""What ``Field.on`` may name: a prefill that takes a slot, a chunk that continues in its slot, a prefill in role
decode (else as ``prefill``), a decode task."""

RESIDENCIES = ("device", "host", "mirrored")

DTYPES: Mapping[str, int] = MappingProxyType(
    {
        "bool": 1,
        "int8": 1,
        "uint8": 1,
        "int16": 2,
        "uint16": 2,
        "int32": 4,
        "uint32": 4,
        "int64": 8,
        "uint64": 8,
        "float16": 2,
        "bfloat16": 2,
        "float32": 4,
        "float64": 8,
    }
)
"""The dtypes that a field may have, with their bytes."""


def column(name: str) -> Column:
    """The planner's quantity ``name``, for ``Field.on``. Unknown names are refused when the layout is made."""
    return Column(name)


def extra(name: str) -> Extra:
    """``request.extra[name]``, for ``Field.on``."""
    return Extra(name)


@dataclass(frozen=True, kw_only=False, slots=True)
class Field:
    """One buffer: its name, shape, dtype, fill, place, and what each kind of task writes into it.

    - ``dims``: numbers, names of ``BatchConfig`` sizes (``"max_model_len"``, ``"num_drafts"``,
      ``"max_blocks_per_seq"``, ...) or sums (``"num_drafts+1"``), the slot axis included.
    - ``fill``: the value of every cell of a free slot.
    - ``residency``: ``"device"``, ``"host"``, or ``"mirrored"`` (device and a host copy; steps never write it).
    - ``group``: a name for ``BufferLayout.without``.
    - ``slot_axis``: the axis that counts slots; None: not per slot (no task writes it; reset fills it).
    - ``on``: for each of ``KINDS`` a constant, ``column(...)``, ``extra(...)`` or ``KEEP``; what is not named is kept.
    - ``engine_writes``: the engine's own kernels write into rows, so whole rows are written and cleared (P2). Without
      it rows are cleared as far as tasks and steps wrote them. None: only if the tensor is adopted.
    - ``key``: the name that the step functions know it by; stays when the field is renamed.
    - ``twin_of``: the key of the field that a commit keeps this one equal to.

    Raises ``LayoutError``. Source: rules F1 and F2.
    """

    name: str
    dims: tuple[int | str, ...]
    dtype: str
    fill: int | float | bool = 0
    residency: str = field(default="device", kw_only=True)
    group: str = field(default="", kw_only=True)
    slot_axis: int | None = field(default=0, kw_only=True)
    on: Mapping[str, Rule] = field(default_factory=dict, kw_only=True, hash=False)
    engine_writes: bool | None = field(default=None, kw_only=True)
    step_writes: bool = field(default=False, kw_only=True)
    """A commit or a draft writes this field on the device."""
    key: str = field(default="", kw_only=True)
    twin_of: str | None = field(default=None, kw_only=True)
    token_ids: bool = field(default=False, kw_only=True)
    """It holds token ids, which are users' text: a redacted recording hides them (rule R)."""

    def __post_init__(self) -> None:
        set_ = object.__setattr__
        if not isinstance(self.name, str) or not self.name:
            raise LayoutError(f"a field's name is {self.name!r}, allowed: text that is not empty")
        if not self.name.isprintable():  # surrogates too, which UTF-8 cannot write
            raise LayoutError(f"a field's name is {self.name!r}, allowed: printable text")
        dims = (self.dims,) if isinstance(self.dims, (str, int)) else tuple(self.dims)
        set_(self, "dims", dims)
        set_(self, "key", self.key or self.name)
        if not isinstance(self.on, Mapping):
            raise LayoutError(self._text("on", self.on, ("a mapping from kind of task to rule",)))
        set_(self, "on", MappingProxyType(dict(self.on)))
        self._check_dtype()
        if self.residency not in RESIDENCIES:
            raise LayoutError(self._text("residency", self.residency, RESIDENCIES))
        axis = self.slot_axis
        if axis is not None and (type(axis) is not int or not 0 <= axis < len(dims)):
            raise LayoutError(self._text("slot_axis", self.slot_axis, (f"None, or 0 to {len(dims) - 1}",)))
        for kind, rule in self.on.items():
            self._check_rule(kind, rule)
        tables = Column("block_table")
        if self.on.get("decode") == tables and not all(self.rule(k) in (tables, KEEP) for k in KINDS if k != "decode"):
            raise LayoutError(
                f"field {self.name!r}: a decode task appends to its table, so no other rule may write there"
            )
        if self.residency == "mirrored" and (self.step_writes or self.engine_writes or self.twin_of is not None):
            raise LayoutError(f"field {self.name!r} is mirrored, but steps write it: the mirror would go stale (F2)")

    def _check_dtype(self) -> None:
        if self.dtype not in DTYPES:
            raise LayoutError(self._text("dtype", self.dtype, tuple(DTYPES)))
        self._check_value("fill", self.fill)

    def _check_rule(self, kind: str, rule: Rule) -> None:
        if kind not in KINDS:
            raise LayoutError(self._text("on", kind, KINDS))
        if self.slot_axis is None and rule is not KEEP:
            raise LayoutError(f"field {self.name!r} is not per slot, so no task can write it: on[{kind!r}] is {rule!r}")
        if kind == "decode" and rule not in _DECODE_RULES and isinstance(rule, (Column, Extra)):
            raise LayoutError(self._text("on['decode']", rule, ("a number", "KEEP", *map(repr, _DECODE_RULES))))
        if not isinstance(rule, (Column, Extra, Keep)):
            self._check_value(f"on[{kind!r}]", rule)

    def _check_value(self, what: str, value: Any) -> None:
        if not isinstance(value, (bool, int, float, np.number, np.bool_)):
            raise LayoutError(self._text(what, value, ("a number", "column(...)", "extra(...)", "KEEP")))
        ok: Any = True
        if self.dtype == "bool":
            ok = value in (0, 1)
        elif "int" in self.dtype:
            info = np.iinfo(self.dtype)
            ok = value == value and info.min <= value <= info.max and int(value) == value
        elif isinstance(value, (bool, int, float)):
            ok = value != value or abs(value) <= _FLOAT_MAX[self.dtype] or abs(value) == float("inf")
        if not ok:
            raise LayoutError(f"field {self.name!r}: {what} is {value!r}, which {self.dtype} cannot hold")

    def _text(self, what: str, got: Any, allowed: tuple[str, ...]) -> str:
        hint = nearest(got, allowed) if isinstance(got, str) else ""
        return f"field {self.name!r}: {what} is {got!r}, allowed: {', '.join(allowed)}{hint}"

    @property
    def itemsize(self) -> int:
        return DTYPES[self.dtype]

    @property
    def on_device(self) -> bool:
        return self.residency != "host"

    @property
    def on_host(self) -> bool:
        return self.residency != "device"

    def rule(self, kind: str) -> Rule:
        """What ``kind`` writes; a handover without a rule of its own writes what a prefill does."""
        if kind == "handover" and "handover" not in self.on:
            kind = "prefill"
        return self.on.get(kind, KEEP)
