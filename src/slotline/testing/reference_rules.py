"""Plain rules of the contract for the reference: the stop rule, first steps, limits. No code of the planner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from slotline.core.config import BatchConfig
from slotline.core.tasks import Request

EOS, STOP, LENGTH, HANDOVER = 1, 2, 3, 4


def stop_lists(request: Request) -> list[list[int]]:
    """The request's stop sequences without the padding at their ends."""
    lists = []
    for seq in request.sampling.stop_seqs:
        ids = [int(t) for t in seq]
        while ids and ids[-1] == -1:
            ids.pop()
        lists.append(ids)
    return lists


def max_dec_len(config: BatchConfig, request: Request) -> int:
    """I2: unset or too large is what the model's length leaves."""
    limit = config.max_model_len - len(request.prompt_token_ids)
    given = request.sampling.max_dec_len
    return limit if given is None or given > limit else given


def stop_rule(
    output_before: Sequence[int],
    accepted: Sequence[int],
    min_dec_len: int,
    max_len: int,
    eos_ids: Sequence[int],
    ignore_eos: bool,
    stop_seqs: Sequence[Sequence[int]],
) -> tuple[int, int, tuple[int, int] | None]:
    """T, token by token: (tokens kept, reason, match)."""
    output = list(output_before)
    for i, token in enumerate(accepted):
        output.append(int(token))
        t = len(output)
        if t < min_dec_len:
            continue
        if token in eos_ids and not ignore_eos:
            return i + 1, EOS, None
        for g, seq in enumerate(stop_seqs):
            n = len(seq)
            if 0 < n <= t and output[t - n :] == list(seq):
                return i + 1, STOP, (g, t - n)
        if t >= max_len:
            return i + 1, LENGTH, None
    return len(accepted), 0, None


def first_step(config: BatchConfig, request: Request) -> int:
    """D2."""
    if config.spec_method != "mtp":
        return 1
    step_idx = len(request.output_token_ids) + 1
    return 1 + max(0, min(1, max_dec_len(config, request) - step_idx - 1))


def handed_over(config: BatchConfig, request: Request) -> tuple[int, tuple[int, int] | None]:
    """D4: what the stop rule says of the first token."""
    params = request.sampling
    output = [int(t) for t in request.output_token_ids]
    first = [int(request.draft_token_ids[0])]
    _, reason, match = stop_rule(
        output, first, params.min_dec_len, max_dec_len(config, request), config.eos_token_ids, params.ignore_eos,
        stop_lists(request),
    )  # fmt: skip
    return reason, match


def row_of(array: Any, slot: int, axis: int) -> Any:
    """The part of one slot, as a view."""
    return array[(slice(None),) * axis + (slot,)]
