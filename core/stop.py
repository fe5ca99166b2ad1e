"""The stop rule (T), for all rows at once and for one token.

Only generated tokens count; a match never reaches into the prompt. At the t-th generated token (1-based): below
``min_dec_len`` go on; end-of-sequence; a stop sequence (the lowest that matches); ``max_dec_len``.
"""

from __future__ import annotations

import enum
import operator
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slotline.core.alone import Argument, run_alone
from slotline.core.namespace import whole
from slotline.core.packing import write_all
from slotline.core.scan import LIMITS, history_tail, scan


class FinishReason(enum.IntEnum):
    """Why a row ended; the values of the field ``finish_reason``."""

    NONE = 0
    EOS = 1
    STOP = 2
    LENGTH = 3
    HANDOVER = 4


class StopMatch(NamedTuple):
    """What the rule says of each row."""

    accept_num: Any
    """int32 [R], tokens that stay; the one that ends the row is kept"""
    finish_reason: Any
    """int32 [R], a ``FinishReason``; 0: it goes on"""
    stop_match: Any
    """int32 [R, 2], stop sequence and the generated token that it starts at; -1 without a match"""


def match_stop(
    accept_tokens: Any,
    accept_num: Any,
    *,
    token_ids_all: Any,
    prompt_lens: Any,
    step_idx: Any,
    stop_seqs: Any,
    stop_seqs_len: Any,
    min_dec_len: Any,
    max_dec_len: Any,
    ignore_eos: Any,
    eos_token_ids: Sequence[int],
) -> StopMatch:
    """The stop rule alone, for engines that keep their own loop: what ends each of R rows, and where it is cut.

    - ``accept_tokens`` [R, T], ``accept_num`` [R]: what a step accepted, counted from the left (0: nothing; more than
      T is T).
    - ``token_ids_all`` [R, L]: prompt and generated tokens before; ``prompt_lens`` [R], ``step_idx`` [R]: how many of
      each. Only generated tokens are ever matched. T and L are at least 1.
    - ``stop_seqs`` [R, N, W], ``stop_seqs_len`` [R, N] (0 = unused), see ``pad_stop_sequences``; ``min_dec_len``,
      ``max_dec_len`` [R]; ``ignore_eos`` bool [R]. All others are whole numbers of any dtype.

    Takes NumPy arrays, or tensors of one loaded backend (NumPy arrays among them are uploaded). Nothing is changed or
    kept. The result is new arrays of the same kind. Raises ``ValueError`` for a shape or dtype that does not fit,
    ``TypeError`` for anything but arrays. Source: rule T.
    """
    given = {
        "accept_tokens": accept_tokens, "accept_num": accept_num, "token_ids_all": token_ids_all,
        "prompt_lens": prompt_lens, "step_idx": step_idx, "stop_seqs": stop_seqs, "stop_seqs_len": stop_seqs_len,
        "min_dec_len": min_dec_len, "max_dec_len": max_dec_len, "ignore_eos": ignore_eos,
    }  # fmt: skip
    dims = {
        "accept_tokens": ("R", "T"), "token_ids_all": ("R", "L"), "stop_seqs": ("R", "N", "W"),
        "stop_seqs_len": ("R", "N"),
    }  # fmt: skip
    least = {"accept_tokens": 1, "token_ids_all": 1}
    try:
        eos = tuple(operator.index(token) for token in eos_token_ids)
    except TypeError:
        raise TypeError(f"match_stop: eos_token_ids is {eos_token_ids!r}, allowed: token ids, whole numbers") from None

    def run(xp: Any, reads: Any, writes: Any) -> None:
        limits = {key: reads[key] for key in LIMITS}
        lens = limits["stop_seqs_len"]
        limits["stop_seqs_len"] = xp.where(lens > limits["stop_seqs"].shape[2], 0, lens)  # they match nothing
        generated = whole(xp, reads["step_idx"], xp.int64)
        history = whole(xp, reads["prompt_lens"], xp.int64) + generated
        tail = history_tail(xp, reads["token_ids_all"], history, max(reads["stop_seqs"].shape[2] - 1, 0))
        tokens = whole(xp, reads["accept_tokens"], xp.int64)
        count = xp.clip(whole(xp, reads["accept_num"], xp.int64), 0, tokens.shape[1])
        found = scan(xp, tokens, count, generated, tail, limits, eos)
        write_all(xp, writes, dict(zip(StopMatch._fields, found, strict=True)))

    return StopMatch(
        **run_alone(
            "match_stop",
            run,
            {
                key: Argument(array, dims.get(key, ("R",)), key == "ignore_eos", least.get(key, 0))
                for key, array in given.items()
            },
            {"accept_num": (("R",), "int32"), "finish_reason": (("R",), "int32"), "stop_match": (("R", 2), "int32")},
        )
    )


def match_token(
    output: Sequence[int] | NDArray[Any],
    *,
    min_dec_len: int,
    max_dec_len: int,
    ignore_eos: bool,
    stop_lists: Iterable[NDArray[Any]],
    eos_token_ids: Sequence[int],
) -> tuple[FinishReason, tuple[int, int] | None]:
    """The rule for the last token of ``output`` (all tokens generated so far), on the host: D4."""
    t = len(output)
    if t < min_dec_len:
        return FinishReason.NONE, None
    if output[t - 1] in eos_token_ids and not ignore_eos:
        return FinishReason.EOS, None
    for index, seq in enumerate(stop_lists):
        n = len(seq)
        if 0 < n <= t and np.array_equal(output[t - n :], seq):
            return FinishReason.STOP, (index, t - n)
    return (FinishReason.LENGTH, None) if t >= max_dec_len else (FinishReason.NONE, None)
