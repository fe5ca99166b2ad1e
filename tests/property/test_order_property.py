"""Tasks of different requests commute (rules I3, I5, S1)."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import slotline as sl
from slotline.testing import strategies as some
from slotline.testing.reference import ReferenceBatch
from slotline.testing.strategies_invalid import mixed_calls

Task = sl.PrefillTask | sl.DecodeTask | sl.PreemptTask | sl.AbortTask | sl.FinishTask


def shuffled(data: st.DataObject, tasks: list[Task]) -> list[Task]:
    """Another order that keeps the order within each request."""
    queues: dict[str, list[Task]] = {}
    for task in tasks:
        queues.setdefault(task.request_id, []).append(task)
    ids = data.draw(st.permutations([task.request_id for task in tasks]))
    return [queues[request_id].pop(0) for request_id in ids]


def twins(data: st.DataObject) -> tuple[sl.SlotBatch, sl.SlotBatch, ReferenceBatch]:
    """Two equal batches with some running requests, and their reference."""
    config = data.draw(some.configs(max_num_seqs=5))
    layout = data.draw(some.layouts(config))
    left, right = (sl.SlotBatch(layout, sl.load_backend("cpu")) for _ in range(2))
    ref = ReferenceBatch(layout)
    tasks = data.draw(some.calls(ref))
    ref.insert(tasks)
    step = ref.ticket()
    tokens, counts = data.draw(some.accepted(ref, step))
    ref.commit(step, tokens, counts)
    for batch in (left, right):
        sl.insert_tasks(batch, tasks)
        sl.commit_step(batch, batch.ticket(), tokens, counts)
    return left, right, ref


def told(receipt: sl.InsertReceipt) -> tuple[Any, ...]:
    faults = sorted(receipt.refused, key=repr)
    return (
        receipt.slots, receipt.epochs, receipt.ended, receipt.released, receipt.cut, repr(faults), receipt.num_active,
        receipt.has_prefill, receipt.launch_tokens,
    )  # fmt: skip


@given(st.data())
def test_i3_orders_of_good_tasks(data: st.DataObject) -> None:
    left, right, ref = twins(data)
    tasks = data.draw(some.calls(ref))
    assert told(sl.insert_tasks(left, tasks)) == told(sl.insert_tasks(right, shuffled(data, tasks)))
    assert left.digest() == right.digest()
    assert left.diff(right) == []
    ref.insert(tasks)
    assert ref.compare(left) is None


@given(st.data())
def test_i3_orders_of_mixed_tasks(data: st.DataObject) -> None:
    left, right, ref = twins(data)
    tasks = data.draw(mixed_calls(ref))
    one = sl.insert_tasks(left, tasks, on_invalid="skip")
    other = sl.insert_tasks(right, shuffled(data, tasks), on_invalid="skip")
    assert told(one) == told(other)
    assert left.digest() == right.digest()


def content(task: Task) -> list[Any]:
    """All that a task and its request say."""
    names = ["request_id", "start", "end", "block_table", "new_blocks", "slot"]
    found = [getattr(task, name, None) for name in names]
    if isinstance(task, sl.PrefillTask):
        r = task.request
        found += [r.history, r.draft_token_ids, r.sampling.packed, r.sampling.stop_lists, r.sampling.bad_tokens,
                  r.hidden_state, dict(r.extra)]  # fmt: skip
    return [f.tolist() if isinstance(f, np.ndarray) else copy.deepcopy(f) for f in found]


@given(st.data())
def test_i5_tasks_stay_as_they_are(data: st.DataObject) -> None:
    left, _, ref = twins(data)
    tasks = data.draw(mixed_calls(ref))
    before = repr([content(t) for t in tasks])
    sl.insert_tasks(left, tasks, on_invalid="skip")
    assert repr([content(t) for t in tasks]) == before


@given(st.data())
def test_i4_one_transfer(data: st.DataObject) -> None:
    left, _, ref = twins(data)
    tasks = data.draw(some.calls(ref))
    left.stats.clear()
    sl.insert_tasks(left, tasks)
    assert left.stats["transfers"] <= 1
    assert left.stats["kernels"] <= 1
    assert left.stats["device_to_host"] == left.stats["host_synchronisations"] == 0
    left.stats.clear()
    before = left.digest()
    left.stats.clear()
    sl.insert_tasks(left, [])
    assert set(left.stats.as_dict().values()) == {0}
    assert left.digest() == before
