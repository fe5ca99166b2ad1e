"""A step written by hand, slot after slot: what an engine does without whole-column functions.

``PlainEngine`` is the loop as one writes it first: it looks into the arrays of each slot, and compares each stop
sequence with the tokens before. ``TunedEngine`` is as quick as such a loop gets in Python: numbers that are read leave
their arrays once a step (``tolist``), stop sequences are compared as lists, and one whose last token differs is passed
over at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

import slotline as sl

NUMBERS = ("seq_lens_this_time", "seq_lens_encoder", "seq_lens_decoder", "prompt_lens", "step_idx")
LIMITS = ("min_dec_len", "max_dec_len", "ignore_eos", "stop_seqs_len")


class PlainEngine:
    """Buffers as a batch has them; ``prepare`` and ``commit`` do what rules L1 and L4 say, for role mixed."""

    def __init__(self, batch: sl.SlotBatch) -> None:
        self.config = batch.config
        self.arrays: dict[str, NDArray[Any]] = {f.name: np.array(batch[f.name]) for f in batch.layout}
        self.twins = {f.twin_of: self.arrays[f.name] for f in batch.layout if f.twin_of is not None}

    def copy_rows(self, batch: sl.SlotBatch, slots: Iterable[int]) -> None:
        rows = list(slots)
        for name, array in self.arrays.items():
            array[rows] = np.asarray(batch[name])[rows]

    def copy_drafts(self, batch: sl.SlotBatch) -> None:
        """What ``commit_drafts`` writes."""
        for name in ("draft_tokens", "actual_draft_token_num", "seq_lens_this_time"):
            self.arrays[name][...] = batch[name]
            if name in self.twins:
                self.twins[name][...] = batch[name]

    def columns(self, names: Iterable[str]) -> list[Any]:
        """The numbers of these fields, by slot."""
        return [self.arrays[name] for name in names]

    def prepare(self, num_tokens: int) -> dict[str, NDArray[Any]]:
        a, size, width = self.arrays, self.config.max_num_seqs, self.config.num_drafts + 1
        lengths, encoder, decoder, prompt, step_idx = self.columns(NUMBERS)
        input_ids, draft_tokens = a["input_ids"], a["draft_tokens"]
        ids = np.full(num_tokens, self.config.pad_token_id, input_ids.dtype)
        positions = np.zeros(num_tokens, np.int32)
        owner = np.full(num_tokens, -1, np.int32)
        logits = np.zeros(size * width, np.int32)
        cu_q, cu_k = np.zeros(size + 1, np.int32), np.zeros(size + 1, np.int32)
        at = keys = wanted = 0
        for slot in range(size):
            n = lengths[slot]
            if n:
                start, end = decoder[slot], at + n
                positions[at:end] = np.arange(start, start + n)
                owner[at:end] = slot
                if encoder[slot]:
                    ids[at:end] = input_ids[slot, :n]
                    if start + n >= prompt[slot] + step_idx[slot]:
                        logits[wanted] = end - 1
                        wanted += 1
                else:
                    ids[at:end] = draft_tokens[slot, :n]
                    logits[wanted : wanted + n] = np.arange(at, end)
                    wanted += n
                at = end
                keys += start + n
            cu_q[slot + 1] = at
            cu_k[slot + 1] = keys
        return {
            "input_ids": ids,
            "positions": positions,
            "batch_id_per_token": owner,
            "cu_seqlens_q": cu_q,
            "cu_seqlens_k": cu_k,
            "logits_rows": logits,
            "num_logits": np.array([wanted], np.int32),
        }

    def commit(self, accept_tokens: NDArray[Any], accept_num: NDArray[Any]) -> None:
        a = self.arrays
        lengths, encoder, decoder, prompt, step_idx = self.columns(NUMBERS)
        least, most, ignore_eos, stop_lens = self.columns(LIMITS)
        tokens, counts = self.accepted(accept_tokens, accept_num)
        for slot in range(self.config.max_num_seqs):
            n = lengths[slot]
            if not n:
                continue
            a["draft_tokens"][slot] = -1
            a["actual_draft_token_num"][slot] = 0
            a["accept_tokens"][slot] = -1
            if decoder[slot] + n < prompt[slot] + step_idx[slot]:  # a chunk that is not the last
                a["accept_num"][slot] = 0
                self._both("seq_lens_encoder", slot, 0)
                self._both("seq_lens_decoder", slot, decoder[slot] + n)
                self._both("seq_lens_this_time", slot, 0)
                continue
            done, begin, prefilled = step_idx[slot], prompt[slot], encoder[slot] > 0
            accepted = tokens[slot][: counts[slot]]
            kept, reason, match = self._stop(
                slot, begin, done, accepted, least[slot], most[slot], ignore_eos[slot], stop_lens[slot]
            )
            accepted = accepted[:kept]
            a["token_ids_all"][slot, begin + done : begin + done + kept] = accepted
            a["accept_tokens"][slot, :kept] = accepted
            a["accept_num"][slot] = kept
            a["next_tokens"][slot] = accepted[-1]
            self._both("step_idx", slot, done + kept)
            self._both("seq_lens_encoder", slot, 0)
            if reason:
                self._both("seq_lens_decoder", slot, 0)
                self._both("seq_lens_this_time", slot, 0)
                self._both("stop_flags", slot, True)
                a["finish_reason"][slot] = reason
                a["stop_match"][slot] = match
                continue
            a["input_ids"][slot, 0] = accepted[-1]
            if self.config.num_drafts:
                a["draft_tokens"][slot, 0] = accepted[-1]
            self._both("seq_lens_decoder", slot, decoder[slot] + (n if prefilled else kept))
            self._both("seq_lens_this_time", slot, 1)

    def _both(self, name: str, slot: int, value: Any) -> None:
        self.arrays[name][slot] = value
        if name in self.twins:
            self.twins[name][slot] = value

    def accepted(self, accept_tokens: NDArray[Any], accept_num: NDArray[Any]) -> tuple[Any, Any]:
        return accept_tokens, accept_num

    def _stop(
        self, slot: int, prompt: int, done: int, accepted: Any, least: int, most: int, ignore_eos: bool, lens: Any
    ) -> tuple[int, int, tuple[int, int]]:
        """Rule T for one row: (kept, reason, match)."""
        row, sequences = self.arrays["token_ids_all"][slot], self.arrays["stop_seqs"][slot]
        output = np.concatenate((row[prompt : prompt + done], accepted))
        for index, token in enumerate(accepted):
            t = done + index + 1
            if t < least:
                continue
            if token in self.config.eos_token_ids and not ignore_eos:
                return index + 1, 1, (-1, -1)
            for number, size in enumerate(lens):
                if 0 < size <= t and np.array_equal(output[t - size : t], sequences[number, :size]):
                    return index + 1, 2, (number, t - size)
            if t >= most:
                return index + 1, 3, (-1, -1)
        return len(accepted), 0, (-1, -1)


class TunedEngine(PlainEngine):
    """The same, on Python's own numbers and lists."""

    def columns(self, names: Iterable[str]) -> list[Any]:
        return [self.arrays[name].tolist() for name in names]

    def accepted(self, accept_tokens: NDArray[Any], accept_num: NDArray[Any]) -> tuple[Any, Any]:
        return accept_tokens.tolist(), accept_num.tolist()

    def _stop(
        self, slot: int, prompt: int, done: int, accepted: Any, least: int, most: int, ignore_eos: bool, lens: Any
    ) -> tuple[int, int, tuple[int, int]]:
        longest = self.config.stop_seqs_max_len
        before = min(done, longest - 1)
        recent = self.arrays["token_ids_all"][slot, prompt + done - before : prompt + done].tolist() + accepted
        sequences = self.arrays["stop_seqs"][slot].tolist()
        for index, token in enumerate(accepted):
            t = done + index + 1
            if t < least:
                continue
            if token in self.config.eos_token_ids and not ignore_eos:
                return index + 1, 1, (-1, -1)
            end = before + index + 1
            for number, size in enumerate(lens):
                if 0 < size <= t:
                    sequence = sequences[number]
                    if sequence[size - 1] == token and recent[end - size : end] == sequence[:size]:
                        return index + 1, 2, (number, t - size)
            if t >= most:
                return index + 1, 3, (-1, -1)
        return len(accepted), 0, (-1, -1)
