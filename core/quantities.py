"""The planner's named quantities for a group of prefill tasks, each computed when a rule first asks for it.

Spans are given as (payload, source, length) over all tasks; several spans share one payload, so a packet carries a
history once although three fields take from it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slotline.core.checks import Ints, Prefills
from slotline.core.ids import EMPTY, Ids
from slotline.core.padding import fill_block, strip_padding
from slotline.core.stop import FinishReason, match_token


class Span(NamedTuple):
    """A run of ``data`` for each task: where it begins [n], and how long it is [n]."""

    data: NDArray[Any]
    source: Ints
    length: Ints


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
        self.p, self.takes = prefills, takes
        self.tables = [settled.get(t.request_id, t.block_table) for t in prefills.tasks]
        self.decoded = np.array([t.request_id in settled for t in prefills.tasks], bool)
        """Decode tasks follow in this call."""
        self.has_decodes = bool(self.decoded.any())
        self.all_rows: NDArray[np.bool_] = np.ones(len(prefills.tasks), bool)
        self.config = prefills.config
        self._scalars: dict[str, Callable[[], NDArray[Any]]] = {
            "prompt_len": lambda: self.p.prompt_len,
            "num_generated": lambda: self.p.output_len + self.p.handover,
            "start": self._start,
            "chunk_len": lambda: self.p.end - self.p.start,
            "not_last": lambda: self.p.end < self.p.history_len,
            "num_blocks": lambda: _lens(self.tables),
            "num_first_step_tokens": lambda: self.first_step,
            "num_first_step_drafts": lambda: np.maximum(self.first_step - 1, 0),
            "ended": lambda: np.array([e is not None for e in self.ended], bool),
            "finish_reason": lambda: np.array([e.finish_reason if e else 0 for e in self.ended], np.int64),
            "num_bad_tokens": lambda: _lens([np.asarray(r.sampling.bad_tokens) for r in self.p.requests]),
            "max_dec_len": lambda: self.p.max_dec_len,
        }
        self._spans: dict[str, Callable[[], Span]] = {
            "history": lambda: Span(self._tokens[0], self._tokens[1], self.p.history_len + self.p.handover),
            "chunk": lambda: self._run(self.p.start, self.p.end),
            "shifted_chunk": lambda: self._run(self.p.start + 1, np.minimum(self.p.end + 1, self.p.history_len)),
            "lookahead": self._lookahead,
            "first_token": lambda: Span(
                self._tokens[0], self._tokens[1] + self.p.history_len, np.ones_like(self.p.start)
            ),
            "first_step_tokens": self._first_step_tokens,
            "block_table": lambda: concatenated(self.tables),
            "bad_tokens": lambda: concatenated([np.asarray(r.sampling.bad_tokens) for r in self.p.requests]),
            "stop_seqs": lambda: self._stop[0],
            "stop_seqs_len": lambda: self._stop[1],
            "stop_match": self._stop_match,
            "hidden_state": self._hidden_state,
        }
        self._known: dict[str, Any] = {}

    def is_scalar(self, name: str) -> bool:
        return name not in self._spans

    def scalar(self, name: str) -> NDArray[Any]:
        """[n]; a name that is not a quantity of its own is a sampling value."""
        if name not in self._known:
            make = self._scalars.get(name)
            self._known[name] = self.p.sampling[name] if make is None else make()
        found: NDArray[Any] = self._known[name]
        return found

    def span(self, name: str) -> Span:
        if name not in self._known:
            self._known[name] = self._spans[name]()
        found: Span = self._known[name]
        return found

    @cached_property
    def ended(self) -> list[Ended | None]:
        """D4: the stop rule on each handed-over token."""
        if not self.p.handover:
            return [None] * len(self.p.tasks)
        return [self._ended(i) for i in range(len(self.p.tasks))]

    def _ended(self, i: int) -> Ended | None:
        request, params = self.p.requests[i], self.p.requests[i].sampling
        first = request.draft_token_ids[:1]
        reason, match = match_token(
            np.concatenate((request.output_token_ids, first)),
            min_dec_len=params.min_dec_len,
            max_dec_len=int(self.p.max_dec_len[i]),
            ignore_eos=params.ignore_eos,
            stop_lists=[strip_padding(seq) for seq in params.stop_lists],
            eos_token_ids=self.config.eos_token_ids,
        )
        return None if reason == FinishReason.NONE else Ended(int(first[0]), int(reason), match)

    @cached_property
    def first_step(self) -> Ints:
        """D2, with 0 for a request that D4 ended."""
        if not self.p.handover:
            return self.p.first_step
        steps: Ints = np.where(self.scalar("ended"), 0, self.p.first_step)
        return steps

    @property
    def launch_bound(self) -> Ints:
        """Tokens of each row's next step at most (I7)."""
        chunk: Ints = self.p.end - self.p.start
        return self.first_step if self.p.handover else chunk

    @cached_property
    def _tokens(self) -> tuple[Ids, Ints]:
        """Every task's tokens, one after another, and where each begins, seen from history[0].

        A continuing chunk brings only history[start : end + lookahead].
        """
        if self.p.handover:
            lists = [x for r in self.p.requests for x in (r.history, r.draft_token_ids[:1])]
            lens = self.p.history_len + 1
            lows = np.zeros_like(lens)
        elif self.takes:
            lists, lens = [r.history for r in self.p.requests], self.p.history_len
            lows = np.zeros_like(lens)
        else:
            lows = self.p.start
            highs = np.minimum(self.p.end + max(1, self.config.num_levels), self.p.history_len)
            lens = highs - lows
            bounds = zip(self.p.requests, lows.tolist(), highs.tolist(), strict=True)
            lists = [r.history[low:high] for r, low, high in bounds]
        base = np.cumsum(lens) - lens
        return (np.concatenate(lists) if lists else EMPTY), base - lows

    def _run(self, low: Ints, high: Ints) -> Span:
        tokens, base = self._tokens
        return Span(tokens, base + low, high - low)

    def _start(self) -> Ints:
        start: Ints = self.p.start
        return np.where(self.scalar("ended"), 0, self.p.history_len) if self.p.handover else start

    def _lookahead(self) -> Span:
        high = np.minimum(self.p.end + self.config.num_levels, self.p.history_len)
        return self._run(self.p.end, high)

    def _first_step_tokens(self) -> Span:
        if self.config.num_drafts == 0:
            return concatenated([EMPTY] * len(self.p.tasks))
        counts = self.first_step.tolist()
        return concatenated([r.draft_token_ids[:n] for r, n in zip(self.p.requests, counts, strict=True)])

    @cached_property
    def _stop(self) -> tuple[Span, Span]:
        """P3: whole blocks, for the requests that have stop sequences."""
        config = self.config
        blocks, lens = [], []
        for r in self.p.requests:
            if r.sampling.stop_lists:
                lists = [strip_padding(seq) for seq in r.sampling.stop_lists]
                block, sizes = fill_block(lists, config.max_stop_seqs, config.stop_seqs_max_len)
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


def concatenated(arrays: Sequence[NDArray[Any]]) -> Span:
    lens = _lens(arrays)
    full = [a for a in arrays if len(a)]
    return Span(np.concatenate(full) if full else EMPTY, np.cumsum(lens) - lens, lens)
