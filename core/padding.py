"""Stop sequences as a padded block, and the check of them (rules P1, P3)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slotline.core.ids import Ids, IdsLike, as_ids


class StopFault(NamedTuple):
    """Why stop sequences do not fit: the offending element or count, and the limit."""

    at: int
    value: Any
    bound: Any
    hint: str


def strip_padding(seq: Ids, pad: int = -1) -> Ids:
    """``seq`` without the pad values at its end."""
    length = len(seq)
    while length and seq[length - 1] == pad:
        length -= 1
    return seq[:length]


def stop_faults(seqs: Sequence[Ids], max_seqs: int, max_len: int, vocab_size: int | None) -> list[StopFault]:
    """What is wrong with ``seqs`` (padding at the end already removed); empty if nothing is (P3)."""
    faults = []
    if len(seqs) > max_seqs:
        faults.append(StopFault(max_seqs, len(seqs), max_seqs, f"at most {max_seqs} stop sequences"))
    for index, seq in enumerate(seqs):
        if not len(seq):
            faults.append(StopFault(index, index, 1, f"stop sequence {index} is empty; leave it out"))
        elif len(seq) > max_len:
            faults.append(StopFault(index, len(seq), max_len, f"stop sequence {index} has too many tokens"))
        elif vocab_size is not None:
            bad = seq[(seq < 0) | (seq >= vocab_size)]
            if len(bad):
                faults.append(
                    StopFault(index, int(bad[0]), vocab_size, f"stop sequence {index}: not in the vocabulary")
                )
    return faults


def pad_stop_sequences(
    seqs: Iterable[IdsLike], max_seqs: int, max_len: int, pad: int = -1
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Ragged stop sequences as a block int64 [max_seqs, max_len] and lengths int32 [max_seqs] (0 = unused).

    Pad values at the end of a sequence are removed first. Both results are new arrays; the input is not changed.

    Raises ``ValueError`` naming the index for too many, too long or empty sequences, and for ids below 0.
    Source: rule P3.
    """
    lists = [strip_padding(as_ids(seq, "stop_seqs"), pad) for seq in seqs]
    faults = stop_faults(lists, max_seqs, max_len, 2**63 - 1)
    if faults:
        raise ValueError("; ".join(f"{f.hint}: got {f.value}, bound {f.bound}" for f in faults))
    return fill_block(lists, max_seqs, max_len, pad)


def fill_block(
    lists: Sequence[Ids], max_seqs: int, max_len: int, pad: int = -1
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """The block and the lengths of sequences that were checked."""
    block = np.full((max_seqs, max_len), pad, np.int64)
    lens = np.zeros(max_seqs, np.int32)
    for index, seq in enumerate(lists):
        block[index, : len(seq)] = seq
        lens[index] = len(seq)
    return block, lens
