"""Steps: bounds, shapes, which rows take part, what a commit leaves alone (rules L1 to L4)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from frameworks import backend, fewer, host, tensor
from hypothesis import given, settings
from hypothesis import strategies as st

import slotline as sl
from slotline.testing import strategies as some
from slotline.testing.reference import ReferenceBatch
from slotline.testing.reference_pack import packed


def started(data: st.DataObject, framework: str, **fixed: Any) -> tuple[sl.SlotBatch, ReferenceBatch]:
    """A batch and its reference after some insertions and steps."""
    config = data.draw(some.configs(**fixed))
    layout = some.full_layout(config)
    batch, ref = sl.SlotBatch(layout, backend(framework)), ReferenceBatch(layout)
    for _ in range(data.draw(st.integers(1, 3))):
        tasks = data.draw(some.calls(ref))
        sl.insert_tasks(batch, tasks)
        ref.insert(tasks)
        if data.draw(st.booleans()):
            step, ticket = sl.prepare_step(batch), ref.ticket()
            tokens, counts = data.draw(some.accepted(ref, ticket))
            sl.commit_step(batch, step, tensor(framework, tokens), tensor(framework, counts))
            ref.commit(ticket, tokens, counts)
            drafts = data.draw(some.drafts(ref))
            sl.commit_drafts(batch, step, tensor(framework, drafts))
            ref.commit_drafts(ticket, drafts)
    return batch, ref


def test_l1_length_of_the_packed_arrays(framework: str) -> None:
    """T' is the launch bound rounded up to a power of two, or what is asked for; below the bound it is refused."""

    @fewer(2, framework)
    @given(st.data())
    def lengths(data: st.DataObject) -> None:
        batch, ref = started(data, framework)
        ids = sorted(ref.slot_map())
        skip = data.draw(st.lists(st.sampled_from(ids), unique=True)) if ids else []
        bound = sum(row.bound for _, row in ref.occupied() if row.request_id not in skip)
        before = batch.digest()
        if bound:
            with pytest.raises(sl.TaskError, match=str(bound)):
                sl.prepare_step(batch, skip=skip, num_tokens=bound - 1)
        assert batch.digest() == before
        chosen = data.draw(st.none() | st.integers(max(1, bound), bound + 9))
        step = sl.prepare_step(batch, skip=skip, num_tokens=chosen)
        power = 1
        while power < bound:
            power *= 2
        assert step.num_tokens == (power if chosen is None else chosen)
        taken = {row.request_id for _, row in ref.occupied() if row.bound and row.request_id not in skip}
        assert set(step.request_ids) == taken
        assert int(host(step.cu_seqlens_q)[-1]) <= max(bound, 0)  # the bound holds

    lengths()


def test_l2_shapes_depend_on_the_config_alone(framework: str) -> None:
    """Whatever the buffers hold, arrays have the same shapes and dtypes, and nothing is read back."""

    @fewer(2, framework)
    @given(st.data())
    def shapes(data: st.DataObject) -> None:
        batch, _ = started(data, framework, roles=["mixed"], methods=["mtp"])
        config, size = batch.config, batch.config.max_num_seqs
        batch.stats.clear()
        batch.backend.stats.clear()
        number = max(1, batch.launch_tokens) + 3
        step = sl.prepare_step(batch, num_tokens=number)
        ids = config.token_dtype
        common = {
            "input_ids": ((number,), ids), "positions": ((number,), "int32"), "num_logits": ((1,), "int32"),
            "batch_id_per_token": ((number,), "int32"), "cu_seqlens_q": ((size + 1,), "int32"),
            "cu_seqlens_k": ((size + 1,), "int32"),
        }  # fmt: skip
        of_step = {**common, "logits_rows": ((size * (config.num_drafts + 1),), "int32")}
        rows = {"logits_rows": ((size,), "int32"), "logits_slots": ((size,), "int32")}
        of_draft = {**common, **rows, "hidden_rows": ((number,), "int32")}
        found = {name: host(getattr(step, name)) for name in of_step}
        assert {name: (a.shape, a.dtype.name) for name, a in found.items()} == of_step
        tokens = tensor(framework, np.ones((size, config.num_drafts + 1)), ids)
        sl.commit_step(batch, step, tokens, tensor(framework, np.ones(size), "int32"))
        for level in range(1, config.num_drafts + 1):
            drafted = tensor(framework, np.ones((size, level - 1)), ids)
            draft = sl.prepare_draft(batch, step, level, drafted)
            found = {name: host(getattr(draft, name)) for name in of_draft}
            assert {name: (a.shape, a.dtype.name) for name, a in found.items()} == of_draft
        sl.commit_drafts(batch, step, tensor(framework, np.ones((size, config.num_drafts)), ids))
        for stats in (batch.stats, batch.backend.stats):
            assert (stats["device_to_host"], stats["host_synchronisations"]) == (0, 0)

    shapes()


