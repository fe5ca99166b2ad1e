"""From a trace's row to a request: prompt, sampling values and fate, all drawn from the seed and the row's number."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from slotline.core.config import BatchConfig
from slotline.core.ids import Ids
from slotline.core.sampling import SamplingParams
from slotline.core.tasks import Request
from slotline.replay.model import SYMBOLS
from slotline.replay.traces import TraceRow

HASHED_TOKENS = 512
"""Tokens of the prompt that one of a trace's hash ids stands for."""


@dataclass(slots=True, eq=False)
class Sequence:
    """One request on its way through the scheduler."""

    index: int
    """Place in the trace; the youngest has the highest."""
    request_id: str
    prompt: Ids
    sampling: SamplingParams
    max_dec_len: int
    cached: int
    """Leading tokens of the prompt that a prefix cache would hold; the first prefill begins behind them."""
    abort_after: int | None
    """Steps after the first admission at which the request is given up."""
    outputs: list[int] = field(default_factory=list)
    """What the scheduler knows to be generated."""
    handed: Request | None = None
    """Role split: what the prefill side handed over last, as it arrived."""
    abort_step: int | None = None

    @property
    def history_len(self) -> int:
        return len(self.prompt) + len(self.outputs)


class Workload:
    """Makes sequences from rows; counts those that no slot could hold (``refused``)."""

    def __init__(self, rows: Iterator[TraceRow], config: BatchConfig, seed: int, abort_rate: float) -> None:
        self.config, self.seed, self.abort_rate = config, seed, abort_rate
        self.accepted = self.refused = 0
        self._rows = rows
        self._seen: set[int] = set()

    def next(self) -> Sequence | None:
        """The next request that the model can hold; None: the trace has ended."""
        for row in self._rows:
            index = self.accepted + self.refused
            longest = self.config.max_model_len
            if not 0 < row.prompt_len < longest or row.output_len < 1 or row.prompt_len + row.output_len > longest:
                self.refused += 1
                continue
            self.accepted += 1
            return self._sequence(index, row)
        return None

    def _sequence(self, index: int, row: TraceRow) -> Sequence:
        rng = np.random.default_rng([self.seed, index])
        sampling = self._sampling(rng, index, row.output_len)
        abort_after = None
        if rng.random() < self.abort_rate:
            chunks = -(-row.prompt_len // self.config.max_chunk_tokens)
            abort_after = int(rng.integers(0, chunks + row.output_len + 1))
        return Sequence(
            index, f"r{index}", self._prompt(rng, row), sampling, row.output_len, self._cached(row), abort_after
        )

    def _prompt(self, rng: np.random.Generator, row: TraceRow) -> Ids:
        vocab = self.config.vocab_size
        prompt = rng.integers(0, vocab, row.prompt_len, dtype=np.int64)
        for place, hash_id in enumerate(row.hash_ids or ()):
            part = prompt[place * HASHED_TOKENS : (place + 1) * HASHED_TOKENS]
            if not len(part):
                break
            shared = np.random.default_rng([self.seed, 0x6A5, hash_id])
            part[...] = shared.integers(0, vocab, HASHED_TOKENS, dtype=np.int64)[: len(part)]
        return prompt

    def _cached(self, row: TraceRow) -> int:
        """Tokens of the leading hash ids that an earlier request had; at least one token is left to compute."""
        known = 0
        for hash_id in row.hash_ids or ():
            if hash_id not in self._seen:
                break
            known += 1
        self._seen.update(row.hash_ids or ())
        return min(known * HASHED_TOKENS, (row.prompt_len - 1) // HASHED_TOKENS * HASHED_TOKENS)

    def _sampling(self, rng: np.random.Generator, index: int, output_len: int) -> SamplingParams:
        config = self.config
        stop_seqs: list[list[int]] = []
        if rng.random() < 0.5 and config.max_stop_seqs:
            longest = min(4, config.stop_seqs_max_len)
            for _ in range(int(rng.integers(1, config.max_stop_seqs + 1))):
                length = int(rng.integers(min(2, longest), longest + 1))
                stop_seqs.append([SYMBOLS[i] for i in rng.integers(1, len(SYMBOLS), length)])
        bad = rng.integers(0, config.vocab_size, int(rng.integers(0, config.max_bad_tokens + 1)))
        return SamplingParams(
            temperature=float(rng.random() * 2),
            top_p=float(1 - rng.random() * 0.9),
            min_p=float(rng.random() * 0.2),
            top_k=int(rng.integers(0, 64)),
            penalty_score=float(1 + rng.random()),
            frequency_score=float(rng.random()),
            presence_score=float(rng.random()),
            infer_seed=(self.seed & 0xFFFF) << 40 | index + 1,
            min_dec_len=int(rng.integers(0, min(output_len, 12) + 1)) if rng.random() < 0.3 else 0,
            max_dec_len=output_len,
            ignore_eos=bool(rng.random() < 0.3),
            enable_thinking=bool(rng.random() < 0.5),
            max_think_lens=int(rng.integers(-1, 1000)),
            max_reply_lens=int(rng.integers(-1, 1000)),
            temp_scaled_logprobs=bool(rng.random() < 0.2),
            top_p_normalized_logprobs=bool(rng.random() < 0.2),
            stop_seqs=stop_seqs,
            bad_tokens=bad if rng.random() < 0.3 else (),
        )
