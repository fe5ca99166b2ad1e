"""Preparing a step: the rows of a batch as packed arrays, padding removed (rules L1, L2, P4)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slotline.core.errors import Fault, TaskError
from slotline.core.ticket import Ticket, take_rows

if TYPE_CHECKING:
    from slotline.core.batch import SlotBatch

READS = ("input_ids", "draft_tokens", "seq_lens_encoder", "seq_lens_decoder", "prompt_lens", "step_idx")


class Packed(NamedTuple):
    """A step's arrays; all int32 but the ids. T' is ``num_tokens``, S the slots, K the drafts."""

    input_ids: NDArray[Any]
    """[T'], the pad token behind the last"""
    positions: NDArray[np.int32]
    """[T'], 0 behind the last"""
    batch_id_per_token: NDArray[np.int32]
    """[T'], the token's slot, -1 behind the last"""
    cu_seqlens_q: NDArray[np.int32]
    """[S + 1], by position"""
    cu_seqlens_k: NDArray[np.int32]
    """[S + 1], by position: what lies in the KV cache before, and the row's tokens"""
    logits_rows: NDArray[np.int32]
    """[S * (K + 1)], the tokens whose logits are wanted, 0 behind the last"""
    num_logits: NDArray[np.int32]
    """[1]"""


class Step(Ticket):
    """A ticket with the packed arrays of its rows. The arrays are the step's own and stay as they are."""

    def __init__(
        self, batch: SlotBatch, rows: Iterable[str] | None, skip: Iterable[str], num_tokens: int | None
    ) -> None:
        batch.buffers.require((*READS, "seq_lens_this_time"), "prepare_step")
        taken = take_rows(batch, rows, skip)
        bound = sum(int(batch.slots.bound[e.slot]) for e in taken.entries)
        if num_tokens is None:
            num_tokens = 1 << max(0, bound - 1).bit_length()
        elif num_tokens < bound:
            hint = f"the rows taken may have {bound} tokens; pass at least that, or fewer rows"
            raise TaskError([Fault("", "num_tokens", num_tokens, bound)], [hint])
        super().__init__(batch, taken)
        self.num_tokens = int(num_tokens)
        self.arrays = self._pack()

    def __getattr__(self, name: str) -> Any:
        if name in Packed._fields:
            return getattr(self.arrays, name)
        raise AttributeError(name)

    def _pack(self) -> Packed:
        config = self.batch.config
        slots = np.array(self.slots + [0] * (config.max_num_seqs - len(self.slots)), np.intp)
        lengths = np.where(np.arange(config.max_num_seqs) < len(self.slots), self.lengths[slots], 0)
        out: list[Packed] = []

        def run(reads: Any, _writes: Any) -> None:
            out.append(
                pack(reads, slots, lengths, self.num_tokens, config.num_drafts, config.pad_token_id,
                     config.spec_method != "none")
            )  # fmt: skip

        self.batch.buffers.run_step(run, READS, (), np.empty(0, np.intp), "prepare_step")
        return out[0]


def prepare_step(
    batch: SlotBatch,
    *,
    rows: Iterable[str] | None = None,
    skip: Iterable[str] = (),
    num_tokens: int | None = None,
) -> Step:
    """Open a step and pack its rows (L1).

    - ``rows``: the requests whose rows are taken, in this order; None: every slot in order.
    - ``skip``: requests that are left out of this step.
    - ``num_tokens``: T', the length of the packed arrays; None: the launch bound of the rows taken, rounded up to a
      power of two.

    Free, idle and skipped rows, and rows in an open step, have length 0. ``TaskError`` for an unknown or doubled id,
    and for ``num_tokens`` below the launch bound.
    """
    return Step(batch, rows, skip, num_tokens)


def pack(
    reads: dict[str, NDArray[Any]],
    slots: NDArray[np.intp],
    lengths: NDArray[Any],
    num_tokens: int,
    num_drafts: int,
    pad_token_id: int,
    speculative: bool,
) -> Packed:
    """The packed arrays of rows ``slots`` [S] with ``lengths`` [S], both by position. No shape depends on data."""
    size = len(slots)
    decoder, encoder = reads["seq_lens_decoder"][slots], reads["seq_lens_encoder"][slots]
    cu_q = _cumulated(lengths)
    cu_k = _cumulated(np.where(lengths > 0, decoder + lengths, 0))

    token = np.arange(num_tokens)
    inside = token < cu_q[-1]
    at = np.minimum(np.searchsorted(cu_q[1:], token, side="right"), size - 1)  # the token's position in the step
    row = slots[at]
    j = np.where(inside, token - cu_q[at], 0)
    ids = reads["input_ids"][row, np.minimum(j, reads["input_ids"].shape[1] - 1)]
    if speculative:
        drafted = reads["draft_tokens"][row, np.minimum(j, num_drafts)]
        ids = np.where(encoder[at] > 0, ids, drafted)
    pad = ids.dtype.type(pad_token_id)

    last = decoder + lengths >= reads["prompt_lens"][slots] + reads["step_idx"][slots]
    wanted = np.where(lengths > 0, np.where(encoder > 0, last.astype(np.int64), lengths), 0)
    cu_l = _cumulated(wanted)
    logit = np.arange(size * (num_drafts + 1))
    of = np.minimum(np.searchsorted(cu_l[1:], logit, side="right"), size - 1)
    # The last `wanted` tokens of the row: all of a decode row, the last of a prefill.
    where = cu_q[of + 1] - wanted[of] + (logit - cu_l[of])
    return Packed(
        input_ids=np.where(inside, ids, pad),
        positions=np.where(inside, decoder[at] + j, 0).astype(np.int32),
        batch_id_per_token=np.where(inside, row, -1).astype(np.int32),
        cu_seqlens_q=cu_q.astype(np.int32),
        cu_seqlens_k=cu_k.astype(np.int32),
        logits_rows=np.where(logit < cu_l[-1], where, 0).astype(np.int32),
        num_logits=cu_l[-1:].astype(np.int32),
    )


def _cumulated(lengths: NDArray[Any]) -> NDArray[np.int64]:
    return np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)))
