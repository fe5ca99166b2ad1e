"""An independent reference: a batch in plain straight-line Python, written from the tables of the contract.

It shares no code with validation, planning, packets or commits; it takes the layout's shapes, dtypes and fills, and
the task classes. Rows are written one at a time by the standard names. ``compare`` holds a ``SlotBatch`` to it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from slotline.core.field import Extra
from slotline.core.tasks import DecodeTask, PrefillTask, Request, Task
from slotline.testing import reference_rules as rules
from slotline.testing.reference_base import Mismatch, Owner
from slotline.testing.reference_steps import ReferenceSteps

SAMPLING = (
    "temperature", "top_p", "min_p", "penalty_score", "frequency_score", "presence_score", "top_k", "infer_seed",
    "min_dec_len", "max_think_lens", "max_reply_lens", "limit_think_status", "reasoning_status", "ignore_eos",
    "enable_thinking", "temp_scaled_logprobs", "top_p_normalized_logprobs",
)  # fmt: skip


@dataclass
class RefReceipt:
    slots: dict[str, int]
    epochs: dict[str, int]
    ended: dict[str, tuple[int, int, tuple[int, int] | None]]
    released: list[str]
    cut: dict[str, int]
    num_active: int
    has_prefill: bool
    launch_tokens: int


class ReferenceBatch(ReferenceSteps):
    """What a ``SlotBatch`` of the same layout must hold after the same calls."""

    # -- inserting (the tasks are valid)

    def insert(self, tasks: Sequence[Task]) -> RefReceipt:
        named = list(dict.fromkeys(t.request_id for t in tasks))
        releases = [t for t in tasks if not isinstance(t, (PrefillTask, DecodeTask))]
        for release in releases:
            self._clear(self.slot_map()[release.request_id])
        takes: list[PrefillTask] = []
        ended: dict[str, tuple[int, int, tuple[int, int] | None]] = {}
        cut: dict[str, int] = {}
        before = self.slot_map()
        for task in tasks:
            if isinstance(task, PrefillTask) and task.request_id not in before:
                takes.append(task)
        chosen = self._choose_slots(takes)
        for take in sorted(takes, key=lambda t: t.request_id):
            self._take(take, chosen[take.request_id], ended, cut)
        for task in tasks:
            if isinstance(task, PrefillTask) and task.request_id in before:
                self._chunk(task, before[task.request_id])
        for task in tasks:
            if isinstance(task, DecodeTask):
                self._decode(task)
        slots = {r: s for r, s in self.slot_map().items() if r in named}
        epochs = {r: self._owner(s).epoch for r, s in slots.items()}
        released = sorted(t.request_id for t in releases)
        return RefReceipt(slots, epochs, ended, released, cut, self.num_active, self.has_prefill, self.launch_tokens)

    def _owner(self, slot: int) -> Owner:
        owner = self.owners[slot]
        assert owner is not None
        return owner

    def _clear(self, slot: int) -> None:
        for f in self.layout:
            if f.slot_axis is not None:
                rules.row_of(self.arrays[f.name], slot, f.slot_axis)[...] = f.fill
        self.owners[slot] = None

    def _choose_slots(self, takes: list[PrefillTask]) -> dict[str, int]:
        chosen = {t.request_id: t.slot for t in takes if t.slot is not None}
        free = [s for s, o in enumerate(self.owners) if o is None and s not in chosen.values()]
        for request_id in sorted(t.request_id for t in takes if t.slot is None):
            chosen[request_id] = free.pop(0)
        return chosen

    def _take(self, task: PrefillTask, slot: int, ended: dict[str, Any], cut: dict[str, int]) -> None:
        request, params = task.request, task.request.sampling
        prompt = [*request.prompt_token_ids]
        output = [*request.output_token_ids]
        limit = rules.max_dec_len(self.config, request)
        if params.max_dec_len is not None and params.max_dec_len > limit:
            cut[request.request_id] = limit
        owner = self.owners[slot] = Owner(request, self.next_epoch)
        self.next_epoch += 1
        for name in SAMPLING:
            self.put(name, slot, getattr(params, name))
        self.put("max_dec_len", slot, limit)
        self.put("bad_tokens", slot, np.asarray(params.bad_tokens))
        self.put("bad_tokens_len", slot, len(np.asarray(params.bad_tokens)))
        for index, seq in enumerate(rules.stop_lists(request)):
            block, lens = self.row("stop_seqs", slot), self.row("stop_seqs_len", slot)
            block[index, : len(seq)] = seq
            lens[index] = len(seq)
        self.put("prompt_lens", slot, len(prompt))
        self.put("stop_flags", slot, False)
        self.put("mtp.stop_flags", slot, False)
        if request.hidden_state is not None and "mtp.first_token_hidden_states" in self.arrays:
            self.put("mtp.first_token_hidden_states", slot, request.hidden_state)
        decode = self.config.role == "decode"
        levels = self.config.mtp_levels
        self.put("mtp.recompute_token_num", slot, 0 if decode else levels - 1)
        self.put("mtp.mask_rollback", slot, 1 if decode else 0)
        self._own_fields(request, slot)
        if decode:
            self._take_over(task, slot, owner, ended)
        else:
            history = np.array(prompt + output, np.int64)
            self.put("token_ids_all", slot, history)
            self.put("input_ids_cpu", slot, history)
            self.lengths(slot, step_idx=len(output))
            self._chunk(task, slot)

    def _take_over(self, task: PrefillTask, slot: int, owner: Owner, ended: dict[str, Any]) -> None:
        """The column "prefill, role decode (D)", and D4."""
        request = task.request
        output = [*request.output_token_ids]
        first = int(request.draft_token_ids[0])
        history = np.array([*request.prompt_token_ids, *output, first], np.int64)
        count = rules.first_step(self.config, request)
        self.put("token_ids_all", slot, history)
        self.put("input_ids_cpu", slot, history)
        self.put("input_ids", slot, [first])
        self.lengths(slot, encoder=0, decoder=len(history) - 1, this_time=count, step_idx=len(output) + 1)
        self.put("is_chunk_step", slot, False)
        self._blocks(slot, owner, [int(b) for b in task.block_table])
        if self.config.spec_method != "none":
            self.put("draft_tokens", slot, [int(t) for t in request.draft_token_ids[:count]])
        self.put("actual_draft_token_num", slot, count - 1)
        owner.end, owner.last, owner.bound = task.end, True, count
        reason, match = rules.handed_over(self.config, request)
        if reason == 0:
            return
        self.lengths(slot, encoder=0, decoder=0, this_time=0)
        self.put("draft_tokens", slot, -1)
        self.put("actual_draft_token_num", slot, 0)
        self.put("stop_flags", slot, True)
        self.put("mtp.stop_flags", slot, True)
        self.put("finish_reason", slot, reason)
        if match is not None:
            self.put("stop_match", slot, list(match))
        owner.bound = 0
        ended[request.request_id] = (first, reason, match)

    def _chunk(self, task: PrefillTask, slot: int) -> None:
        """The column "prefill, role mixed or prefill", for what every chunk writes."""
        history = task.request.history
        start, end, n = task.start, task.end, task.end - task.start
        owner = self._owner(slot)
        self.put("input_ids", slot, history[start:end])
        self.lengths(slot, encoder=n, decoder=start, this_time=n)
        self.put("is_chunk_step", slot, end != len(history))
        self._blocks(slot, owner, [int(b) for b in task.block_table])
        shifted = [int(t) for t in history[start + 1 : end]]
        ahead = [int(t) for t in history[end : end + self.config.mtp_levels]]
        self.put("mtp.input_ids", slot, shifted + ahead[:1])
        self.put("mtp.lookahead_tokens", slot, ahead)
        owner.start, owner.end, owner.pending, owner.last = start, end, True, end == len(history)
        owner.bound = n

    def _blocks(self, slot: int, owner: Owner, blocks: list[int]) -> None:
        owner.blocks = blocks
        self.put("block_tables", slot, blocks)
        self.put("mtp.block_tables", slot, blocks)
        self.put("encoder_block_lens", slot, len(blocks))

    def _decode(self, task: DecodeTask) -> None:
        slot = self.slot_map()[task.request_id]
        owner = self._owner(slot)
        if task.new_blocks is not None:
            blocks = [*owner.blocks, *(int(b) for b in task.new_blocks)]
        else:
            assert task.block_table is not None
            blocks = [int(b) for b in task.block_table]
        self._blocks(slot, owner, blocks)

    def _own_fields(self, request: Request, slot: int) -> None:
        """Fields that are not standard: constants and values of ``extra``."""
        for f in self.own:
            rule = f.on.get("prefill")
            if self.config.role == "decode":
                rule = f.on.get("handover", rule)
            if isinstance(rule, Extra) and rule.name in request.extra:
                value = np.asarray(request.extra[rule.name])
                row = self.row(f.name, slot)
                row[...] = value if value.ndim == 0 else f.fill
                if value.ndim:
                    row[tuple(slice(n) for n in value.shape)] = value
            elif isinstance(rule, (int, float)):
                self.put(f.name, slot, rule)

    def release(self, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            self._clear(self.slot_map()[request_id])


__all__ = ["Mismatch", "Owner", "RefReceipt", "ReferenceBatch"]
