"""The replay's scheduler alone: what it plans, and what it may never plan."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest

from slotline.core.config import BatchConfig
from slotline.core.fetch import Output
from slotline.core.sampling import SamplingParams
from slotline.core.tasks import AbortTask, DecodeTask, FinishTask, PreemptTask, PrefillTask, Task
from slotline.replay.blocks import BlockPool
from slotline.replay.model import EOS, SYMBOLS, generated_by
from slotline.replay.plain import generate
from slotline.replay.scheduler import Scheduler
from slotline.replay.side import shuffled
from slotline.replay.traces import TraceRow
from slotline.replay.workload import Sequence, Workload


def config(**changes: object) -> BatchConfig:
    sizes: dict[str, object] = {
        "max_num_seqs": 4,
        "max_model_len": 64,
        "max_chunk_tokens": 16,
        "block_size": 4,
        "vocab_size": 1000,
    }
    return BatchConfig(**{**sizes, **changes})  # type: ignore[arg-type]


def sequence(index: int, prompt: int, output: int, abort_after: int | None = None) -> Sequence:
    ids = np.arange(prompt, dtype=np.int64)
    return Sequence(index, f"r{index}", ids, SamplingParams(max_dec_len=output), output, 0, abort_after)


class Driver:
    """Runs a scheduler without a batch: every row in a step yields a token, as fetched one step late."""

    def __init__(self, config: BatchConfig, num_blocks: int, sequences: list[Sequence]) -> None:
        self.ended: dict[str, Sequence] = {}
        source = iter(sequences)
        self.scheduler = Scheduler(config, num_blocks, lambda: next(source, None), self._end)
        self.config, self.tasks = config, list[list[Task]]()
        self.rows: dict[str, bool] = {}  # the open step: request, and whether its chunk is the last

    def _end(self, sequence: Sequence, out: Output | None) -> None:
        self.ended[sequence.request_id] = sequence

    def turn(self, step: int) -> list[Task]:
        tasks = list(self.scheduler.plan(step))
        opened = {t.request_id for t in tasks if isinstance(t, PrefillTask)}
        gone = {t.request_id for t in tasks if isinstance(t, (FinishTask, AbortTask, PreemptTask))}
        before, chunks = self.rows, self.scheduler.chunks()
        self.rows = {r: True for r, last in before.items() if last and r not in gone}
        for task in [*tasks, *chunks]:
            if isinstance(task, PrefillTask):
                self.rows[task.request_id] = task.end == len(task.request.history)
        outputs = [
            Output(r, [1] if last else [], 3 if self._is_over(r, last) else 0, None, [], r in gone)
            for r, last in before.items()
            if r in self.scheduler.running or r in gone
        ]
        self.scheduler.take(o for o in outputs if o.request_id not in opened - gone)
        for request_id in self.ended:
            self.rows.pop(request_id, None)
        self.tasks.append([*tasks, *chunks])
        return self.tasks[-1]

    def _is_over(self, request_id: str, last: bool) -> bool:
        row = self.scheduler.running.get(request_id)
        return last and row is not None and len(row.sequence.outputs) + 1 >= row.sequence.max_dec_len

    def run(self, most: int = 2000) -> None:
        for step in range(most):
            if not self.turn(step) and not self.rows and self.scheduler.is_idle:
                return
        raise AssertionError("the scheduler makes no progress")


def prefills(driver: Driver) -> Iterator[PrefillTask]:
    return (t for tasks in driver.tasks for t in tasks if isinstance(t, PrefillTask))


def test_chunks_follow_each_other_within_the_budget() -> None:
    driver = Driver(config(), 64, [sequence(0, 40, 3)])
    driver.run()
    assert [(t.start, t.end) for t in prefills(driver)] == [(0, 16), (16, 32), (32, 40)]
    assert driver.ended["r0"].outputs == [1, 1, 1]


def test_a_chunk_that_is_not_last_leaves_m_tokens() -> None:
    wide = config(spec_method="mtp", num_draft_tokens=3, mtp_levels=3)
    driver = Driver(wide, 64, [sequence(0, 34, 2)])
    driver.run()
    ends = [t.end for t in prefills(driver)]
    assert ends[-1] == 34
    assert all(34 - end >= 3 for end in ends[:-1])


def test_decodes_come_first_in_the_budget() -> None:
    driver = Driver(config(), 64, [sequence(0, 8, 20), sequence(1, 40, 2)])
    driver.turn(0)
    driver.turn(1)
    driver.turn(2)
    chunk = [t for t in driver.tasks[2] if isinstance(t, PrefillTask)]
    assert [t.end - t.start for t in chunk] == [15]  # one token of sixteen is the decoding row's


def test_block_tables_grow_and_come_back() -> None:
    driver = Driver(config(), 64, [sequence(0, 5, 30)])
    driver.run()
    grown = [t for tasks in driver.tasks for t in tasks if isinstance(t, DecodeTask)]
    assert len(grown) >= 5
    assert any(t.block_table is not None for t in grown), "now and then the whole table is told"
    assert driver.scheduler.pool.num_free == 64


@pytest.mark.parametrize("seed", range(5))
def test_few_blocks(seed: int) -> None:
    rng = random.Random(seed)
    many = [sequence(i, rng.randint(1, 30), rng.randint(1, 30)) for i in range(40)]
    driver = Driver(config(), 16, many)
    driver.run()
    assert set(driver.ended) == {s.request_id for s in many}
    assert all(len(s.outputs) == s.max_dec_len for s in many)
    assert driver.scheduler.counts["preempt"] > 0
    assert driver.scheduler.pool.num_free == 16


def test_the_youngest_is_preempted_and_resumed_over_its_history() -> None:
    driver = Driver(config(max_model_len=32), 8, [sequence(0, 10, 20), sequence(1, 10, 20)])
    driver.run()
    preempted = [t.request_id for tasks in driver.tasks for t in tasks if isinstance(t, PreemptTask)]
    assert set(preempted) == {"r1"}
    resumed = [t for t in prefills(driver) if t.request_id == "r1" and t.start == 0][1:]
    assert resumed
    assert any(len(t.request.output_token_ids) for t in resumed)


def test_aborts() -> None:
    driver = Driver(config(), 64, [sequence(0, 10, 40, abort_after=5), sequence(1, 10, 4, abort_after=60)])
    driver.run()
    aborts = [(i, t.request_id) for i, tasks in enumerate(driver.tasks) for t in tasks if isinstance(t, AbortTask)]
    assert aborts == [(5, "r0")]
    assert driver.scheduler.pool.num_free == 64


def test_workload_refuses_what_no_slot_can_hold() -> None:
    rows = [(63, 1), (64, 1), (60, 5), (60, 4), (0, 3), (5, 0), (5, 5)]
    load = Workload((TraceRow(0.0, p, o, None) for p, o in rows), config(), seed=0, abort_rate=0)
    made = list(iter(load.next, None))
    assert [(len(s.prompt), s.max_dec_len) for s in made] == [(63, 1), (60, 4), (5, 5)]
    assert (load.accepted, load.refused) == (3, 4)


def test_workload_shares_prompts_by_hash_id() -> None:
    big = config(max_model_len=4096)
    rows = [TraceRow(0.0, 1030, 4, (1, 2, 3)), TraceRow(0.0, 1030, 4, (1, 2, 9)), TraceRow(0.0, 1024, 4, (1, 2))]
    load = Workload(iter(rows), big, seed=0, abort_rate=0)
    first, second, third = (load.next() for _ in rows)
    assert first is not None
    assert second is not None
    assert third is not None
    assert np.array_equal(first.prompt[:1024], second.prompt[:1024])
    assert not np.array_equal(first.prompt[1024:], second.prompt[1024:])
    assert (first.cached, second.cached, third.cached) == (0, 1024, 512)


def test_block_pool() -> None:
    pool = BlockPool(3)
    taken = pool.take(2)
    assert sorted(taken + pool.take(1)) == [0, 1, 2]
    with pytest.raises(ValueError, match="1 blocks asked for, 0 free of 3"):
        pool.take(1)
    pool.give(taken)
    assert pool.num_free == 2


def test_shuffled_keeps_the_order_of_one_request() -> None:
    tasks: list[Task] = []
    for i in range(20):
        tasks += [PreemptTask(f"r{i}"), DecodeTask(f"r{i}", [1]), DecodeTask(f"r{i}", [2])]
    mixed = shuffled(tasks, random.Random(1))
    assert mixed != tasks
    for i in range(20):
        assert [t for t in mixed if t.request_id == f"r{i}"] == tasks[3 * i : 3 * i + 3]


def test_the_model_speaks_few_symbols() -> None:
    said = generated_by(1234, 5000)
    assert set(said) == set(SYMBOLS)
    assert 20 < said.count(EOS) < 200
    assert generated_by(1234, 10) == said[:10]
    assert generated_by(1235, 100) != said[:100]


@pytest.mark.parametrize(
    ("tokens", "changes", "expected"),
    [
        ([7, 2, 7], {}, ([7, 2], 1, None)),
        ([7, 2, 7, 7], {"ignore_eos": True}, ([7, 2, 7], 3, None)),
        ([2, 2, 2], {"min_dec_len": 2}, ([2, 2], 1, None)),
        ([5, 7, 8], {"stop_seqs": [[9], [7, 8]]}, ([5, 7, 8], 2, (1, 1))),
        ([7, 8], {"stop_seqs": [[7, 8]], "min_dec_len": 2}, ([7, 8], 2, (0, 0))),
        ([7, 7], {}, ([7, 7], 0, None)),
    ],
)
def test_plain_generation(tokens: list[int], changes: dict[str, object], expected: object) -> None:
    sampling = SamplingParams(**changes)  # type: ignore[arg-type]
    assert generate(tokens, sampling, 3, (2,)) == expected
