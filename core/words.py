"""What is known of prefill tasks as a table of 64-bit words: the planner's numbers, one row for each task.

Made in one pass over the tasks; the checks and the plan read columns of it. A word is a whole number, or the bits of a
float64 where a sampling value is a float. Behind a task's own words stand the constants of the layout's rules, so that
one indexed read gives a row of fields whatever their rules are.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slotline.core.config import BatchConfig
from slotline.core.sampling import SCALAR_KINDS, SCALAR_NAMES
from slotline.core.tasks import PrefillTask

Words = NDArray[np.int64]

COUNTED = (
    "start",
    "end",
    "chunk_len",
    "not_last",
    "num_blocks",
    "prompt_len",
    "history_len",
    "num_generated",
    "max_dec_len",  # after the cut of I2
    "cut",
    "num_bad_tokens",
    "draft_len",
    "num_first_step_tokens",  # D2; the four from here on before D4 has its say
    "num_first_step_drafts",
    "ended",
    "finish_reason",
)
"""Numbers that are worked out here; the sampling values follow them."""
START, END, CHUNK_LEN, NUM_BLOCKS, PROMPT_LEN, HISTORY_LEN = 0, 1, 2, 4, 5, 6
MAX_DEC_LEN, CUT, DRAFT_LEN, FIRST_STEP, FIRST_DRAFTS, ENDED, FINISH_REASON = 8, 9, 11, 12, 13, 14, 15
AT: dict[str, int] = {name: len(COUNTED) + i for i, name in enumerate(SCALAR_NAMES)} | {
    name: i for i, name in enumerate(COUNTED)
}
"""The word of each scalar quantity."""
FLOATS = frozenset(name for name, kind in SCALAR_KINDS.items() if kind == "float")
WIDTH = len(COUNTED) + len(SCALAR_NAMES)
_PACK = struct.Struct(f"<{len(COUNTED)}q")
_ROW = struct.Struct(f"<{len(COUNTED)}q{8 * len(SCALAR_NAMES)}s")
_FAR = 2**62

Numbers = tuple[int, int, int, bool, int, int, int, int, int, bool, int, int, int, int, int, int]


class WordTable:
    """Tables of words of one batch. ``constants``: words that stand behind every task's own."""

    def __init__(self, config: BatchConfig, constants: Words) -> None:
        self.longest, self.role_decode, self.levels = config.max_model_len, config.role == "decode", config.num_levels
        self.width = WIDTH + len(constants)
        self._constants = constants
        self._rows = self.empty(8)
        self._bytes = self._rows.data.cast("B")

    def numbers_of(self, task: PrefillTask) -> Numbers:
        """The numbers of ``COUNTED``."""
        request = task.request
        sampling = request.sampling
        start, end, history, prompt = task.start, task.end, len(request.history), request.num_prompt_tokens
        limit, most = self.longest - prompt, sampling.max_dec_len
        cut = most is not None and most > limit
        if most is None or cut:
            most = limit
        generated, first, drafts = history - prompt, 0, 0
        if self.role_decode:
            generated += 1
            first = 1 if self.levels == 0 or most - generated - 1 < 1 else 2
            drafts = first - 1
        bad = 0 if sampling.lists is None else len(sampling.bad_tokens)  # type: ignore[arg-type]  # an array by now
        return (start, end, end - start, end < history, len(task.block_table), prompt, history, generated, most, cut,
                bad, len(request.draft_token_ids), first, drafts, 0, 0)  # fmt: skip

    def empty(self, count: int) -> Words:
        """A table [count, width] of its own, with the constants in place."""
        rows = np.empty((count, self.width), np.int64)
        rows[:, WIDTH:] = self._constants
        return rows

    def reserve(self, count: int) -> Words:
        """The first ``count`` rows of the table that is kept; what they held is gone."""
        if count > len(self._rows):
            self._rows = self.empty(max(count, 2 * len(self._rows)))
            self._bytes = self._rows.data.cast("B")
        return self._rows[:count]

    def put(self, row: int, numbers: Numbers, packed: bytes) -> None:
        """A task into a row of the table that is kept; ``struct.error`` for numbers beyond 64 bits."""
        _ROW.pack_into(self._bytes, row * 8 * self.width, *numbers, packed)

    def of(self, tasks: Sequence[PrefillTask]) -> Words:
        """A table of its own; chunk bounds beyond 64 bits are brought into range, where they still fail."""
        rows = self.empty(len(tasks))
        for row, task in zip(rows, tasks, strict=True):
            numbers = self.numbers_of(task)
            try:
                packed = _PACK.pack(*numbers)
            except struct.error:
                packed = _PACK.pack(*(max(-_FAR, min(_FAR, n)) for n in numbers))
            row[:WIDTH] = np.frombuffer(packed + task.request.sampling.packed, np.int64)
        return rows


def floats(words: Words) -> NDArray[Any]:
    """The same words as float64."""
    return words.view(np.float64)
