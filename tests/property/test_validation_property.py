"""Every fault is found, and nothing else (rules I1, I2, I3, S1)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import slotline as sl
from slotline.testing import strategies as some
from slotline.testing.reference import ReferenceBatch
from slotline.testing.reference_faults import same_faults
from slotline.testing.strategies_invalid import mixed_calls


def running(data: st.DataObject) -> tuple[sl.SlotBatch, ReferenceBatch]:
    """A batch with some requests, of which some have been committed, and its reference."""
    config = data.draw(some.configs())
    layout = data.draw(some.layouts(config))
    batch, ref = sl.SlotBatch(layout, sl.load_backend("cpu")), ReferenceBatch(layout)
    for _ in range(data.draw(st.integers(0, 3))):
        tasks = data.draw(some.calls(ref))
        sl.insert_tasks(batch, tasks)
        ref.insert(tasks)
        if data.draw(st.booleans()):
            step, ref_step = batch.ticket(), ref.ticket()
            tokens, counts = data.draw(some.accepted(ref, ref_step))
            sl.commit_step(batch, step, tokens, counts)
            ref.commit(ref_step, tokens, counts)
    return batch, ref


@given(st.data())
def test_i1_validate_finds_what_the_reference_finds(data: st.DataObject) -> None:
    batch, ref = running(data)
    tasks = data.draw(mixed_calls(ref))
    before = batch.digest()
    want, got = ref.faults(tasks), sl.validate(batch, tasks)
    assert same_faults(want, got), (want, got)
    assert batch.digest() == before


@given(st.data())
def test_i1_all_or_nothing(data: st.DataObject) -> None:
    batch, ref = running(data)
    tasks = data.draw(mixed_calls(ref))
    faults, before = sl.validate(batch, tasks), batch.digest()
    if faults:
        with pytest.raises(sl.TaskError) as caught:
            sl.insert_tasks(batch, tasks)
        assert repr(caught.value.errors) == repr(faults)
        assert all(f.request_id in str(caught.value) for f in faults[:10])
        assert batch.digest() == before
    assert repr(sl.insert_tasks(batch, tasks, on_invalid="skip").refused) == repr(faults)
    ref.insert_skip(tasks)
    assert ref.compare(batch) is None


@given(st.data())
def test_i1_valid_calls_have_no_fault(data: st.DataObject) -> None:
    batch, ref = running(data)
    tasks = data.draw(some.calls(ref))
    assert ref.faults(tasks) == []
    assert sl.validate(batch, tasks) == ()


@given(st.data())
def test_i1_a_call_does_the_same_beside_a_refused_task(data: st.DataObject) -> None:
    """A call with nothing wrong is checked in one pass, one with a fault task by task: both must do the same."""
    batch, ref = running(data)
    other = sl.SlotBatch(batch.layout, sl.load_backend("cpu"))
    tasks = [t for t in data.draw(some.calls(ref)) if isinstance(t, sl.PrefillTask) and t.request_id not in batch]
    batch.reset()
    other.slots.next_epoch = batch.slots.next_epoch
    plain = sl.insert_tasks(batch, tasks)
    beside = sl.insert_tasks(other, [*tasks, sl.AbortTask("nobody")], on_invalid="skip")
    assert [fault.request_id for fault in beside.refused] == ["nobody"]
    for name in ("slots", "epochs", "ended", "cut", "num_active", "has_prefill", "launch_tokens"):
        assert getattr(plain, name) == getattr(beside, name), name
    assert batch.diff(other) == []
    assert batch.digest() == other.digest()


@pytest.mark.parametrize(
    "field", ["temperature", "top_p", "min_p", "penalty_score", "frequency_score", "presence_score"]
)
def test_i2_sampling_bounds_are_the_same_however_a_call_is_checked(field: str) -> None:
    config = sl.BatchConfig(max_num_seqs=2, max_model_len=8, block_size=4, vocab_size=10)
    batch = sl.SlotBatch(sl.target_layout(config), sl.load_backend("cpu"))
    most = float(np.finfo(np.float32).max)
    values = [0.0, -0.0, 1.0, 2.0**-149, 2.0**-150, most, most * (1 + 2**-25), 1e39, -1.0, float("inf"), float("nan")]
    for value in [*values, *np.nextafter(values, 2.0).tolist(), *np.nextafter(values, -2.0).tolist()]:
        params = sl.SamplingParams(**{field: value})
        task = sl.PrefillTask(sl.Request("r", [1, 2], sampling=params), 0, 2, [0])
        alone = sl.validate(batch, [task])
        beside = sl.validate(batch, [task, sl.AbortTask("nobody")])
        assert repr(alone) == repr(tuple(f for f in beside if f.request_id == "r")), (field, value)


def test_i2_blocks_while_their_number_is_unknown() -> None:
    config = sl.BatchConfig(max_num_seqs=2, max_model_len=8, block_size=4, vocab_size=10)
    batch = sl.SlotBatch(sl.target_layout(config), sl.load_backend("cpu"))
    far = sl.PrefillTask(sl.Request("r", [1, 2]), 0, 2, [1000])
    assert sl.validate(batch, [far]) == ()
    assert [f.value for f in sl.validate(batch, [sl.PrefillTask(far.request, 0, 2, [-3])])] == [-3]
    batch.set_num_blocks(1000)
    assert [tuple(f) for f in sl.validate(batch, [far])] == [("r", "block_table", 1000, 1000)]


def test_i6_a_chunk_waits_for_its_commit() -> None:
    config = sl.BatchConfig(max_num_seqs=2, max_model_len=8, max_chunk_tokens=2, block_size=4, vocab_size=10)
    batch = sl.SlotBatch(sl.target_layout(config), sl.load_backend("cpu"))
    request = sl.Request("r", [1, 2, 3, 4])
    sl.insert_tasks(batch, [sl.PrefillTask(request, 0, 2, [0])])
    step = batch.ticket()
    with pytest.raises(sl.TaskError, match="commit the step first") as caught:
        sl.insert_tasks(batch, [sl.PrefillTask(request, 2, 4, [0])])
    assert [f.field for f in caught.value.errors] == ["start"]
    sl.insert_tasks(batch, [sl.DecodeTask("r", [1, 2])])  # every other task is allowed
    step.discard()
    with pytest.raises(sl.TaskError, match="abort or preempt first"):
        sl.insert_tasks(batch, [sl.PrefillTask(request, 2, 4, [0])])
