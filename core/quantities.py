"""The planner's named quantities for a group of prefill tasks, each computed when a rule first asks for it.

Scalars are words of the tasks (``core.words``). Runs of tokens are taken from the requests' own arrays; several share
one source, so a packet carries a history once although three fields take from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slotline.core.checks import Ints, Prefills
from slotline.core.columns import SPANS
from slotline.core.ids import EMPTY, Ids
from slotline.core.padding import fill_block
from slotline.core.runs import Source
from slotline.core.stop import FinishReason, match_token
from slotline.core.words import (
    AT,
    CHUNK_LEN,
    ENDED,
    FINISH_REASON,
    FIRST_DRAFTS,
    FIRST_STEP,
    FLOATS,
    NUM_BLOCKS,
    START,
    Words,
    floats,
)


class Span(NamedTuple):
    """A run of ``data`` for each task: where it begins [n], and how long it is [n]."""

    data: NDArray[Any]
    source: Ints
    length: Ints
    known: dict[Any, Any]
    """What segments of all these runs share, see ``Spans``."""


class Tokens(NamedTuple):
    """A run of each task's own piece of ``source``: where it begins in the piece [n], and how long it is [n]."""

    source: Source
    low: Ints
    length: Ints

    def of(self, rows: NDArray[np.bool_]) -> Tokens:
        """Of some of the tasks."""
        pieces = [piece for piece, wanted in zip(self.source.pieces, rows.tolist(), strict=True) if wanted]
        return Tokens(Source(pieces), self.low[rows], self.length[rows])


class Ended(NamedTuple):
    """A request that its handed-over token ended at insertion (D4)."""

    token: int
    finish_reason: int
    stop_match: tuple[int, int] | None


