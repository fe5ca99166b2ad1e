"""The arrays of a prepared step, token by token (rules L1, P4, M5)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from slotline.testing.reference import ReferenceBatch
    from slotline.testing.reference_rows import RefTicket


def packed(ref: ReferenceBatch, ticket: RefTicket, num_tokens: int) -> dict[str, list[int]]:
    """What ``prepare_step`` must give for a ticket that has just been opened, as lists."""
    config, arrays = ref.config, ref.arrays
    names = {f.key: f.name for f in ref.layout}

    def cell(key: str, slot: int, *at: int) -> int:
        field = ref.layout[names[key]]
        row = np.moveaxis(arrays[field.name], field.slot_axis or 0, 0)[slot]
        return int(np.reshape(row, -1)[at[0] if at else 0])

    out: dict[str, list[int]] = {"input_ids": [], "positions": [], "batch_id_per_token": [], "logits_rows": []}
    q, k = [0], [0]
    inside = {entry.slot for entry in ticket.entries}
    for slot in ticket.slots:
        length = cell("seq_lens_this_time", slot) if slot in inside else 0
        prefill, start = cell("seq_lens_encoder", slot) > 0, cell("seq_lens_decoder", slot)
        first = len(out["input_ids"])
        for j in range(length):
            source = "input_ids" if prefill or config.spec_method == "none" else "draft_tokens"
            out["input_ids"].append(cell(source, slot, j))
            out["positions"].append(start + j)
            out["batch_id_per_token"].append(slot)
        if prefill and length:
            if start + length >= cell("prompt_lens", slot) + cell("step_idx", slot):
                out["logits_rows"].append(first + length - 1)
        else:
            out["logits_rows"] += range(first, first + length)
        q.append(q[-1] + length)
        k.append(k[-1] + (start + length if length else 0))
    assert all(token >= 0 for token in out["input_ids"])  # M5
    size = config.max_num_seqs
    num_logits = len(out["logits_rows"])
    pads: dict[str, Any] = {"input_ids": config.pad_token_id, "positions": 0, "batch_id_per_token": -1}
    for name, pad in pads.items():
        out[name] += [pad] * (num_tokens - len(out[name]))
    out["logits_rows"] += [0] * (size * (config.num_drafts + 1) - num_logits)
    out["cu_seqlens_q"] = q + [q[-1]] * (size + 1 - len(q))
    out["cu_seqlens_k"] = k + [k[-1]] * (size + 1 - len(k))
    out["num_logits"] = [num_logits]
    return out
