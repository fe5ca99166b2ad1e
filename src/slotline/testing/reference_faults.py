"""What is wrong with the tasks of a call: rules I1 to I3 and S1, checked one task at a time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from slotline.core.config import BatchConfig
from slotline.core.tasks import AbortTask, DecodeTask, FinishTask, PreemptTask, PrefillTask, Request, Task
from slotline.testing.reference_insert import first_step_tokens, stripped

if TYPE_CHECKING:
    from slotline.testing.reference import ReferenceBatch

RefFault = tuple[str, str, Any, Any]
"""(request_id, field, value, bound); ``...`` stands for a value or a bound that the rules leave open."""

RELEASES = (PreemptTask, AbortTask, FinishTask)


def same_faults(expected: Sequence[RefFault], got: Iterable[Sequence[Any]]) -> bool:
    """Whether two lists of faults say the same, in whatever order within a request."""
    rest = [tuple(g) for g in got]
    if [e[0] for e in expected] != [g[0] for g in rest]:
        return False
    for fault in expected:
        match = next((g for g in rest if all(a is ... or _equal(a, b) for a, b in zip(fault, g, strict=True))), None)
        if match is None:
            return False
        rest.remove(match)
    return True


def _equal(a: Any, b: Any) -> bool:
    return bool(a == b) or (isinstance(a, float) and isinstance(b, float) and math.isnan(a) and math.isnan(b))


class Judge:
    """The faults of one call, and the tasks that are left when the refused are taken away."""

    def __init__(self, ref: ReferenceBatch, tasks: Iterable[Task]) -> None:
        self.ref, self.config = ref, ref.config
        self.owned = ref.slot_map()
        self.faults: list[RefFault] = []
        groups: dict[str, list[Task]] = {}
        for task in tasks:
            groups.setdefault(task.request_id, []).append(task)
        self.good: list[Task] = []
        prefills: list[PrefillTask] = []
        decodes: dict[str, list[DecodeTask]] = {}
        self.released: set[str] = set()
        for rid, group in groups.items():
            if not _in_order(group):
                self.faults.append((rid, "request_id", ..., ...))
                continue
            for task in group:
                if isinstance(task, RELEASES):
                    self._release(task)
                elif isinstance(task, PrefillTask):
                    prefills.append(task)
                else:
                    decodes.setdefault(rid, []).append(task)
        self.tables = {r.request_id: list(r.blocks) for _, r in ref.occupied() if r.request_id not in self.released}
        self._prefills(prefills)
        for rid, pending in decodes.items():
            for decode in pending:
                self._decode(rid, decode)
        self.faults.sort(key=lambda fault: fault[0])

    def _release(self, task: Task) -> None:
        if task.request_id in self.owned:
            self.released.add(task.request_id)
            self.good.append(task)
        else:
            self.faults.append((task.request_id, "request_id", ..., ...))

    def _prefills(self, prefills: list[PrefillTask]) -> None:
        takes = []
        for task in prefills:
            continues = task.request_id in self.owned and task.request_id not in self.released
            found = prefill_faults(self.config, self.ref.num_blocks, task)
            found += self._continuing(task) if continues else self._named_slot(task)
            self.faults += [(task.request_id, *fault) for fault in found]
            if found:
                continue
            if continues:
                self._accept(task)
            else:
                takes.append(task)
        self._shortage(self._contested(takes))

    def _accept(self, task: PrefillTask) -> None:
        self.good.append(task)
        self.tables[task.request_id] = task.block_table.tolist()

    def _continuing(self, task: PrefillTask) -> list[tuple[str, Any, Any]]:
        slot = self.owned[task.request_id]
        row = self.ref.rows[slot]
        assert row is not None
        found: list[tuple[str, Any, Any]] = []
        done = row.committed and not row.last and self.config.role != "decode"
        if row.in_open_step or not done or task.start != row.end:
            found.append(("start", task.start, ...))
        history = task.request.history.tolist()
        if history != row.request.history.tolist() or task.request.num_prompt_tokens != row.request.num_prompt_tokens:
            found.append(("prompt_token_ids", ..., ...))
        if task.slot is not None and task.slot != slot:
            found.append(("slot", task.slot, ...))
        return found

    def _free(self) -> list[int]:
        return [s for s, r in enumerate(self.ref.rows) if r is None or r.request_id in self.released]

    def _named_slot(self, task: PrefillTask) -> list[tuple[str, Any, Any]]:
        if task.slot is None or task.slot in self._free():
            return []
        if not 0 <= task.slot < self.config.max_num_seqs:
            return [("slot", task.slot, self.config.max_num_seqs)]
        owner = self.ref.rows[task.slot]
        return [("slot", task.slot, owner.request_id if owner else ...)]

    def _contested(self, takes: list[PrefillTask]) -> list[PrefillTask]:
        claims: dict[int, list[str]] = {}
        for task in takes:
            if task.slot is not None:
                claims.setdefault(task.slot, []).append(task.request_id)
        kept = []
        for task in takes:
            if task.slot is not None and len(claims[task.slot]) > 1:
                self.faults.append((task.request_id, "slot", task.slot, tuple(sorted(claims[task.slot]))))
            else:
                kept.append(task)
        return kept

    def _shortage(self, takes: list[PrefillTask]) -> None:
        named = {task.slot for task in takes if task.slot is not None}
        left = len([slot for slot in self._free() if slot not in named])
        unnamed = sorted((t for t in takes if t.slot is None), key=lambda t: t.request_id)
        self.faults += [(t.request_id, "slot", None, left) for t in unnamed[left:]]
        for task in [t for t in takes if t.slot is not None] + unnamed[:left]:
            self._accept(task)

    def _decode(self, rid: str, task: DecodeTask) -> None:
        table = self.tables.get(rid)
        if table is None:
            self.faults.append((rid, "request_id", ..., ...))
            return
        if (task.block_table is None) == (task.new_blocks is None):
            self.faults.append((rid, "block_table", ..., ...))
            return
        name = "block_table" if task.new_blocks is None else "new_blocks"
        given = getattr(task, name).tolist()
        whole = given if task.new_blocks is None else table + given
        found = block_faults(self.config, self.ref.num_blocks, name, whole, given)
        self.faults += [(rid, *fault) for fault in found]
        if not found:
            self.tables[rid] = whole
            self.good.append(task)


def _in_order(group: Sequence[Task]) -> bool:
    """I3: at most one release, then at most one prefill, then decodes."""
    ranks = [0 if isinstance(t, RELEASES) else 1 if isinstance(t, PrefillTask) else 2 for t in group]
    return ranks == sorted(ranks) and ranks.count(0) <= 1 and ranks.count(1) <= 1


def block_faults(
    config: BatchConfig, num_blocks: int | None, name: str, table: Sequence[int], given: Sequence[int]
) -> list[tuple[str, Any, Any]]:
    """I2 for a table, of which ``given`` are the ids that a task brings."""
    found: list[tuple[str, Any, Any]] = []
    most = -(-config.max_model_len // config.block_size)
    if len(table) > most:
        found.append((name, len(table), most))
    wrong = [b for b in given if b < 0 or b > 2**31 - 1 or (num_blocks is not None and b >= num_blocks)]
    if wrong:
        found.append((name, wrong[0], ... if num_blocks is None else num_blocks))
    seen: set[int] = set()
    for block in table:
        if block in seen and block != config.null_block:
            found.append((name, block, 1))
            break
        seen.add(block)
    return found


def prefill_faults(config: BatchConfig, num_blocks: int | None, task: PrefillTask) -> list[tuple[str, Any, Any]]:
    """I2 for what a prefill task says, whoever owns which slot."""
    request = task.request
    history, prompt, output = len(request.history), request.num_prompt_tokens, len(request.output_token_ids)
    decode = config.role == "decode"
    given = request.sampling.max_dec_len
    limit = config.max_model_len - prompt
    max_dec_len = limit if given is None else min(given, limit)
    first = first_step_tokens(config, max_dec_len, output + 1) if decode else 0
    found = _range_faults(config, task)
    blocks = task.block_table.tolist()
    found += block_faults(config, num_blocks, "block_table", blocks, blocks)
    need = -(-(task.end + first) // config.block_size)
    if len(blocks) < need and task.end <= history:
        found.append(("block_table", len(blocks), need))
    if prompt == 0:
        found.append(("prompt_token_ids", 0, 1))
    elif prompt >= config.max_model_len:
        found.append(("prompt_token_ids", prompt, config.max_model_len - 1))
    elif history > config.max_model_len:
        found.append(("output_token_ids", history, config.max_model_len))
    found += _token_faults(config, request)
    if decode and len(request.draft_token_ids) < first:
        found.append(("draft_token_ids", len(request.draft_token_ids), first))
    found += _sampling_faults(config, request)
    if given is not None and given < 1 and given <= limit:
        found.append(("max_dec_len", given, 1))
    if max_dec_len >= 1:
        if output >= max_dec_len and history <= config.max_model_len:
            found.append(("output_token_ids", output, max_dec_len))
        if request.sampling.min_dec_len > max_dec_len:
            found.append(("min_dec_len", request.sampling.min_dec_len, max_dec_len))
    state = request.hidden_state
    if config.hidden_size is not None and state is not None and np.shape(state) != (config.hidden_size,):
        found.append(("hidden_state", ..., ...))
    return found


def _range_faults(config: BatchConfig, task: PrefillTask) -> list[tuple[str, Any, Any]]:
    history, start, end = len(task.request.history), task.start, task.end
    if config.role == "decode":
        return [] if end == history else [("end", end, history)]
    if start < 0:
        return [("start", start, 0)]
    if start >= end:
        return [("start", start, end)]
    found: list[tuple[str, Any, Any]] = []
    if end > history:
        found.append(("end", end, history))
    if end - start > config.max_chunk_tokens:
        found.append(("end", end, start + config.max_chunk_tokens))
    if 0 < history - end < config.num_levels:
        found.append(("end", end, history - config.num_levels))
    return found


def _token_faults(config: BatchConfig, request: Request) -> list[tuple[str, Any, Any]]:
    found: list[tuple[str, Any, Any]] = []
    for name in ("prompt_token_ids", "output_token_ids", "draft_token_ids"):
        wrong = [t for t in getattr(request, name).tolist() if not 0 <= t < config.vocab_size]
        found += [(name, t, config.vocab_size) for t in wrong[:1]]
    return found


def _sampling_faults(config: BatchConfig, request: Request) -> list[tuple[str, Any, Any]]:
    sampling = request.sampling
    found: list[tuple[str, Any, Any]] = []
    least = {"temperature": 0.0, "min_p": 0.0, "top_k": 0, "min_dec_len": 0}
    for name in ("temperature", "top_p", "min_p", "penalty_score", "frequency_score", "presence_score", "top_k"):
        value = getattr(sampling, name)
        with np.errstate(over="ignore"):
            seen = float(np.float32(value))  # as the device will hold it
        if not math.isfinite(seen):
            found.append((name, value, "finite"))
            continue
        if name in ("top_p", "penalty_score") and seen <= 0:
            found.append((name, value, 0))
        if value < least.get(name, -math.inf):
            found.append((name, value, 0))
        if name in ("top_p", "min_p") and value > 1:
            found.append((name, value, 1))
    if sampling.min_dec_len < 0:
        found.append(("min_dec_len", sampling.min_dec_len, 0))
    bad = np.asarray(sampling.bad_tokens).tolist()
    if len(bad) > config.max_bad_tokens:
        found.append(("bad_tokens", len(bad), config.max_bad_tokens))
    found += [("bad_tokens", t, config.vocab_size) for t in bad if not 0 <= t < config.vocab_size][:1]
    return found + _stop_faults(config, [stripped(seq) for seq in sampling.stop_lists])


def _stop_faults(config: BatchConfig, stops: list[list[int]]) -> list[tuple[str, Any, Any]]:
    found: list[tuple[str, Any, Any]] = []
    if len(stops) > config.max_stop_seqs:
        found.append(("stop_seqs", len(stops), config.max_stop_seqs))
    for index, seq in enumerate(stops):
        wrong = [t for t in seq if not 0 <= t < config.vocab_size]
        if not seq:
            found.append(("stop_seqs", index, 1))
        elif len(seq) > config.stop_seqs_max_len:
            found.append(("stop_seqs", len(seq), config.stop_seqs_max_len))
        elif wrong:
            found.append(("stop_seqs", wrong[0], config.vocab_size))
    return found
