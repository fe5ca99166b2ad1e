"""The packed arrays of a replay's steps and draft levels against the reference (rules L1, L5, P4).

``slotline.testing`` says them token by token; a replay has millions of tokens, so a step's are written here row by row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from slotline.testing.reference import Mismatch, ReferenceBatch
from slotline.testing.reference_draft import ANY_ID, packed_draft

if TYPE_CHECKING:
    from slotline.core.batch import SlotBatch
    from slotline.testing.reference_rows import RefTicket

Array = NDArray[Any]


def packed_step(reference: ReferenceBatch, ticket: RefTicket, num_tokens: int) -> dict[str, Array]:
    """What ``prepare_step`` must give for a ticket that has just been opened."""
    config, arrays = reference.config, reference.arrays
    size, width = config.max_num_seqs, config.num_drafts + 1
    ids: list[Array] = []
    positions: list[Array] = []
    slots: list[Array] = []
    logits: list[int] = []
    packed = 0
    lengths, keys = np.zeros(size, np.int64), np.zeros(size, np.int64)
    for entry in ticket.entries:
        s, length = entry.slot, int(arrays["seq_lens_this_time"][entry.slot])
        start, prefills = int(arrays["seq_lens_decoder"][s]), arrays["seq_lens_encoder"][s] > 0
        speculates = config.spec_method != "none" and not prefills
        ids.append(arrays["draft_tokens" if speculates else "input_ids"][s, :length])
        positions.append(np.arange(start, start + length))
        slots.append(np.full(length, s))
        known = int(arrays["prompt_lens"][s] + arrays["step_idx"][s])
        wanted = range(length) if not prefills else [length - 1] if start + length >= known else []
        logits += [packed + j for j in wanted]
        packed += length
        lengths[s], keys[s] = length, start + length if length else 0
    return {
        "input_ids": _padded(ids, num_tokens, config.pad_token_id),
        "positions": _padded(positions, num_tokens, 0),
        "batch_id_per_token": _padded(slots, num_tokens, -1),
        "cu_seqlens_q": np.concatenate(([0], np.cumsum(lengths))),
        "cu_seqlens_k": np.concatenate(([0], np.cumsum(keys))),
        "logits_rows": _padded([np.array(logits, np.int64)], size * width, 0),
        "num_logits": np.array([len(logits)]),
    }


def packed_level(
    reference: ReferenceBatch, ticket: RefTicket, level: int, num_tokens: int, drafted: Array
) -> dict[str, Array]:
    """What ``prepare_draft`` must give for a committed ticket; where any id will do stands -1."""
    lists = packed_draft(reference, ticket, level, num_tokens, drafted)
    return {name: np.array([-1 if n is ANY_ID else n for n in row]) for name, row in lists.items()}


def differs(batch: SlotBatch, what: str, made: Any, expected: Mapping[str, Array]) -> Mismatch | None:
    """The first cell of a step's or a draft level's arrays that is not as expected."""
    for name, wanted in expected.items():
        tensor = getattr(made, name)
        got = tensor if isinstance(tensor, np.ndarray) else batch.backend.read(tensor, "verify")
        if got.shape != wanted.shape:
            return Mismatch(f"{what}.{name}", None, None, None, wanted.shape, got.shape)
        free = (wanted == -1) & (got >= 0) if name == "input_ids" else np.zeros(wanted.shape, bool)
        wrong = np.flatnonzero((got != wanted) & ~free)
        if len(wrong):
            at = int(wrong[0])
            return Mismatch(f"{what}.{name}", None, None, at, wanted[at].item(), got[at].item())
    return None


def _padded(rows: list[Array], size: int, pad: int) -> Array:
    """The rows one behind the other, then ``pad`` up to ``size``; what does not fit stays, and so differs."""
    packed = np.concatenate([np.zeros(0, np.int64), *rows])
    return np.concatenate((packed, np.full(max(size - len(packed), 0), pad)))
