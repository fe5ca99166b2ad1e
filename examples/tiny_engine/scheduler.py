"""The scheduler: which tasks the next step gets. It works on the host and knows only what fetched results told it."""

from __future__ import annotations

import bisect
from collections import Counter
from dataclasses import dataclass, field

import slotline as sl

Task = sl.PrefillTask | sl.DecodeTask | sl.PreemptTask | sl.FinishTask


@dataclass(eq=False, slots=True)
class Sequence:
    """A request on its way through the engine. ``outputs`` are the tokens of fetched results."""

    request_id: str
    index: int
    """Its age: the order of arrival."""
    prompt: list[int]
    sampling: sl.SamplingParams
    outputs: list[int] = field(default_factory=list)
    request: sl.Request | None = None
    """What was inserted last, or what a prefill peer handed over."""
    blocks: list[int] = field(default_factory=list)
    """Its blocks of the KV cache, in the order of the text."""
    kv: list[bytes] = field(default_factory=list)
    """The blocks' content from a prefill peer, until it is in the cache."""
    computed: int = 0
    """Where its newest chunk ends."""
    is_over: bool = False
    """It has ended or was given up; results that are still on their way are not its own."""

    @property
    def length(self) -> int:
        """Tokens of prompt and outputs."""
        return len(self.prompt) + len(self.outputs)

    @property
    def decodes(self) -> bool:
        """No chunk is left to prefill."""
        return self.request is not None and self.computed >= len(self.request.history)


