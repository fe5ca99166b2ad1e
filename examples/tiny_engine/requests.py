"""What a request may ask for, and how a refusal is worded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields

import numpy as np

import slotline as sl
from examples.tiny_engine.options import Options

SERVED = ("stop_seqs", "min_dec_len", "max_dec_len", "ignore_eos")
"""Of SamplingParams; the engine decodes greedily, so the others have nothing to act on."""
_DEFAULT = sl.SamplingParams()


def make(
    request_id: str,
    prompt: bytes | Sequence[int],
    outputs: Iterable[int],
    sampling: sl.SamplingParams | None,
    options: Options,
) -> sl.Request:
    """The request. ``TypeError`` or ``ValueError`` for what is no request, or none that this engine can serve.

    Ids outside the vocabulary and limits that cannot be are left to ``insert_tasks`` (rule I1).
    """
    request = sl.Request(request_id, list(prompt), list(outputs), sampling=sampling)
    count, most = request.num_prompt_tokens, options.max_model_len - 1
    if not 0 < count <= most:
        raise ValueError(f"request {request_id!r}: {count} prompt tokens, allowed: 1 to {most}")
    if len(request.history) > most:
        raise ValueError(f"request {request_id!r}: {len(request.history)} tokens with its outputs, allowed: {most}")
    for name in (f.name for f in fields(sl.SamplingParams) if f.init and f.name not in SERVED):
        value = getattr(request.sampling, name)
        if not np.array_equal(value, getattr(_DEFAULT, name)):
            raise ValueError(
                f"request {request_id!r}: {name} is {value!r}, but this engine decodes greedily; leave it at its "
                f"default (served: {', '.join(SERVED)})"
            )
    return request


def stop_lists(sampling: sl.SamplingParams) -> list[list[int]]:
    """The stop sequences without the -1 that may stand behind them."""
    found = []
    for ids in sampling.stop_lists:
        length = len(ids)
        while length and ids[length - 1] == -1:
            length -= 1
        found.append(ids[:length].tolist())
    return found


def refusal(faults: Iterable[sl.Fault], request: sl.Request, config: sl.BatchConfig) -> str:
    """Why ``insert_tasks`` refused a request."""
    reasons = []
    for fault in faults:
        if fault.field == "stop_seqs":  # its value is a count, a length or a token
            lengths = [len(ids) for ids in stop_lists(request.sampling)]
            reasons.append(
                f"stop_seqs have {lengths} tokens, allowed: at most {config.max_stop_seqs} of 1 to "
                f"{config.stop_seqs_max_len} tokens, each 0 to {config.vocab_size - 1}"
            )
        else:
            reasons.append(f"{fault.field} is {fault.value!r}, bound {fault.bound!r}")
    return "; ".join(dict.fromkeys(reasons))
