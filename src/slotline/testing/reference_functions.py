"""The functions that belong to no batch, as plain loops over rows (rules M4, T, and greedy verification)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from slotline.testing.reference_commit import plain
from slotline.testing.reference_rows import stop_rule


def next_tokens(lookahead: Any, predicted: Any) -> list[list[int]]:
    """M4: the lookahead where there is one, else the prediction."""
    return [
        [p if known == -1 else known for known, p in zip(left, right, strict=True)]
        for left, right in zip(plain(lookahead), plain(predicted), strict=True)
    ]


def greedy(draft_tokens: Any, target_tokens: Any) -> tuple[list[list[int]], list[int]]:
    """(accept_tokens [R, K + 1], accept_num [R]): the drafts that the target would have given, and one token more."""
    tokens, counts = [], []
    for drafts, targets in zip(plain(draft_tokens), plain(target_tokens), strict=True):
        kept = 0
        while kept < len(drafts) and drafts[kept] >= 0 and drafts[kept] == targets[kept]:
            kept += 1
        tokens.append(targets[: kept + 1] + [-1] * (len(drafts) - kept))
        counts.append(kept + 1)
    return tokens, counts


class RefStop(NamedTuple):
    """What T says of each row."""

    accept_num: list[int]
    finish_reason: list[int]
    stop_match: list[list[int]]


def stops(accept_tokens: Any, accept_num: Any, *, eos_token_ids: Sequence[int], **rows: Any) -> RefStop:
    """Rule T for rows given as the arguments of ``match_stop``."""
    values = {name: plain(array) for name, array in rows.items()}
    found = RefStop([], [], [])
    for r, (tokens, count) in enumerate(zip(plain(accept_tokens), plain(accept_num), strict=True)):
        row = {name: array[r] for name, array in values.items()}
        prompt, generated = row["prompt_lens"], row["step_idx"]
        sequences = [seq[:n] for seq, n in zip(row["stop_seqs"], row["stop_seqs_len"], strict=True)]
        kept, reason, match = stop_rule(
            row["token_ids_all"][prompt : prompt + generated], tokens[:count], row["min_dec_len"], row["max_dec_len"],
            eos_token_ids, row["ignore_eos"], sequences,
        )  # fmt: skip
        found.accept_num.append(kept)
        found.finish_reason.append(reason)
        found.stop_match.append(list(match or (-1, -1)))
    return found
