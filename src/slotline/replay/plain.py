"""What one request must generate, told alone: its tokens in order, and the stop rule (T) as plain Python."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from slotline.core.sampling import SamplingParams


class PlainResult(NamedTuple):
    tokens: list[int]
    finish_reason: int
    stop_match: tuple[int, int] | None


def generate(tokens: Iterable[int], sampling: SamplingParams, max_dec_len: int, eos: tuple[int, ...]) -> PlainResult:
    """Take ``tokens`` one by one until the stop rule ends the request."""
    stops = [seq.tolist() for seq in sampling.stop_lists]
    output: list[int] = []
    for token in tokens:
        output.append(token)
        t = len(output)
        if t < sampling.min_dec_len:
            continue
        if token in eos and not sampling.ignore_eos:
            return PlainResult(output, 1, None)
        for index, seq in enumerate(stops):
            if seq and output[-len(seq) :] == seq:
                return PlainResult(output, 2, (index, t - len(seq)))
        if t >= max_dec_len:
            return PlainResult(output, 3, None)
    return PlainResult(output, 0, None)
