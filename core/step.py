"""Preparing a step: the rows of a batch as packed arrays, padding removed (rules L1, L2, P4)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from slotline.core.errors import Fault, TaskError
from slotline.core.ids import whole_number
from slotline.core.namespace import Array, cumulated, whole
from slotline.core.packing import row_lengths, spread, wanted_logits, write_all
from slotline.core.ticket import Ticket, take_rows

if TYPE_CHECKING:
    from slotline.core.batch import SlotBatch
    from slotline.core.config import BatchConfig

READS = (
    "input_ids",
    "draft_tokens",
    "seq_lens_encoder",
    "seq_lens_decoder",
    "seq_lens_this_time",
    "prompt_lens",
    "step_idx",
)


class Packed(NamedTuple):
    """A step's tensors; all int32 but the ids. T' is ``num_tokens``, S the slots, K the drafts."""

    input_ids: Any
    """[T'], the pad token behind the last"""
    positions: Any
    """[T'], 0 behind the last"""
    batch_id_per_token: Any
    """[T'], the token's slot, -1 behind the last"""
    cu_seqlens_q: Any
    """[S + 1], by position"""
    cu_seqlens_k: Any
    """[S + 1], by position: what lies in the KV cache before, and the row's tokens"""
    logits_rows: Any
    """[S * (K + 1)], the tokens whose logits are wanted, 0 behind the last"""
    num_logits: Any
    """[1]"""


class Step(Ticket):
    """A ticket with the packed arrays of its rows. The arrays are the step's own and stay as they are."""

    def __init__(
        self, batch: SlotBatch, rows: Iterable[str] | None, skip: Iterable[str], num_tokens: int | None
    ) -> None:
        batch.buffers.require(READS, "prepare_step")
        taken = take_rows(batch, rows, skip)
        super().__init__(batch, taken)
        if num_tokens is not None:
            self.num_tokens = _num_tokens(num_tokens, max(taken.bound, 1))
        self.arrays = self._pack()
        self.open()
        if batch.recorder is not None:
            batch.recorder.prepared_step(self, packed=True)

    def __getattr__(self, name: str) -> Any:
        if name in Packed._fields:
            return getattr(self.arrays, name)
        raise AttributeError(name)

    def _pack(self) -> Packed:
        config, num_tokens = self.batch.config, self.num_tokens
        identity = self.is_whole

        def run(xp: Any, reads: Any, writes: Any) -> None:
            pack(xp, reads, writes, reads["rows"], identity, num_tokens, config)

        made = [*specs(Packed._fields, config, num_tokens, config.max_num_seqs * (config.num_drafts + 1)), self.record]
        given = {"rows": self.rows()}
        out = self.batch.buffers.run_step(run, "prepare_step", reads=READS, given=given, made=made)
        self.lengths = out.pop("lengths")
        return Packed(**out)


def _num_tokens(given: Any, least: int) -> int:
    number = whole_number("num_tokens", given)
    if not least <= number < 2**31:
        hint = f"the rows taken may have {least} tokens; pass at least that, or fewer rows; int32 bounds the arrays"
        raise TaskError([Fault("", "num_tokens", number, least)], [hint])
    return number


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


def specs(
    names: Iterable[str], config: BatchConfig, num_tokens: int, num_logits: int
) -> list[tuple[str, tuple[int, ...], str]]:
    """Name, shape and dtype of packed arrays."""
    shapes = {"cu_seqlens_q": config.max_num_seqs + 1, "cu_seqlens_k": config.max_num_seqs + 1, "num_logits": 1,
              "logits_rows": num_logits, "logits_slots": num_logits}  # fmt: skip
    return [
        (name, (shapes.get(name, num_tokens),), config.token_dtype if name == "input_ids" else "int32")
        for name in names
    ]


def pack(xp: Any, reads: Any, writes: Any, rows: Array, identity: bool, num_tokens: int, config: BatchConfig) -> None:
    """Fill the arrays of ``Packed``, and ``lengths`` [S] by slot. ``identity``: position and slot are the same."""
    slots = rows[0]

    def by_position(array: Array) -> Array:
        return array if identity else xp.take(array, slots, axis=0)

    by_slot = row_lengths(xp, reads["seq_lens_this_time"], rows)
    lengths = xp.where(rows[2] > 0, by_position(by_slot), 0)
    decoder = by_position(whole(xp, reads["seq_lens_decoder"]))
    prefills = by_position(reads["seq_lens_encoder"]) > 0
    history = by_position(whole(xp, reads["prompt_lens"]) + whole(xp, reads["step_idx"]))
    grid = spread(xp, lengths, num_tokens)
    row = grid.at if identity else xp.take(slots, grid.at, axis=0)
    width = reads["input_ids"].shape[1]
    ids = reads["input_ids"][row, xp.clip(grid.j, 0, width - 1)]
    if config.spec_method != "none":
        drafted = whole(xp, reads["draft_tokens"][row, xp.clip(grid.j, 0, config.num_drafts)], ids.dtype)
        ids = xp.where(xp.take(prefills, grid.at, axis=0), ids, drafted)
    # All tokens of a decode row, the last of a prefill, none of a chunk that is not last.
    of_prefill = xp.astype((decoder + lengths >= history) & (lengths > 0), xp.int32)
    wanted = xp.where(prefills, of_prefill, lengths)
    logits = wanted_logits(xp, grid.cu_seqlens, wanted, writes["logits_rows"].shape[0])
    write_all(
        xp,
        writes,
        {
            "lengths": by_slot,
            "input_ids": xp.where(grid.inside, ids, config.pad_token_id),
            "positions": xp.where(grid.inside, xp.take(decoder, grid.at, axis=0) + grid.j, 0),
            "batch_id_per_token": xp.where(grid.inside, row, -1),
            "cu_seqlens_q": grid.cu_seqlens,
            "cu_seqlens_k": cumulated(xp, xp.where(lengths > 0, decoder + lengths, 0)),
            "logits_rows": logits.rows,
            "num_logits": logits.number,
        },
    )