def test_l1_rows_in_the_order_that_is_asked_for(framework: str) -> None:
    """Micro-batches: two steps over a partition of the rows give each row what one step gives it."""

    @fewer(2, framework)
    @given(st.data())
    def partition(data: st.DataObject) -> None:
        batch, ref = started(data, framework)
        ids = list(data.draw(st.permutations(sorted(ref.slot_map()))))
        cut = data.draw(st.integers(0, len(ids)))
        for part in (ids[:cut], ids[cut:]):
            step, ticket = sl.prepare_step(batch, rows=part), ref.ticket(part)
            for name, wanted in packed(ref, ticket, step.num_tokens).items():
                assert host(getattr(step, name)).tolist() == wanted, name
            assert step.slots == [ref.slot_map()[r] for r in part]
        for name in ids:  # all are in an open step: none is left for a third
            assert sl.prepare_step(batch, rows=[name]).request_ids == []

    partition()


def test_l4_only_rows_of_the_step_change(framework: str) -> None:
    """Rows not in the step keep every byte; what is handed in is read before the call returns."""

    @fewer(2, framework)
    @given(st.data())
    def commits(data: st.DataObject) -> None:
        batch, ref = started(data, framework)
        ids = sorted(ref.slot_map())
        some_ids = data.draw(st.lists(st.sampled_from(ids), unique=True)) if ids else []
        step, ticket = sl.prepare_step(batch, rows=some_ids), ref.ticket(some_ids)
        tokens, counts = data.draw(some.accepted(ref, ticket))
        before = {f.name: np.moveaxis(batch.host_array(f.name), f.slot_axis or 0, 0).copy() for f in batch.layout}
        own_tokens, own_counts = tensor(framework, tokens), tensor(framework, counts)
        sl.commit_step(batch, step, own_tokens, own_counts)
        assert np.array_equal(host(own_tokens), tokens)  # not changed ...
        sl.async_set_value(own_tokens, 0)  # ... and not looked at again
        sl.async_set_value(own_counts, 0)
        ref.commit(ticket, tokens, counts)
        assert [tuple(o) for o in batch.fetch(step).result()] == [tuple(o) for o in ref.outputs(ticket)]
        others = [s for s in range(batch.config.max_num_seqs) if s not in {e.slot for e in ticket.entries}]
        for f in batch.layout:
            now = np.moveaxis(batch.host_array(f.name), f.slot_axis or 0, 0)
            assert np.array_equal(now[others], before[f.name][others]), f.name
        ref.taken(ticket)
        assert ref.compare(batch) is None

    commits()


@settings(max_examples=5)
@given(name=st.sampled_from(["nobody", "a"]))
def test_l1_unknown_and_doubled_ids(name: str) -> None:
    config = sl.BatchConfig(max_num_seqs=2, max_model_len=8, max_chunk_tokens=8, block_size=8, vocab_size=9)
    batch = sl.SlotBatch(sl.target_layout(config), backend("numpy"))
    sl.insert_tasks(batch, [sl.PrefillTask(sl.Request("a", [1, 2]), 0, 2, [0])])
    bad = [name] if name == "nobody" else [name, name]
    with pytest.raises(sl.TaskError, match=name):
        sl.prepare_step(batch, rows=bad)
    with pytest.raises(sl.TaskError, match=name):
        sl.prepare_step(batch, skip=bad)
    assert sl.prepare_step(batch).request_ids == ["a"]  # nothing was opened