class Scheduler:
    """Continuous batching: decoding rows first, then chunks, then new requests, within a budget of tokens a step.

    Where blocks run out the youngest running sequence is preempted; it waits at the place of its age and is resumed
    by a prefill over prompt and outputs. With role decode preempted ones stand in ``sent_back``: a prefill peer has
    to take them (rule D1).
    """

    def __init__(self, config: sl.BatchConfig, *, token_budget: int, chunk: int | None, lags: bool) -> None:
        self.config = config
        self.budget, self.chunk = token_budget, chunk or config.max_model_len
        self.free_blocks = list(range(config.num_blocks or 0))
        self.waiting: list[Sequence] = []
        self.running: dict[str, Sequence] = {}
        self.sent_back: list[Sequence] = []
        self.admitted: list[Sequence] = []
        """Those that the newest plan gave a slot."""
        self.counts: Counter[str] = Counter()
        self._done: list[str] = []
        self._drafts = config.num_drafts
        # What a step may write behind the tokens that are known: drafts; a position for each level above the heads
        # (rule L5); and where results lag, all that the step before may have added.
        self._ahead = self._drafts + (self._drafts - config.num_levels if config.num_levels else 0)
        self._ahead += (1 + self._drafts) * lags

    def wait(self, sequence: Sequence) -> None:
        """Queue a sequence, the oldest first."""
        bisect.insort(self.waiting, sequence, key=lambda s: s.index)

    @property
    def has_work(self) -> bool:
        """Something waits, runs, or has a row to release."""
        return bool(self.waiting or self.running or self._done)

    def plan(self) -> list[Task]:
        """The tasks to insert before the next step."""
        self.admitted = []
        tasks: list[Task] = []
        tasks += [sl.FinishTask(r) for r in self._done]
        self._done.clear()
        preempted: list[Sequence] = []
        decoding = {s.request_id for s in self.running.values() if s.decodes}
        budget = self.budget - (1 + self._drafts) * len(decoding)
        for seq in sorted(self.running.values(), key=lambda s: s.index):
            length = 0 if seq.decodes else self._chunk_length(seq, budget)
            if seq.request_id not in self.running or (not length and not seq.decodes):
                continue
            if seq.decodes and self.config.role == "prefill":  # it is being handed over
                continue
            before = len(preempted)
            new = self._grow(seq, seq.length if seq.decodes else seq.computed + length, preempted)
            budget += (1 + self._drafts) * sum(s.request_id in decoding for s in preempted[before:])
            if new is None:
                continue
            if not seq.decodes:
                budget -= length
                tasks.append(self._prefill(seq, length))
            elif new:
                tasks.append(sl.DecodeTask(seq.request_id, new_blocks=new))
        tasks += [sl.PreemptTask(s.request_id) for s in preempted]
        if not preempted:  # else the one preempted would come straight back
            tasks += self._admit(budget)
        self.counts.update(type(t).__name__ for t in tasks)
        return tasks

    def end(self, sequence: Sequence) -> None:
        """The sequence has ended here; the next plan releases its row, if it still has one."""
        if self.runs(sequence):
            self._done.append(sequence.request_id)
        self.drop(sequence)

    def drop(self, sequence: Sequence) -> None:
        """Forget a sequence, wherever it is; its row, if it has one, is released otherwise."""
        sequence.is_over = True
        if self.runs(sequence):
            del self.running[sequence.request_id]
            self._free(sequence)
        for queue in (self.waiting, self.sent_back):
            if sequence in queue:
                queue.remove(sequence)

    def find(self, request_id: str) -> list[Sequence]:
        """The sequence of that id, wherever it is."""
        everywhere = (*self.running.values(), *self.waiting, *self.sent_back)
        return [s for s in everywhere if s.request_id == request_id]

    def runs(self, sequence: Sequence) -> bool:
        return self.running.get(sequence.request_id) is sequence

    # -- the parts of a plan

    def _admit(self, budget: int) -> list[sl.PrefillTask]:
        tasks: list[sl.PrefillTask] = []
        while self.waiting and len(self.running) < self.config.max_num_seqs:
            seq = self.waiting[0]
            handed = self.config.role == "decode"
            if not handed:
                seq.request = sl.Request(seq.request_id, seq.prompt, seq.outputs, sampling=seq.sampling)
            length = seq.length - 1 if handed else self._chunk_length(seq, budget)
            needed = self._blocks_for(seq.length if handed else length)
            cost = 1 + self._drafts if handed else length
            if not length or cost > budget or needed > len(self.free_blocks):
                break
            budget -= cost
            self.waiting.pop(0)
            self.running[seq.request_id] = seq
            self.admitted.append(seq)
            self._take(seq, needed)
            tasks.append(self._prefill(seq, length))
        return tasks

    def _prefill(self, seq: Sequence, length: int) -> sl.PrefillTask:
        assert seq.request is not None
        start, seq.computed = seq.computed, seq.computed + length
        return sl.PrefillTask(seq.request, start, seq.computed, seq.blocks)

    def _chunk_length(self, seq: Sequence, budget: int) -> int:
        """Tokens of the next chunk. One that is not the last leaves at least M tokens (rule I2); 0: no budget."""
        left = seq.length - seq.computed
        length = min(left, self.chunk, max(budget, 0))
        if length < left:
            length = min(length, left - self.config.num_levels) if left > self.config.num_levels else left
        return length if length <= budget else 0

    # -- blocks

    def _blocks_for(self, tokens: int) -> int:
        """Blocks that hold ``tokens`` and all that the step behind them may write."""
        reach = min(tokens + self._ahead, self.config.max_model_len)
        return -(-reach // self.config.block_size)

    def _grow(self, seq: Sequence, tokens: int, preempted: list[Sequence]) -> list[int] | None:
        """Give ``seq`` the blocks it needs and return the new ones; None: it had to be preempted itself."""
        count = self._blocks_for(tokens) - len(seq.blocks)
        while count > len(self.free_blocks):
            youngest = max(self.running.values(), key=lambda s: s.index)
            self._preempt(youngest)
            preempted.append(youngest)
            if youngest is seq:
                return None
        return self._take(seq, count)

    def _preempt(self, seq: Sequence) -> None:
        del self.running[seq.request_id]
        self._free(seq)
        seq.request, seq.computed = None, 0
        if self.config.role == "decode":
            self.sent_back.append(seq)
        else:
            self.wait(seq)

    def _take(self, seq: Sequence, count: int) -> list[int]:
        new = [self.free_blocks.pop() for _ in range(count)]
        seq.blocks += new
        return new

    def _free(self, seq: Sequence) -> None:
        self.free_blocks += seq.blocks
        seq.blocks = []
