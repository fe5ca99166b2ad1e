"""Pairwise selection: few combinations in which every two values of different factors meet."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Sequence

Combination = tuple[Hashable, ...]


def pairs(combination: Combination) -> set[tuple[int, Hashable, int, Hashable]]:
    """The pairs of values that meet in a combination, each with its factors."""
    return {(i, a, j, b) for (i, a), (j, b) in itertools.combinations(enumerate(combination), 2)}


def pairwise(*factors: Sequence[Hashable]) -> list[Combination]:
    """A greedy cover: each time the combination in which most pairs are new, the first of them."""
    every = list(itertools.product(*factors))
    missing = set().union(*map(pairs, every))
    chosen = []
    while missing:
        best = max(every, key=lambda combination: len(pairs(combination) & missing))
        chosen.append(best)
        missing -= pairs(best)
    return chosen
