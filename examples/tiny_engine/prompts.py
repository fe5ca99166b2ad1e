"""The prompts that modes are compared on: passages of this repository that the model was not trained on."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from examples.tiny_engine.model import Model
from examples.tiny_engine.plain import Plain, greedy

PASSAGES = Path(__file__).with_name("passages.txt")
SEPARATOR = b"\n%%\n"
MARGIN = 1e-3
"""What the two best logits differ by at every step, so that rounding cannot change the best."""


class Prompt(NamedTuple):
    text: bytes
    plain: Plain
    """Its plain continuation."""


def select(model: Model, count: int, max_tokens: int) -> list[Prompt]:
    """The first ``count`` passages whose plain continuation leaves no doubt at any step.

    ``ValueError`` if there are fewer.
    """
    found = []
    for text in PASSAGES.read_bytes().removesuffix(b"\n").split(SEPARATOR):
        plain = greedy(model, text, max_tokens=max_tokens)
        if plain.margin > MARGIN:
            found.append(Prompt(text, plain))
        if len(found) == count:
            return found
    raise ValueError(f"{count} prompts asked for, {len(found)} of {PASSAGES.name} are clear enough for these weights")
