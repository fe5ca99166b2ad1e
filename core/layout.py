"""BufferLayout: the one table of fields, from which everything else is derived (rules F, S3)."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
import numpy as np

from slotline.core.columns import COLUMN_NAMES, DTYPES_OF, KIND_OF, SPANS
from slotline.core.config import BatchConfig
from slotline.core.errors import ConfigError, LayoutError, nearest
from slotline.core.field import Column, Extra, Field, Keep


def numpy_dtype(name: str) -> np.dtype[Any]:
    """NumPy's dtype for a field's. bfloat16 exists once ``ml_dtypes`` is imported; else ``LayoutError``."""
    try:
        return np.dtype(name)
    except TypeError:
        raise LayoutError(f"NumPy has no {name} here; install ml_dtypes, or choose float16 or float32") from None


class BufferLayout:
    """An ordered table of ``Field``, resolved by one ``BatchConfig``. Immutable; every change gives a new layout.

    ``layout[name]`` is a field, iteration gives the fields in order, ``a | b`` joins two tables of one config.
    """

    def __init__(self, config: BatchConfig, fields: Iterable[Field]) -> None:
        self.config = config
        self._fields: dict[str, Field] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        for f in fields:
            self._add(f)
        self._by_key = {f.key: f for f in self._fields.values()}
        if len(self._by_key) != len(self._fields):
            raise LayoutError("two fields have one key; a key names the field that a step function works on")

    def _add(self, f: Field) -> None:
        if not isinstance(f, Field):
            raise LayoutError(f"a layout holds Field objects, got {type(f).__name__}")
        if f.name in self._fields:
            raise LayoutError(f"two fields are named {f.name!r}; rename one with .rename")
        try:
            shape = tuple(self.config.resolve(d) for d in f.dims)
        except ConfigError as error:
            raise LayoutError(f"field {f.name!r}: {error}") from error
        if min(shape, default=0) < 0:
            raise LayoutError(f"field {f.name!r}: shape {shape} has a negative axis")
        if f.slot_axis is not None and shape[f.slot_axis] != self.config.max_num_seqs:
            raise LayoutError(
                f"field {f.name!r}: axis {f.slot_axis} counts slots, but its size is {shape[f.slot_axis]}, "
                f"max_num_seqs is {self.config.max_num_seqs}"
            )
        for rule in f.on.values():
            if isinstance(rule, Column):
                self._check_column(f, rule.name, math.prod(shape) // max(1, self.config.max_num_seqs))
        self._fields[f.name] = f
        self._shapes[f.name] = shape

    def _check_column(self, f: Field, name: str, cells: int) -> None:
        if name not in COLUMN_NAMES:
            raise LayoutError(
                f"field {f.name!r}: unknown column {name!r}{nearest(name, COLUMN_NAMES) or '.'} "
                f"Known columns: {', '.join(sorted(COLUMN_NAMES))}"
            )
        fits = DTYPES_OF[KIND_OF.get(name, "int")]
        if f.dtype not in fits:
            raise LayoutError(f"field {f.name!r} is {f.dtype}; column {name!r} needs one of {', '.join(fits)}")
        if name in SPANS and cells < self.config.resolve(SPANS[name]):
            raise LayoutError(
                f"field {f.name!r}: a row has {cells} cells, column {name!r} needs {self.config.resolve(SPANS[name])}"
            )

    # -- looking at it

    def __getitem__(self, name: str) -> Field:
        try:
            return self._fields[name]
        except KeyError:
            raise LayoutError(f"no field {name!r} in this layout{nearest(name, self._fields)}") from None

    def __iter__(self) -> Iterator[Field]:
        return iter(self._fields.values())

    def __len__(self) -> int:
        return len(self._fields)

    def __contains__(self, name: object) -> bool:
        return name in self._fields

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BufferLayout) and self.fingerprint == other.fingerprint and list(self) == list(other)

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._fields)

    def index(self, name: str) -> int:
        """The field's place in the table, which packets use."""
        return list(self._fields).index(self[name].name)

    def by_key(self, key: str) -> Field | None:
        """The field that step functions know as ``key``, whatever it is called here; None: not in this layout."""
        return self._by_key.get(key)

    def shape(self, name: str) -> tuple[int, ...]:
        self[name]
        return self._shapes[name]

    def row_shape(self, name: str) -> tuple[int, ...]:
        """The shape of one slot's part: the field's shape without its slot axis."""
        axis = self[name].slot_axis
        shape = self._shapes[name]
        return shape if axis is None else shape[:axis] + shape[axis + 1 :]

    def row_cells(self, name: str) -> int:
        return math.prod(self.row_shape(name))

    @property
    def nbytes(self) -> int:
        """Bytes of all fields, a mirror counted beside its device copy."""
        return sum(math.prod(self._shapes[f.name]) * f.itemsize * (2 if f.residency == "mirrored" else 1) for f in self)

    @property
    def fingerprint(self) -> str:
        """32 hexadecimal digits over names, shapes, dtypes, fills, residencies and slot axes, in order."""
        rows = [
            (f.name, self._shapes[f.name], f.dtype, repr(_plain(f.fill, f)), f.residency, f.slot_axis) for f in self
        ]
        return hashlib.blake2b(msgspec.json.encode(rows), digest_size=16).hexdigest()

    def describe(self) -> list[dict[str, Any]]:
        """One plain mapping for each field: name, dims, shape, dtype, fill, residency, group, slot_axis, on, nbytes."""
        return [
            {
                "name": f.name,
                "dims": [str(d) for d in f.dims],
                "shape": list(self._shapes[f.name]),
                "dtype": f.dtype,
                "fill": _plain(f.fill, f),
                "residency": f.residency,
                "group": f.group,
                "slot_axis": f.slot_axis,
                "on": {kind: _rule_text(rule) for kind, rule in f.on.items()},
                "nbytes": math.prod(self._shapes[f.name]) * f.itemsize,
            }
            for f in self
        ]

    def stub(self) -> str:
        """A ``.pyi`` text: a mapping with one overload for each field, for editors and type checkers."""
        lines = ["from typing import Any, Literal, overload", "", "class Buffers:"]
        for f in self:
            dims = ", ".join(str(d) for d in f.dims)
            lines += [
                "    @overload",
                f"    def __getitem__(self, name: Literal[{f.name!r}]) -> Any: ...  # {f.dtype}[{dims}]",
            ]
        lines += ["    @overload", "    def __getitem__(self, name: str) -> Any: ..."]
        return "\n".join(lines) + "\n"

    # -- changing it (rule F3)

    def __or__(self, other: BufferLayout) -> BufferLayout:
        if not isinstance(other, BufferLayout):
            return NotImplemented
        if other.config != self.config:
            raise LayoutError("two layouts can be joined only if one BatchConfig made both")
        return BufferLayout(self.config, [*self, *other])

    def extend(self, *fields: Field) -> BufferLayout:
        """With ``fields`` behind the present ones."""
        return BufferLayout(self.config, [*self, *fields])

    def replace(self, name: str, **changes: Any) -> BufferLayout:
        """With ``dims``, ``dtype`` or another attribute of one field changed.

        A row keeps its cells in their order: axes of length 1 may come and go, axes may be merged, and a row of one
        axis may get longer. ``LayoutError`` for anything else: the step functions could not find the cells.
        """
        old = self[name]
        known = {f.name for f in dataclasses.fields(Field)} - {"name", "key"}
        for attribute in changes:
            if attribute not in known:
                raise LayoutError(f"a field has no {attribute!r} to replace{nearest(attribute, known)}")
        new = dataclasses.replace(old, **changes)
        layout = BufferLayout(self.config, [new if f is old else f for f in self])
        had, has = (tuple(n for n in table.row_shape(name) if n != 1) for table in (self, layout))
        longer = len(had) == len(has) == 1 and has[0] >= had[0]
        if not longer and (
            layout.row_cells(name) != self.row_cells(name) or (old.slot_axis is None) != (new.slot_axis is None)
        ):
            raise LayoutError(
                f"field {name!r}: a row of shape {self.row_shape(name)} cannot become {layout.row_shape(name)}; "
                "axes of length 1 may come and go, and a row of one axis may get longer"
            )
        return layout

    def rename(self, names: Mapping[str, str] | None = None, /, **more: str) -> BufferLayout:
        """``rename(old=new)``, or ``rename({"mtp.input_ids": "draft_input_ids"})``; step functions still find them."""
        changes = {**(names or {}), **more}
        for old in changes:
            self[old]
        return BufferLayout(
            self.config, [dataclasses.replace(f, name=changes.get(f.name, f.name), key=f.key) for f in self]
        )

    def without(self, *groups: str) -> BufferLayout:
        """Without the fields of these groups."""
        known = {f.group for f in self if f.group}
        for group in groups:
            if group not in known:
                raise LayoutError(f"no group {group!r}{nearest(group, known)}; known: {', '.join(sorted(known))}")
        return BufferLayout(self.config, [f for f in self if f.group not in groups])


def _plain(value: Any, f: Field) -> int | float | bool:
    if f.dtype == "bool":
        return bool(value)
    return int(value) if "int" in f.dtype else float(value)


def _rule_text(rule: Any) -> Any:
    if isinstance(rule, Column):
        return f"column {rule.name}"
    if isinstance(rule, Extra):
        return f"extra {rule.name}"
    return "keep" if isinstance(rule, Keep) else rule
