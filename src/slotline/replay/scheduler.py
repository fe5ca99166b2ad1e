"""A continuous-batching scheduler: from waiting requests and fetched results to the tasks of each step.

Every step has a budget of ``max_chunk_tokens``: decoding rows first, then the chunks of rows that are being prefilled,
then new requests. Block tables grow with the tokens; where blocks run out, the youngest running request is preempted
and waits, ahead of all younger ones, to be resumed over its history so far. Requests are admitted in the order of the
trace as fast as slots, blocks and the budget allow; arrival times do not hold them back.

It knows of a step only what has been fetched, so it reserves blocks for all that the open step may yield.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from slotline.core.config import BatchConfig
from slotline.core.fetch import Output
from slotline.core.stop import FinishReason
from slotline.core.tasks import AbortTask, DecodeTask, FinishTask, PreemptTask, PrefillTask, Request, Task
from slotline.replay.blocks import BlockPool
from slotline.replay.workload import Sequence

_KINDS: dict[type, str] = {
    PrefillTask: "prefill",
    DecodeTask: "decode",
    PreemptTask: "preempt",
    AbortTask: "abort",
    FinishTask: "finish",
}


@dataclass(slots=True, eq=False)
class Row:
    """A sequence that owns a slot."""

    sequence: Sequence
    request: Request
    blocks: list[int]
    computed: int
    """End of the newest chunk."""
    decodes: bool
    """It needs no further chunk, and goes on decoding here."""
    fresh: bool
    """The open step, if it is in one, yields at most one token: its last chunk was planned in the step before."""


class Scheduler:
    """Plans one batch. ``source``: the next new request, None where there is none now.

    ``preempt_to`` receives preempted requests (by default they wait here); ``on_end(sequence, output)`` is told of
    each request that ended, when the result is taken, and of each that was given up (output None).
    """

    def __init__(
        self,
        config: BatchConfig,
        num_blocks: int,
        source: Callable[[], Sequence | None],
        on_end: Callable[[Sequence, Output | None], None],
        preempt_to: Callable[[Sequence], None] | None = None,
    ) -> None:
        self.config, self.pool = config, BlockPool(num_blocks)
        self.running: dict[str, Row] = {}
        self.counts: Counter[str] = Counter()
        self._source, self._on_end = source, on_end
        self._preempt_to = preempt_to or self.wait
        self._waiting: list[tuple[int, Sequence]] = []
        self._ended: list[Row] = []
        self._tasks: list[Task] = []
        self._chunks: list[Task] = []

    def wait(self, sequence: Sequence) -> None:
        """Put a request into the queue, at the place of its age."""
        heapq.heappush(self._waiting, (sequence.index, sequence))

    @property
    def is_idle(self) -> bool:
        """Nothing runs, waits or holds a slot (the source may have more)."""
        return not (self.running or self._waiting or self._ended)

    def plan(self, step: int) -> list[Task]:
        """The tasks to insert while the former step is still open; ``chunks`` gives those that must wait for it."""
        self._tasks, self._chunks = [], []
        self._release(step)
        self._admit(self._advance(), step)
        self._count(self._tasks)
        return self._tasks

    def chunks(self) -> list[Task]:
        """The continuing chunks of the plan: their rows must not be in an open step (rule I6)."""
        self._count(self._chunks)
        return self._chunks

    def take(self, outputs: Iterable[Output]) -> None:
        """Learn a step's results. Stale ones belong to an epoch that has ended: the tokens come again."""
        for out in outputs:
            if out.stale:
                continue
            self.running[out.request_id].sequence.outputs.extend(out.tokens)
            if out.finish_reason != FinishReason.NONE:
                self.end(out)

    def end(self, out: Output) -> None:
        """The request has ended here; the next plan releases its slot."""
        row = self.running.pop(out.request_id)
        self._ended.append(row)
        self._on_end(row.sequence, out)

    # -- the parts of a plan

    def _count(self, tasks: list[Task]) -> None:
        self.counts.update(_KINDS[type(task)] for task in tasks)

    def _release(self, step: int) -> None:
        for row in self._ended:
            self._tasks.append(FinishTask(row.sequence.request_id))
            self.pool.give(row.blocks)
        self._ended.clear()
        for request_id, row in list(self.running.items()):
            if self._is_given_up(row.sequence, step):
                self._tasks.append(AbortTask(request_id))
                self.pool.give(self.running.pop(request_id).blocks)

    def _is_given_up(self, sequence: Sequence, step: int) -> bool:
        if sequence.abort_step is None or sequence.abort_step > step:
            return False
        self.counts["given_up"] += 1
        self._on_end(sequence, None)
        return True

    def _advance(self) -> int:
        """Blocks for decoding rows, chunks for the others, the oldest first. Returns the budget that is left."""
        width = 1 + self.config.num_drafts
        budget = self.config.max_chunk_tokens - width * sum(row.decodes for row in self.running.values())
        for row in sorted(self.running.values(), key=lambda r: r.sequence.index):
            if row.sequence.request_id not in self.running:
                continue  # preempted for an older one
            if row.decodes:
                self._grow(row, width)
            elif length := self._chunk_len(row.request, row.computed, budget):
                end = row.computed + length
                if self._reserve(row, end):
                    self._chunks.append(PrefillTask(row.request, row.computed, end, row.blocks))
                    self._computed(row, end)
                    budget -= length
        return budget

    def _grow(self, row: Row, width: int) -> None:
        """Blocks for what the open step may accept and the next step may compute."""
        held = len(row.blocks)
        sequence = row.sequence
        open_step = 1 if row.fresh else width
        most = len(sequence.prompt) + sequence.max_dec_len
        tokens = min(len(sequence.prompt) + len(sequence.outputs) + open_step - 1 + width, most)
        row.fresh = False
        if self._reserve(row, tokens) and len(row.blocks) > held:
            self._tasks.extend(_decode_tasks(sequence, row.blocks, held))

    def _reserve(self, row: Row, tokens: int) -> bool:
        """Give ``row`` blocks for ``tokens``, if need be those of the youngest; False: it was the youngest itself."""
        needed = -(-tokens // self.config.block_size) - len(row.blocks)
        while needed > self.pool.num_free:
            victim = max(self.running.values(), key=lambda r: r.sequence.index)
            self._preempt(victim)
            if victim is row:
                return False
        row.blocks.extend(self.pool.take(max(needed, 0)))
        return True

    def _preempt(self, row: Row) -> None:
        self._tasks.append(PreemptTask(row.sequence.request_id))
        self.pool.give(row.blocks)
        del self.running[row.sequence.request_id]
        self._preempt_to(row.sequence)

    def _chunk_len(self, request: Request, start: int, budget: int) -> int:
        """Tokens of the chunk from ``start``: within the budget, and one that is not last leaves M tokens (I2)."""
        left = len(request.history) - start
        length = min(left, budget, self.config.max_chunk_tokens)
        if length < left and left - length < self.config.num_levels:
            length = left - self.config.num_levels
        return max(length, 0)

    def _computed(self, row: Row, end: int) -> None:
        row.computed = end
        row.decodes = end == len(row.request.history) and self.config.role != "prefill"
        row.fresh = row.decodes

    # -- admission

    def _admit(self, budget: int, step: int) -> None:
        while len(self.running) < self.config.max_num_seqs and (sequence := self._next(step)):
            row = self._admitted(sequence, budget)
            if row is None:
                self.wait(sequence)
                return
            if sequence.abort_step is None and sequence.abort_after is not None:
                sequence.abort_step = step + sequence.abort_after
            self.running[sequence.request_id] = row
            if self.config.role != "decode":
                budget -= row.computed - self._start(sequence)

    def _next(self, step: int) -> Sequence | None:
        """The oldest that waits, else a new one. Those given up while they waited are dropped."""
        while self._waiting:
            sequence = heapq.heappop(self._waiting)[1]
            if not self._is_given_up(sequence, step):
                return sequence
        return self._source()

    def _start(self, sequence: Sequence) -> int:
        return 0 if sequence.outputs else sequence.cached

    def _admitted(self, sequence: Sequence, budget: int) -> Row | None:
        """The row of a request that takes a slot, its task planned; None: not now."""
        if budget <= 0 and self.config.role != "decode":
            return None
        outputs = sequence.outputs
        if self.config.role == "decode":
            assert sequence.handed is not None
            request = sequence.handed
            start, end = 0, len(request.history)
            covered = end + self._first_step(sequence)
        else:
            request = Request(sequence.request_id, sequence.prompt, outputs, sampling=sequence.sampling)
            start = self._start(sequence)
            end = covered = start + self._chunk_len(request, start, budget)
        if end == start or not self._has_room(covered):
            return None
        blocks = self.pool.take(-(-covered // self.config.block_size))
        self._tasks.append(PrefillTask(request, start, end, blocks))
        row = Row(sequence, request, blocks, start, decodes=False, fresh=False)
        self._computed(row, end)
        row.fresh = row.fresh and self.config.role != "decode"
        return row

    def _has_room(self, tokens: int) -> bool:
        """Blocks for the first chunk, and some to spare for those that run: optimistic, so preemptions do happen."""
        spare = self.pool.count // 100 if self.running else 0
        return self.pool.num_free >= -(-tokens // self.config.block_size) + spare

    def _first_step(self, sequence: Sequence) -> int:
        """D2: tokens of the first step of a request that was handed over."""
        drafts = min(1, sequence.max_dec_len - len(sequence.outputs) - 1) if self.config.num_levels else 0
        return 1 + max(0, drafts)


def _decode_tasks(sequence: Sequence, blocks: list[int], held: int) -> list[Task]:
    """The new blocks as an engine may tell them: appended, one task or several, or now and then the whole table."""
    turn = (sequence.index + len(blocks)) % 8
    if turn == 0:
        return [DecodeTask(sequence.request_id, blocks)]
    if turn == 1 and len(blocks) > held + 1:
        return [DecodeTask(sequence.request_id, new_blocks=[b]) for b in blocks[held:]]
    return [DecodeTask(sequence.request_id, new_blocks=blocks[held:])]
