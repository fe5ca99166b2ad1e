"""Token ids are users' text: in a recording they are replaced by a keyed permutation of the vocabulary (rule R)."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slotline.core.columns import TOKEN_COLUMNS
from slotline.core.errors import PacketError
from slotline.core.field import Column, Extra, Field, Keep
from slotline.core.layout import BufferLayout

_EXACT = {"float16": 2**11, "bfloat16": 2**8, "float32": 2**24, "float64": 2**53}
"""Up to here a float is every whole number."""


def holds_tokens(f: Field) -> bool:
    """The field says so, or one of its rules writes token ids into it."""
    return f.token_ids or any(isinstance(r, Column) and r.name in TOKEN_COLUMNS for r in f.on.values())


def token_extras(layout: BufferLayout) -> frozenset[str]:
    """The names of ``extra`` values that are token ids."""
    return frozenset(r.name for f in layout if holds_tokens(f) for r in f.on.values() if isinstance(r, Extra))


class Permutation:
    """A permutation of ``[0, vocab_size)`` by a key that is thrown away.

    What no user said stays: end-of-sequence ids, the pad token, the fills and constants of fields with token ids, and
    whatever is no token id (-1, padding). So stop rules, stop sequences and fills mean the same afterwards.

    ``PacketError`` for a layout whose fields mix token ids with other numbers: their digests could not be replayed.
    """

    def __init__(self, layout: BufferLayout) -> None:
        config, size = layout.config, layout.config.vocab_size
        self._fields = frozenset(f.name for f in layout if holds_tokens(f))
        _require_separate(layout)
        fixed = {config.pad_token_id, *config.eos_token_ids}
        fixed |= {int(v) for v in _constants(f for f in layout if f.name in self._fields) if 0 <= v < size}
        moves = np.ones(size, bool)
        moves[sorted(fixed)] = False
        moving = np.flatnonzero(moves)
        order = np.argsort(np.frombuffer(os.urandom(8 * len(moving)), np.uint64))
        self._map: NDArray[np.int64] = np.arange(size, dtype=np.int64)
        self._map[moving] = moving[order]

    def of(self, ids: Any) -> NDArray[Any]:
        """``ids``, numbers of any shape and kind; a copy, int64 where they are no floats."""
        out = np.array(ids)
        if out.dtype.kind in "biu":
            out = out.astype(np.int64)
        return self._replaced(out)

    def hide(self, field: Field, array: NDArray[Any]) -> NDArray[Any]:
        """The cells of a field, redacted where it holds token ids; their dtype stays."""
        return self._replaced(array.copy()) if field.name in self._fields else array

    def _replaced(self, out: NDArray[Any]) -> NDArray[Any]:
        inside = (out >= 0) & (out < len(self._map))
        if out.dtype.kind not in "iu":
            inside &= out == np.floor(out)
        out[inside] = self._map[out[inside].astype(np.int64)]
        return out


class Plain:
    """Nothing is hidden."""

    def of(self, ids: Any) -> NDArray[Any]:
        return np.array(ids)

    def hide(self, field: Field, array: NDArray[Any]) -> NDArray[Any]:
        return array


def _constants(fields: Iterable[Field]) -> Iterator[float]:
    for f in fields:
        yield f.fill
        yield from (r for r in f.on.values() if not isinstance(r, (Column, Extra, Keep)))


def _require_separate(layout: BufferLayout) -> None:
    names, size = token_extras(layout), layout.config.vocab_size
    for f in layout:
        rules = list(f.on.values())
        if not holds_tokens(f):
            shared = next((r.name for r in rules if isinstance(r, Extra) and r.name in names), None)
            if shared is not None:
                _refuse(f, f"takes extra({shared!r}), which another field holds as token ids", "give it token_ids=True")
            continue
        other = next((r.name for r in rules if isinstance(r, Column) and r.name not in TOKEN_COLUMNS), None)
        if other is not None:
            _refuse(f, f"holds token ids, and column({other!r}), which are none", "use two fields")
        most = _EXACT.get(f.dtype) or (2 if f.dtype == "bool" else int(np.iinfo(f.dtype).max) + 1)
        if size > most:
            _refuse(f, f"is {f.dtype}, which cannot hold every token id below {size}", "choose a wider dtype")


def _refuse(f: Field, what: str, hint: str) -> None:
    raise PacketError(f"field {f.name!r} {what}: it cannot be redacted; {hint}, or record with redact=False")
