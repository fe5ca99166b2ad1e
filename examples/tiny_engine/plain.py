"""Plain decoding: one request, one token a step, no slotline. What the engine's output is compared with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from examples.tiny_engine.model import EOS, MAX_LEN, Inputs, Model

BLOCK_SIZE = 32


class Plain(NamedTuple):
    """What a request should give."""

    tokens: list[int]
    finish_reason: str
    """``eos``, ``stop`` or ``length``"""
    stop_match: tuple[int, int] | None
    margin: float
    """The smallest distance between the two best logits of any step."""


def greedy(
    model: Model,
    prompt: bytes,
    *,
    max_tokens: int,
    min_tokens: int = 0,
    stop: Sequence[bytes] = (),
    ignore_eos: bool = False,
) -> Plain:
    """Decode ``prompt`` greedily until a token or a text ends it, or ``max_tokens``."""
    cache = model.new_cache(MAX_LEN // BLOCK_SIZE, BLOCK_SIZE)
    blocks = np.arange(MAX_LEN // BLOCK_SIZE, dtype=np.int32)[None]
    max_tokens = min(max_tokens, MAX_LEN - len(prompt))
    new, done = list(prompt), 0
    outputs: list[int] = []
    margin = np.inf
    while True:
        count = len(new)
        inputs = Inputs(
            np.array(new),
            np.arange(done, done + count),
            np.zeros(count, np.int32),
            np.array([0, count]),
            np.array([0, done + count]),
            blocks,
        )
        logits = model.logits(model.forward(inputs, cache)[-1:])[0]
        second, best = np.sort(logits)[-2:]
        margin = min(margin, float(best - second))
        done, new = done + count, [int(logits.argmax())]
        outputs += new
        if len(outputs) >= min_tokens:
            if new[0] == EOS and not ignore_eos:
                return Plain(outputs, "eos", None, margin)
            for number, text in enumerate(stop):
                if outputs[-len(text) :] == list(text):
                    return Plain(outputs, "stop", (number, len(outputs) - len(text)), margin)
        if len(outputs) >= max_tokens:
            return Plain(outputs, "length", None, margin)
