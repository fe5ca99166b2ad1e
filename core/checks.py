"""What is checked of the content of prefill tasks (rule I2), vectorised over the tasks.

``Prefills`` holds the quantities of some prefill tasks as arrays; the checks and the plan both read them.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slotline.core.config import BatchConfig
from slotline.core.faults import Faults
from slotline.core.ids import Ids
from slotline.core.layout import numpy_dtype
from slotline.core.sampling import SamplingParams
from slotline.core.tasks import PrefillTask, Request
from slotline.core.words import (
    CUT,
    DRAFT_LEN,
    END,
    FIRST_STEP,
    HISTORY_LEN,
    MAX_DEC_LEN,
    NUM_BLOCKS,
    PROMPT_LEN,
    START,
    Words,
)

Ints = NDArray[np.int64]
Bad = NDArray[np.bool_]


class Prefills:
    """Prefill tasks as columns; every array is [n], in the order of the tasks, and a view of ``words`` [n, w]."""

    def __init__(self, config: BatchConfig, tasks: Sequence[PrefillTask], words: Words) -> None:
        self.config, self.words = config, words
        self.tasks = tasks
        self.handover = config.role == "decode"
        self.start: Ints = words[:, START]
        self.end: Ints = words[:, END]
        self.history_len: Ints = words[:, HISTORY_LEN]
        self.prompt_len: Ints = words[:, PROMPT_LEN]

    @property
    def requests(self) -> list[Request]:
        return [t.request for t in self.tasks]

    @property
    def table_len(self) -> Ints:
        return self.words[:, NUM_BLOCKS]

    @property
    def draft_len(self) -> Ints:
        return self.words[:, DRAFT_LEN]

    @property
    def output_len(self) -> Ints:
        return self.history_len - self.prompt_len

    @property
    def max_dec_len(self) -> Ints:
        return self.words[:, MAX_DEC_LEN]

    @property
    def cut(self) -> Bad:
        found: Bad = self.words[:, CUT] != 0
        return found

    @property
    def first_step(self) -> Ints:
        """D2: tokens of a handed-over request's first step."""
        return self.words[:, FIRST_STEP]

    @functools.cached_property
    def sampling(self) -> NDArray[Any]:
        """The sampling values as given, a record for each task."""
        return SamplingParams.columns([r.sampling for r in self.requests])


