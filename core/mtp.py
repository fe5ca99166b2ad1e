"""The small rules of multi-token prediction, each usable alone: resolving the lookahead (M4), greedy verification."""

from __future__ import annotations

from typing import Any, NamedTuple

from slotline.core.alone import Argument, run_alone
from slotline.core.namespace import Array, whole
from slotline.core.packing import write_all


class Verified(NamedTuple):
    """What greedy verification accepts."""

    accept_tokens: Any
    """[R, K + 1], the dtype of ``target_tokens`` (int64 for an unsigned one); -1 behind the accepted"""
    accept_num: Any
    """int32 [R], 1 to K + 1"""


def resolve(xp: Any, lookahead: Array, predicted: Array) -> Array:
    """M4 on arrays of one dtype."""
    return xp.where(lookahead == -1, predicted, lookahead)


def mtp_next_tokens(lookahead: Any, predicted: Any) -> Any:
    """The tokens behind a chunk that the drafter must see: the history's own, else what the models predict.

    - ``lookahead`` [rows, M]: ``mtp.lookahead_tokens`` or rows of it; -1 where the history ends.
    - ``predicted`` [rows, M]: column 0 is the target's sample, column j level j's draft.

    A new array of their dtype, int64 if they differ. Rows do not see each other, so two micro-batches can be resolved
    apart. Takes NumPy arrays or tensors of one loaded backend. ``ValueError`` for another shape or dtype.
    Source: rule M4.
    """

    def run(xp: Any, reads: Any, writes: Any) -> None:
        resolved = resolve(xp, whole(xp, reads["lookahead"], xp.int64), whole(xp, reads["predicted"], xp.int64))
        write_all(xp, writes, {"next_tokens": resolved})

    given = {"lookahead": Argument(lookahead, ("rows", "M")), "predicted": Argument(predicted, ("rows", "M"))}
    made = {"next_tokens": (("rows", "M"), "lookahead, predicted")}
    return run_alone("mtp_next_tokens", run, given, made)["next_tokens"]


def verify_greedy(draft_tokens: Any, target_tokens: Any) -> Verified:
    """Accept the drafts that the target would have chosen itself, and its own next token behind them.

    - ``draft_tokens`` [R, K]: -1 = none; -1 is never accepted.
    - ``target_tokens`` [R, K + 1]: the target's choice after the last token, after the first draft, and so on.

    New arrays; inputs are not changed. Takes NumPy arrays or tensors of one loaded backend. ``ValueError`` for another
    shape or dtype. What comes out is what ``commit_step`` takes, before the cut of rule T.
    """

    def run(xp: Any, reads: Any, writes: Any) -> None:
        drafts, target = whole(xp, reads["draft_tokens"], xp.int64), whole(xp, reads["target_tokens"], xp.int64)
        number = drafts.shape[1]
        column = xp.arange(number + 1, dtype=xp.int64)
        wrong = xp.astype((drafts != target[:, :number]) | (drafts < 0), xp.int64)
        misses = xp.cumulative_sum(wrong, axis=1)
        count = 1 + xp.sum(xp.astype(misses == 0, xp.int64), axis=1)
        accepted = xp.where(column < count[:, None], target, -1)
        write_all(xp, writes, {"accept_tokens": accepted, "accept_num": count})

    given = {"draft_tokens": Argument(draft_tokens, ("R", "K")), "target_tokens": Argument(target_tokens, ("R", "K+1"))}
    made = {"accept_tokens": (("R", "K+1"), "target_tokens"), "accept_num": (("R",), "int32")}
    return Verified(**run_alone("verify_greedy", run, given, made))
