"""What the planner knows of each field and each kind of task, worked out once for a batch from the layout's rules."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slotline.core.columns import SPANS
from slotline.core.field import KEEP, Column, Extra, Field, Rule
from slotline.core.layout import BufferLayout, numpy_dtype
from slotline.core.scalars import Member, ScalarGroup, Scalars
from slotline.core.segments import Rows
from slotline.core.words import AT, FLOATS, WIDTH, Words


class FieldPlan:
    """One field: its place in the table, its cells, and a rule for each kind of task."""

    __slots__ = ("cells", "dtype", "field", "fill", "index", "rules", "whole")

    def __init__(self, layout: BufferLayout, index: int, field: Field, whole: bool, kind: str) -> None:
        self.index, self.field, self.whole = index, field, whole
        self.cells = layout.row_cells(field.name)
        self.dtype = numpy_dtype(field.dtype)
        self.fill = field.fill
        self.rules: dict[str, Rule] = {
            "take": field.rule(kind),
            "chunk": field.rule("chunk"),
            "decode": field.rule("decode"),
        }


class Constants:
    """Numbers of rules as words, behind the words of a task."""

    def __init__(self) -> None:
        self._at: dict[bytes, int] = {}

    def word(self, value: Any, kind: str) -> int:
        """The word that holds ``value`` as a whole number (kind "i" or "u") or as a float64 ("f")."""
        dtype = {"i": np.int64, "u": np.uint64, "f": np.float64}[kind]
        return WIDTH + self._at.setdefault(np.array(value, dtype).tobytes(), len(self._at))

    @property
    def words(self) -> Words:
        return np.frombuffer(b"".join(self._at), np.int64)


class ScalarRules:
    """The fields with one cell a row of one kind of task: read together from the words of the tasks.

    ``plans``: fields whose rules are numbers, scalar columns or, with ``keeps``, KEEP (a row that is taken holds the
    fill there). ``others``: the fields that need a look of their own.
    """

    def __init__(self, plans: Sequence[FieldPlan], kind: str, constants: Constants, keeps: bool) -> None:
        self.others: list[FieldPlan] = []
        self._kind = kind
        members: dict[tuple[str, np.dtype[Any]], list[Member]] = {}
        for p in plans:
            rule = p.rules[kind]
            if p.cells != 1 or not _is_scalar(rule) or p.dtype.kind not in "biuf" or p.dtype.itemsize == 2:
                self.others.append(p)
                continue
            words = _words_of(rule, p.dtype)
            if isinstance(rule, Column):
                source = AT[rule.name]
            else:
                source = constants.word(p.fill if rule is KEEP else rule, words)
            if rule is not KEEP or keeps:
                members.setdefault((words, p.dtype), []).append(Member(p.index, p.field, source, p.whole))
        self.groups: list[tuple[ScalarGroup, str, slice]] = []
        self._sources: list[tuple[str, NDArray[np.intp]]] = []
        self._scratch = np.empty(0, np.int64)
        for words in "iuf":
            read: list[int] = []
            for (kind_of_word, dtype), found in members.items():
                if kind_of_word == words:
                    group = ScalarGroup(found, dtype)
                    self.groups.append((group, words, slice(len(read), len(read) + len(group.sources))))
                    read += group.sources
            if read:
                self._sources.append((words, np.array(read, np.intp)))
        self._views = {"i": np.dtype(np.int64), "u": np.dtype(np.uint64), "f": np.dtype(np.float64)}

    @functools.cached_property
    def named(self) -> list[FieldPlan]:
        """Those of ``others`` that are written also where a row holds the fill."""
        return [p for p in self.others if p.whole or p.rules[self._kind] is not KEEP or p.rules["decode"] is not KEEP]

    def read(self, words: Words, rows: Rows, dirty: bool) -> list[Scalars]:
        """The segments of tasks with these ``words`` [n, w] in ``rows``; ``dirty``: see ``Scalars``."""
        out = []
        for kind, sources in self._sources:
            values = self._room(len(words), kind, len(sources))
            words.view(self._views[kind]).take(sources, axis=1, out=values, mode="clip")  # "raise" would copy
            out += [
                Scalars(group, rows, values[:, columns].astype(group.dtype), dirty)
                for group, of, columns in self.groups
                if of == kind
            ]
        return out

    def _room(self, count: int, kind: str, width: int) -> NDArray[Any]:
        """Memory [count, width] that is used again at once."""
        if count * width > len(self._scratch):
            self._scratch = np.empty(2 * count * width, np.int64)
        return self._scratch[: count * width].reshape(count, width).view(self._views[kind])


def _is_scalar(rule: Rule) -> bool:
    return not isinstance(rule, Extra) and not (isinstance(rule, Column) and rule.name in SPANS)


def _words_of(rule: Rule, dtype: np.dtype[Any]) -> str:
    """How the words of a field's rule are read: as whole numbers with or without sign, or as floats."""
    if isinstance(rule, Column):
        return "f" if rule.name in FLOATS else "i"
    return "f" if dtype.kind == "f" else "u" if dtype.kind == "u" else "i"
