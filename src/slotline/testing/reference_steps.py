"""The reference's steps: tickets, commits, drafts, swap, condense, reset, and the comparison with a real batch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from slotline.testing import reference_rules as rules
from slotline.testing.reference_base import Mismatch, ReferenceState, RefRow, RefTicket

if TYPE_CHECKING:
    from slotline.core.batch import SlotBatch


class ReferenceSteps(ReferenceState):
    """What happens between insertions."""

    def ticket(self, rows: Sequence[str] | None = None) -> RefTicket:
        slots = range(len(self.owners)) if rows is None else [self.slot_map()[r] for r in rows]
        found = []
        for slot in slots:
            owner = self.owners[slot]
            if owner is None or owner.bound == 0 or (owner.ticket is not None and owner.ticket.state == "open"):
                continue
            found.append(RefRow(slot, owner, int(self.arrays["seq_lens_this_time"][slot])))
        ticket = RefTicket(found)
        for row in found:
            row.owner.ticket = ticket
        return ticket

    def _where(self, epoch: int) -> int | None:
        for slot, owner in enumerate(self.owners):
            if owner is not None and owner.epoch == epoch:
                return slot
        return None

    def commit(self, ticket: RefTicket, accept_tokens: Any, accept_num: Any) -> None:
        ticket.state = "committed"
        for row in ticket.rows:
            slot = self._where(row.epoch)
            accepted = [int(t) for t in accept_tokens[row.slot][: int(accept_num[row.slot])]]
            if slot is None:
                self.stale += 1
                row.stale = True
                row.tokens = accepted if row.last and row.length else []
                continue
            owner = row.owner
            owner.pending = False
            hands_over = self.config.role == "prefill" and row.last
            owner.bound = 0 if hands_over or not row.last else 1 + self.config.num_drafts
            if row.length:
                self._commit_row(row, slot, accepted)

    def _commit_row(self, row: RefRow, slot: int, accepted: list[int]) -> None:
        """The table "What a commit writes", one row."""
        a, request, config = self.arrays, row.request, self.config
        prompt, n = len(request.prompt_token_ids), row.length
        step_idx = int(a["step_idx"][slot])
        was_prefill = int(a["seq_lens_encoder"][slot]) > 0
        decoder = int(a["seq_lens_decoder"][slot])
        row.step_idx = step_idx
        if decoder + n < prompt + step_idx:  # a chunk that is not last
            self.lengths(slot, encoder=0, decoder=decoder + n, this_time=0)
            for name in ("draft_tokens", "accept_tokens"):
                self.put(name, slot, -1)
            for name in ("actual_draft_token_num", "accept_num"):
                self.put(name, slot, 0)
            return
        before = [int(t) for t in a["token_ids_all"][slot, prompt : prompt + step_idx]]
        params = request.sampling
        kept, reason, match = rules.stop_rule(
            before, accepted, params.min_dec_len, rules.max_dec_len(config, request), config.eos_token_ids,
            params.ignore_eos, rules.stop_lists(request),
        )  # fmt: skip
        if reason == 0 and config.role == "prefill":
            reason = rules.HANDOVER
        tokens = accepted[:kept]
        a["token_ids_all"][slot, prompt + step_idx : prompt + step_idx + kept] = tokens
        self.lengths(slot, step_idx=step_idx + kept)
        self.put("next_tokens", slot, tokens[-1])
        self.put("accept_tokens", slot, tokens)
        self.put("accept_num", slot, kept)
        self.put("draft_tokens", slot, -1)
        self.put("actual_draft_token_num", slot, 0)
        if reason:
            self.lengths(slot, encoder=0, decoder=0, this_time=0)
            for prefix in ("", "mtp."):
                self.put(prefix + "stop_flags", slot, True)
            self.put("finish_reason", slot, reason)
            self.put("stop_match", slot, list(match) if match else -1)
        else:
            self.lengths(slot, encoder=0, decoder=decoder + (n if was_prefill else kept), this_time=1)
            a["input_ids"][slot, 0] = tokens[-1]
            if config.spec_method != "none":
                self.put("draft_tokens", slot, tokens[-1:])
            row.goes_on = True
        row.tokens, row.reason, row.match = tokens, reason, match

    def commit_drafts(self, ticket: RefTicket, draft_tokens: Any) -> None:
        """L5 and M9."""
        for row in ticket.rows:
            slot = self._where(row.epoch)
            ids = []
            for token in draft_tokens[row.slot]:
                if token < 0:
                    break
                ids.append(int(token))
            room = rules.max_dec_len(self.config, row.request) - (row.step_idx + len(row.tokens)) - 1
            ids = ids[: max(0, min(self.config.num_drafts, room))]
            if row.reason == rules.HANDOVER and not row.stale and row.tokens:
                row.drafts = ids
            if slot is None or not row.goes_on:
                continue
            self.row("draft_tokens", slot)[1:] = -1
            self.row("draft_tokens", slot)[1 : 1 + len(ids)] = ids
            self.put("actual_draft_token_num", slot, len(ids))
            self.lengths(slot, this_time=1 + len(ids))

    def outputs(self, ticket: RefTicket) -> list[tuple[Any, ...]]:
        """What ``fetch(...).result()`` gives (L6)."""
        return [
            (r.request.request_id, r.tokens, r.reason, r.match, r.drafts, r.stale) for r in ticket.rows if r.length > 0
        ]

    def taken(self, ticket: RefTicket) -> None:
        """A result was taken: ended rows need no launch (I7), host ids are filled (M7)."""
        for row in ticket.rows:
            slot = self._where(row.epoch)
            if slot is None or row.length == 0:
                continue
            if row.reason:
                row.owner.bound = 0
            at = len(row.request.prompt_token_ids) + row.step_idx
            if "input_ids_cpu" in self.arrays:
                self.arrays["input_ids_cpu"][slot, at : at + len(row.tokens)] = row.tokens

    def swap(self, i: int, j: int) -> None:
        for f in self.layout:
            if f.slot_axis is not None:
                left = rules.row_of(self.arrays[f.name], i, f.slot_axis)
                right = rules.row_of(self.arrays[f.name], j, f.slot_axis)
                keep = left.copy()
                left[...] = right
                right[...] = keep
        self.owners[i], self.owners[j] = self.owners[j], self.owners[i]

    def condense(self) -> list[tuple[int, int]]:
        moves: list[tuple[int, int]] = []
        while True:
            used = [s for s, o in enumerate(self.owners) if o is not None]
            free = [s for s, o in enumerate(self.owners) if o is None]
            if not used or not free or free[0] > used[-1]:
                return moves
            moves.append((used[-1], free[0]))
            self.swap(used[-1], free[0])  # a free row holds the fill

    def reset(self) -> None:
        for f in self.layout:
            self.arrays[f.name][...] = f.fill
        self.owners = [None] * len(self.owners)

    # -- the comparison

    def compare(self, batch: SlotBatch) -> Mismatch | None:
        """The first difference, of any row of any field, mirror, owner, epoch or launch bound; None: there is none."""
        for f in self.layout:
            found = batch[f.name]
            host = found if isinstance(found, np.ndarray) else batch.backend.read(found)
            mismatch = self._compare_arrays(f.name, f.slot_axis, self.arrays[f.name], host)
            if mismatch is None and f.residency == "mirrored":
                mismatch = self._compare_arrays(f.name, f.slot_axis, self.arrays[f.name], batch.mirror(f.name))
            if mismatch is not None:
                return mismatch
        return self._compare_map(batch)

    def _compare_arrays(self, name: str, axis: int | None, want: Any, got: Any) -> Mismatch | None:
        bits = f"u{want.itemsize}"
        if want.dtype == got.dtype and np.array_equal(want.view(bits), np.ascontiguousarray(got).view(bits)):
            return None
        if want.dtype != got.dtype or want.shape != got.shape:
            return Mismatch(name, None, None, None, (want.dtype, want.shape), (got.dtype, got.shape))
        a, b = (want[None], got[None]) if axis is None else (np.moveaxis(want, axis, 0), np.moveaxis(got, axis, 0))
        a, b = a.reshape(len(a), -1), b.reshape(len(b), -1)
        unlike = np.ascontiguousarray(a).view(bits) != np.ascontiguousarray(b).view(bits)
        slot, cell = (int(i) for i in np.argwhere(unlike)[0])
        owner = self.owners[slot] if axis is not None else None
        who = owner.request.request_id if owner is not None else None
        return Mismatch(name, slot if axis is not None else None, who, cell, a[slot, cell].item(), b[slot, cell].item())

    def _compare_map(self, batch: SlotBatch) -> Mismatch | None:
        for slot, owner in enumerate(self.owners):
            want = owner.request.request_id if owner is not None else None
            got = batch.owner(slot)
            if want != got:
                return Mismatch("owner", slot, want, None, want, got)
            if owner is not None and want is not None and batch.epoch_of(want) != owner.epoch:
                return Mismatch("epoch", slot, want, None, owner.epoch, batch.epoch_of(want))
        for name in ("launch_tokens", "num_active", "has_prefill"):
            if getattr(self, name) != getattr(batch, name):
                return Mismatch(name, None, None, None, getattr(self, name), getattr(batch, name))
        return None


def same_outputs(expected: Iterable[tuple[Any, ...]], got: Iterable[tuple[Any, ...]]) -> bool:
    """Whether fetched results equal the reference's."""
    return [tuple(e) for e in expected] == [tuple(g) for g in got]