class Quantities:
    """Quantities of ``prefills``: all of them take a slot, or all continue in theirs.

    ``settled``: the block tables of those that decode tasks of the same call follow.
    """

    def __init__(self, prefills: Prefills, settled: Mapping[str, Ids], takes: bool) -> None:
        self.p, self.takes, self.settled = prefills, takes, settled
        self.config = prefills.config
        self.has_decodes = bool(settled) and any(t.request_id in settled for t in prefills.tasks)
        self._known: dict[str, Any] = {}
        self._source: Source | None = None
        self.zeros: Ints = np.zeros(len(prefills.tasks), np.int64)
        self._has_lists = any(t.request.sampling.lists is not None for t in prefills.tasks)
        self.words: Words = self._words() if self.has_decodes or self.p.handover else prefills.words
        """[n, w], with what is only known now: the tables, and what D4 says of handed-over tokens."""

    @cached_property
    def decoded(self) -> NDArray[np.bool_]:
        """Decode tasks follow in this call."""
        return np.array([t.request_id in self.settled for t in self.p.tasks], bool)

    @cached_property
    def all_rows(self) -> NDArray[np.bool_]:
        return np.ones(len(self.p.tasks), bool)

    def tables(self) -> list[Ids]:
        """Block tables, with what decode tasks behind make of them."""
        if not self.settled:
            return [t.block_table for t in self.p.tasks]
        return [self.settled.get(t.request_id, t.block_table) for t in self.p.tasks]

    def _words(self) -> Words:
        words = self.p.words.copy()
        words[:, NUM_BLOCKS] = _lens(self.tables())
        if self.p.handover:
            ended = np.array([e is not None for e in self.ended], bool)
            steps = np.where(ended, 0, self.p.first_step)
            words[:, ENDED], words[:, FIRST_STEP], words[:, FIRST_DRAFTS] = ended, steps, np.maximum(steps - 1, 0)
            words[:, FINISH_REASON] = [e.finish_reason if e else 0 for e in self.ended]
            words[:, START] = np.where(ended, 0, self.p.history_len)
        return words

    @staticmethod
    def is_scalar(name: str) -> bool:
        return name in AT

    def scalar(self, name: str) -> NDArray[Any]:
        """[n]"""
        words = floats(self.words) if name in FLOATS else self.words
        column: NDArray[Any] = words[:, AT[name]]
        return column

    def span(self, name: str) -> Span | Tokens:
        found: Span | Tokens | None = self._known.get(name)
        if found is None:
            found = self._known[name] = _SPANS[name](self)
        return found

    @cached_property
    def ended(self) -> list[Ended | None]:
        """D4: the stop rule on each handed-over token."""
        if not self.p.handover:
            return [None] * len(self.p.tasks)
        return [self._ended(i) for i in range(len(self.p.tasks))]

    def _ended(self, i: int) -> Ended | None:
        request = self.p.tasks[i].request
        params = request.sampling
        first = request.draft_token_ids[:1]
        reason, match = match_token(
            np.concatenate((request.output_token_ids, first)),
            min_dec_len=params.min_dec_len,
            max_dec_len=int(self.p.max_dec_len[i]),
            ignore_eos=params.ignore_eos,
            stop_lists=() if params.lists is None else params.lists.stops,
            eos_token_ids=self.config.eos_token_ids,
        )
        return None if reason == FinishReason.NONE else Ended(int(first[0]), int(reason), match)

    @property
    def launch_bound(self) -> Ints:
        """Tokens of each row's next step at most (I7)."""
        return self.words[:, FIRST_STEP] if self.p.handover else self.p.end - self.p.start

    def _tokens(self) -> Source:
        """Every task's tokens; a continuing chunk brings only history[start : end + lookahead]."""
        if self._source is None:
            if self.p.handover:
                pieces = [np.concatenate((r.history, r.draft_token_ids[:1])) for r in self.p.requests]
            elif self.takes:
                pieces = [r.history for r in self.p.requests]
            else:
                more = max(1, self.config.num_levels)
                pieces = [t.request.history[t.start : t.end + more] for t in self.p.tasks]
            self._source = Source(pieces)
        return self._source

    def _run(self, low: Ints, high: Ints) -> Tokens:
        begins = not (self.takes or self.p.handover)
        return Tokens(self._tokens(), low - self.p.start if begins else low, high - low)

    def _history(self) -> Tokens:
        length = self.p.history_len
        return Tokens(self._tokens(), self.zeros, length + 1 if self.p.handover else length)

    def _chunk(self) -> Tokens:
        length = self.p.words[:, CHUNK_LEN]
        return Tokens(self._tokens(), self.p.start if self.takes else self.zeros, length)

    def _shifted_chunk(self) -> Tokens:
        return self._run(self.p.start + 1, np.minimum(self.p.end + 1, self.p.history_len))

    def _first_token(self) -> Tokens:
        return self._run(self.p.history_len, self.p.history_len + 1)

    def _block_table(self) -> Span:
        return concatenated(self.tables(), np.dtype(np.int32))  # what is valid fits

    def _bad_tokens(self) -> Span:
        if not self._has_lists:
            return self._nothing()
        return concatenated([np.asarray(r.sampling.bad_tokens) for r in self.p.requests])

    def _nothing(self) -> Span:
        """No run for any task."""
        if "nothing" not in self._known:
            self._known["nothing"] = Span(EMPTY, self.zeros, self.zeros, {})
        found: Span = self._known["nothing"]
        return found

    def _stop_seqs(self) -> Span:
        return self._stop[0] if self._has_lists else self._nothing()

    def _stop_seqs_len(self) -> Span:
        return self._stop[1] if self._has_lists else self._nothing()

    def _lookahead(self) -> Tokens:
        high = np.minimum(self.p.end + self.config.num_levels, self.p.history_len)
        return self._run(self.p.end, high)

    def _first_step_tokens(self) -> Span:
        if self.config.num_drafts == 0:
            return concatenated([EMPTY] * len(self.p.tasks))
        counts = self.words[:, FIRST_STEP].tolist()
        return concatenated([r.draft_token_ids[:n] for r, n in zip(self.p.requests, counts, strict=True)])

    @cached_property
    def _stop(self) -> tuple[Span, Span]:
        """P3: whole blocks, for the requests that have stop sequences."""
        config = self.config
        blocks, lens = [], []
        for r in self.p.requests:
            if r.sampling.lists is not None and r.sampling.stop_lists:
                block, sizes = fill_block(r.sampling.lists.stops, config.max_stop_seqs, config.stop_seqs_max_len)
                blocks.append(block.reshape(-1))
                lens.append(sizes.astype(np.int64))
            else:
                blocks.append(EMPTY)
                lens.append(EMPTY)
        return concatenated(blocks), concatenated(lens)

    def _stop_match(self) -> Span:
        none: Ids = EMPTY
        return concatenated([np.array(e.stop_match, np.int64) if e and e.stop_match else none for e in self.ended])

    def _hidden_state(self) -> Span:
        width = self.config.hidden_size or 0
        given = [r.hidden_state if r.hidden_state is not None and width else EMPTY for r in self.p.requests]
        return concatenated(given)


def _lens(arrays: Sequence[NDArray[Any]]) -> Ints:
    return np.array([len(a) for a in arrays], np.int64)


def concatenated(arrays: Sequence[NDArray[Any]], dtype: np.dtype[Any] | None = None) -> Span:
    """The arrays one after another; in ``dtype``, which holds their values, or in their own."""
    lens = _lens(arrays)
    if len(arrays) == 1:
        return Span(arrays[0].astype(dtype or arrays[0].dtype, copy=False), np.zeros(1, np.int64), lens, {})
    full = [a for a in arrays if len(a)]
    data = np.concatenate(full, dtype=dtype, casting="unsafe" if dtype else "same_kind") if full else EMPTY
    return Span(data, np.cumsum(lens) - lens, lens, {})


_SPANS: dict[str, Callable[[Quantities], Span | Tokens]] = {name: getattr(Quantities, "_" + name) for name in SPANS}
