"""What the decode side demands of an answer: it must be to the request that was sent, and no more than was asked."""

from __future__ import annotations

from typing import Any

import slotline as sl
from examples.tiny_engine.messages import FinishedMessage, HandoverMessage, SplitError
from examples.tiny_engine.requests import stop_lists
from examples.tiny_engine.results import ENDED, REFUSED
from examples.tiny_engine.scheduler import Sequence


def check_finished(seq: Sequence, message: FinishedMessage) -> None:
    """``SplitError`` unless the prefill side may have ended ``seq`` so: by its first token, or by refusing it."""
    reason, tokens, match = message.finish_reason, message.tokens, message.stop_match
    refused = reason.startswith(REFUSED) and reason.isprintable()
    if not refused and reason not in ENDED:
        raise SplitError(f"request {seq.request_id!r} ended by {reason[:80]!r}, allowed: {', '.join(ENDED)}, refused")
    known, more = len(seq.outputs), 0 if refused else 1
    if tokens[:known] != seq.outputs or len(tokens) != known + more:
        raise SplitError(
            f"request {seq.request_id!r} ended with {len(tokens)} tokens, allowed: the {known} that it had, and {more}"
        )
    if (match is not None) != (reason == "stop") or (match and not _is_match(seq, tokens, *match)):
        raise SplitError(f"request {seq.request_id!r} ended by {reason!r} with stop_match {match}, which is not there")


def _is_match(seq: Sequence, tokens: list[int], which: int, start: int) -> bool:
    stops = stop_lists(seq.sampling)
    return 0 <= which < len(stops) and start >= 0 and tokens[start:] == stops[which]


def check_handover(seq: Sequence, head: HandoverMessage) -> None:
    """``SplitError`` unless the record is of ``seq`` as it was sent; ``PacketError`` if it is no record."""
    got = _asked(sl.Request.from_handover(head.record))
    wanted = _asked(sl.Request(seq.request_id, seq.prompt, seq.outputs, sampling=seq.sampling))
    wrong = [name for name, value in wanted.items() if got[name] != value]
    if wrong:
        raise SplitError(f"request {seq.request_id!r} was handed over with another {', '.join(wrong)} than was sent")


def _asked(request: sl.Request) -> dict[str, Any]:
    return {
        "request_id": request.request_id,
        "prompt": request.prompt_token_ids.tolist(),
        "output": request.output_token_ids.tolist(),
        "sampling": (request.sampling.packed, list(request.sampling.bad_tokens)),
        "stop_seqs": stop_lists(request.sampling),
    }