class PrefillChecks:
    """Runs the checks of one group of prefill tasks and remembers which are bad."""

    def __init__(self, prefills: Prefills, faults: Faults, num_blocks: int | None) -> None:
        self.p, self.faults, self.num_blocks = prefills, faults, num_blocks
        self.bad: Bad = np.zeros(len(prefills.tasks), bool)

    def flag(self, mask: Bad, field: str, values: Any, bounds: Any, hint: str = "") -> None:
        if not mask.any():
            return
        self.bad |= mask
        for i in np.flatnonzero(mask).tolist():
            value = values[i] if isinstance(values, np.ndarray) else values
            if field in ("start", "end"):  # as given: beyond 64 bits the column holds something else
                value = getattr(self.p.tasks[i], field)
            bound = bounds[i] if isinstance(bounds, np.ndarray) else bounds
            self.faults.add(self.p.tasks[i].request_id, field, _plain(value), _plain(bound), hint)

    def chunk_range(self) -> None:
        """0 <= start < end <= len(history), the chunk within C, M tokens left behind one that is not last."""
        p, c, m = self.p, self.p.config.max_chunk_tokens, self.p.config.num_levels
        if p.handover:
            wrong = p.end != p.history_len
            self.flag(wrong, "end", p.end, p.history_len, "role decode: end is len(prompt) + len(output)")
            return
        below = p.start < 0
        empty = ~below & (p.start >= p.end)
        self.flag(below, "start", p.start, 0)
        self.flag(empty, "start", p.start, p.end, "a chunk has at least one token")
        ranged = ~below & ~empty
        over = ranged & (p.end > p.history_len)
        self.flag(over, "end", p.end, p.history_len, "the end of the history")
        long = ranged & (p.end - p.start > c)
        self.flag(long, "end", p.end, p.start + c, "max_chunk_tokens; split the chunk")
        left = p.history_len - p.end
        short = ranged & ~over & (left > 0) & (left < m)
        self.flag(short, "end", p.end, p.history_len - m, "the last chunk keeps mtp_levels tokens")

    def lengths(self) -> None:
        """0 < len(prompt) < L, history <= L, and something left to generate."""
        p, longest = self.p, self.p.config.max_model_len
        self.flag(p.prompt_len == 0, "prompt_token_ids", 0, 1, "a prompt has at least one token")
        long = p.prompt_len >= longest
        self.flag(long, "prompt_token_ids", p.prompt_len, longest - 1, "max_model_len - 1")
        self.flag(~long & (p.history_len > longest), "output_token_ids", p.history_len, longest, "max_model_len")

    def blocks(self) -> None:
        """Enough blocks for ``end``, not more than a row has; ids that exist, each once."""
        p, most = self.p, self.p.config.max_blocks_per_seq
        over = p.table_len > most
        self.flag(over, "block_table", p.table_len, most, "ceil(max_model_len / block_size)")
        need = -(-(p.end + p.first_step) // p.config.block_size)
        few = ~over & (p.table_len < need) & (p.end <= p.history_len)
        self.flag(few, "block_table", p.table_len, need, "the blocks must cover the chunk's end")
        self.bad |= check_tables(
            [t.block_table for t in p.tasks], [t.request_id for t in p.tasks], "block_table", self.faults,
            self.num_blocks, p.config.null_block,
        )  # fmt: skip

    def token_ids(self) -> None:
        """Every id of prompt, output and drafts lies in the vocabulary."""
        p, vocab = self.p, self.p.config.vocab_size
        lists: list[Ids] = [r.history for r in p.requests] + [
            r.draft_token_ids for r in p.requests if len(r.draft_token_ids)
        ]
        if in_range(np.concatenate(lists) if lists else np.empty(0, np.int64), vocab):
            return
        for i, r in enumerate(p.requests):
            for name in ("prompt_token_ids", "output_token_ids", "draft_token_ids"):
                ids = getattr(r, name)
                wrong = ids[(ids < 0) | (ids >= vocab)]
                if len(wrong):
                    self.bad[i] = True
                    self.faults.add(r.request_id, name, int(wrong[0]), vocab, "token ids are 0 to vocab_size - 1")

    def drafts(self) -> None:
        """Role decode needs the first token, and with MTP the first draft (D1, D2)."""
        if self.p.handover:
            few = self.p.draft_len < self.p.first_step
            hint = "role decode: the first token, then the drafts of the prefill side"
            self.flag(few, "draft_token_ids", self.p.draft_len, self.p.first_step, hint)

    def hidden_state(self) -> None:
        """[hidden_size] finite numbers, where the config has a hidden width."""
        width = self.p.config.hidden_size
        if width is None:
            return
        for i, r in enumerate(self.p.requests):
            state = r.hidden_state
            if state is None:
                continue
            if state.shape != (width,) or (state.dtype.kind not in "fiu" and state.dtype.name != "bfloat16"):
                self.bad[i] = True
                self.faults.add(r.request_id, "hidden_state", state.shape, (width,), "numbers of shape [hidden_size]")
                continue
            with np.errstate(over="ignore"):
                held = state.astype(numpy_dtype(self.p.config.hidden_dtype)).astype(np.float64)
            if not np.isfinite(held).all():
                self.bad[i] = True
                value = state[~np.isfinite(held)][0].item()
                self.faults.add(r.request_id, "hidden_state", value, "finite", "a number that hidden_dtype can hold")


def in_range(ids: NDArray[Any], limit: int | None) -> bool:
    """All of ``ids`` lie in [0, limit), or are not below 0 if there is no limit."""
    if not len(ids):
        return True
    if limit is None:
        return bool(ids.min() >= 0)
    return bool(ids.view(np.uint64).max() < limit)


def check_tables(
    tables: Sequence[Ids],
    request_ids: Sequence[str],
    field: str,
    faults: Faults,
    num_blocks: int | None,
    null_block: int | None,
) -> Bad:
    """Flag tables with ids that do not exist or that stand twice (the null block may)."""
    bad = np.zeros(len(tables), bool)
    if not tables:
        return bad
    flat = np.concatenate(tables)
    if in_range(flat, 2**31 if num_blocks is None else num_blocks) and not _any_double(flat, tables, null_block):
        return bad
    for i, table in enumerate(tables):
        before = len(faults)
        check_table(table, table, request_ids[i], field, faults, num_blocks, null_block)
        bad[i] = len(faults) > before
    return bad


def _any_double(flat: Ids, tables: Sequence[Ids], null_block: int | None) -> bool:
    rows = np.repeat(np.arange(len(tables)), [len(t) for t in tables])
    keys = (rows << 40) | np.minimum(flat, (1 << 40) - 1)
    if null_block is not None:
        keys = keys[flat != null_block]
    keys.sort()
    return bool((keys[1:] == keys[:-1]).any())


def check_table(
    ids: Ids, table: Ids, request_id: str, field: str, faults: Faults, num_blocks: int | None, null_block: int | None
) -> None:
    """The first of ``ids`` that does not exist, and the first id that stands twice in ``table``, where they go."""
    top = np.iinfo(np.int32).max if num_blocks is None else num_blocks - 1
    wrong = ids[(ids < 0) | (ids > top)]
    if len(wrong):
        bound = num_blocks if num_blocks is not None else (0 if wrong[0] < 0 else top)
        faults.add(request_id, field, int(wrong[0]), bound, "block ids are 0 to num_blocks - 1")
    seen: set[int] = set()
    for block in table.tolist():
        if block in seen and block != null_block:
            faults.add(request_id, field, block, 1, "a block stands in a table once")
            return
        seen.add(block)


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
