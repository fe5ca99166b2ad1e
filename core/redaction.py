"""Token ids are users' text: in a recording they are replaced by a keyed permutation of the vocabulary (rule R)."""

from __future__ import annotations

import secrets
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slotline.core.config import BatchConfig
from slotline.core.field import Field


class Permutation:
    """A permutation of ``[0, vocab_size)`` by a key that is thrown away.

    End-of-sequence ids and the pad token stay, and so does whatever is no token id (-1, padding): so stop rules, stop
    sequences and fills mean the same afterwards.
    """

    def __init__(self, config: BatchConfig) -> None:
        fixed = {config.pad_token_id, *config.eos_token_ids}
        moving = np.array([t for t in range(config.vocab_size) if t not in fixed], np.int64)
        self._map: NDArray[np.int64] = np.arange(config.vocab_size, dtype=np.int64)
        self._map[moving] = np.random.default_rng(secrets.randbits(256)).permutation(moving)

    def of(self, ids: Any) -> NDArray[Any]:
        """``ids``, any whole numbers of any shape, in their own dtype; a copy."""
        out = np.array(ids)
        inside = (out >= 0) & (out < len(self._map))
        out[inside] = self._map[out[inside]]
        return out

    def hide(self, field: Field, array: NDArray[Any]) -> NDArray[Any]:
        """The cells of a field, redacted where it holds token ids."""
        return self.of(array) if field.token_ids else array


class Plain:
    """Nothing is hidden."""

    def of(self, ids: Any) -> NDArray[Any]:
        return np.array(ids)

    def hide(self, field: Field, array: NDArray[Any]) -> NDArray[Any]:
        return array
