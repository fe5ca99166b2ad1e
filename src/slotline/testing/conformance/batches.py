"""A batch on the device: insertions, slots, steps, results, against the reference (rules I, L, S, B8, B11, O)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import slotline as sl
from slotline.testing import strategies as some
from slotline.testing.conformance.base import Kit, NewBackend, examples, read, tensor
from slotline.testing.counters import assert_no_sync
from slotline.testing.reference import ReferenceBatch
from slotline.testing.rules import rule

CONFIG = sl.BatchConfig(
    max_num_seqs=200, max_model_len=32, max_chunk_tokens=8, block_size=4, num_blocks=4000, vocab_size=100,
    eos_token_ids=(2,), spec_method="mtp", num_draft_tokens=2,
)  # fmt: skip
LAYOUT = sl.target_layout(CONFIG) | sl.mtp_layout(CONFIG)


def prefill(request_id: str, block: int, tokens: tuple[int, ...] = (3, 4)) -> sl.PrefillTask:
    return sl.PrefillTask(sl.Request(request_id, tokens), 0, len(tokens), [block])


class Batches(Kit):
    """Rules that need a batch."""

    @rule("I1")
    def test_c18_a_refused_call_changes_nothing(self, backend: Any) -> None:
        config = sl.BatchConfig(max_num_seqs=4, max_model_len=16, max_chunk_tokens=8, block_size=4, vocab_size=50)
        batch = sl.SlotBatch(sl.target_layout(config), backend)
        sl.insert_tasks(batch, [prefill(f"r{i}", i) for i in range(4)])
        before = batch.digest()
        refused: list[list[Any]] = [
            [prefill("fifth", 5)],
            [sl.AbortTask("r0"), prefill("fifth", 5), prefill("sixth", 6)],
            [sl.DecodeTask("r1", new_blocks=[9]), sl.DecodeTask("nobody", new_blocks=[9])],
            [sl.AbortTask("r0"), prefill("fifth", 5, (3, 50))],
        ]
        for tasks in refused:
            with pytest.raises(sl.TaskError):
                sl.insert_tasks(batch, tasks)
            assert batch.digest() == before, f"{tasks} was refused and has changed the batch"

    @rule("I4", needs="packed_apply")
    @examples(0.5)
    @given(data=st.data())
    def test_an_insertion_is_one_transfer_and_one_kernel(self, backend: Any, data: st.DataObject) -> None:
        config = data.draw(some.configs())
        layout = data.draw(some.layouts(config))
        batch, ref = sl.SlotBatch(layout, backend), ReferenceBatch(layout)
        for _ in range(4):
            tasks = data.draw(some.calls(ref))
            batch.stats.clear()
            sl.insert_tasks(batch, tasks)
            ref.insert(tasks)
            most = 0 if backend.abilities.async_upload or not backend.abilities.streams else 1
            assert batch.stats["host_synchronisations"] <= most, "waits of one call (I4, B12)"
            assert (batch.stats["staging_waits"], batch.stats["device_to_host"]) == (0, 0), "waits, reads of one call"
            counted = batch.stats["transfers"], batch.stats["kernels"], batch.stats["splits"]
            assert counted in ((1, 1, 0), (0, 0, 0)), "transfers, kernels, splits of one call"
            assert tasks or counted == (0, 0, 0), "an empty call did something"
        found = ref.compare(batch)
        assert found is None, found

    @rule("I4")
    def test_c23_two_hundred_decode_tasks_are_one_packet(self, backend: Any) -> None:
        batch = sl.SlotBatch(LAYOUT, backend)
        sl.insert_tasks(batch, [prefill(f"r{i:03}", i) for i in range(200)])
        before = read(backend, batch["temperature"]).tolist()
        batch.stats.clear()
        sl.insert_tasks(batch, [sl.DecodeTask(f"r{i:03}", block_table=[i, 1000 + i]) for i in range(200)])
        if backend.abilities.packed_apply:
            assert (batch.stats["transfers"], batch.stats["kernels"]) == (1, 1)
        wanted = [[i, 1000 + i, *[-1] * 6] for i in range(200)]
        assert read(backend, batch["block_tables"]).tolist() == wanted
        assert read(backend, batch["mtp.block_tables"]).tolist() == wanted
        assert read(backend, batch["temperature"]).tolist() == before

    @rule("W6", needs="streams")
    def test_an_insertion_waits_for_no_queued_work(self, backend: Any) -> None:
        if not backend.abilities.async_upload:
            pytest.skip(f"{type(backend).__name__}.abilities does not declare async_upload (B12)")
        batch = sl.SlotBatch(LAYOUT, backend)
        names = iter(range(200))

        def insert() -> None:
            with assert_no_sync(batch):
                sl.insert_tasks(batch, [prefill(f"r{i:03}", i) for i in (next(names), next(names))])

        self.behind_work(backend, insert, "insert_tasks")
        taken = next(names)
        assert read(backend, batch["seq_lens_this_time"]).tolist() == [2] * taken + [0] * (200 - taken)

    @rule("I6")
    def test_work_before_an_insertion_sees_nothing_of_it_and_work_behind_it_all(self, backend: Any) -> None:
        batch = sl.SlotBatch(LAYOUT, backend)
        for i in range(20):
            before = backend.download(batch["seq_lens_this_time"]), backend.download(batch["input_ids"])
            self.queue_work(backend, 1)
            sl.insert_tasks(batch, [prefill(f"r{i:03}", i, (7, 8))])
            after = backend.download(batch["seq_lens_this_time"]), backend.download(batch["input_ids"])
            assert (before[0].array()[i], before[1].array()[i, 0]) == (0, 0), "work queued before saw the insertion"
            assert (after[0].array()[i], after[1].array()[i, :2].tolist()) == (2, [7, 8]), "work behind it did not"

    @rule("I6", needs="streams")
    def test_across_streams_the_receipts_event_is_enough(self, backend: Any) -> None:
        side, main = backend.new_stream(), backend.new_stream()
        for i in range(8):
            batch = sl.SlotBatch(LAYOUT, backend)
            out = tensor(backend, np.zeros(200), "int32")
            backend.synchronize()
            self.queue_work(backend, 1, side)
            sl.insert_tasks(batch, [prefill("a", i)], stream=side).event.wait(main)
            backend.async_set_value(out, batch["seq_lens_this_time"], stream=main)
            assert read(backend, out)[0] == 2

    @rule("S4")
    @pytest.mark.parametrize("moves", [[(1, 3)], [(0, 1), (1, 2), (2, 3)], [(2, 2)]], ids=str)
    def test_c25_c28_swap_moves_every_field(self, backend: Any, moves: list[tuple[int, int]]) -> None:
        config = sl.BatchConfig(max_num_seqs=4, max_model_len=16, max_chunk_tokens=4, block_size=4, vocab_size=50)
        layout = sl.target_layout(config).extend(*some.invented_fields())
        batch = sl.SlotBatch(layout, backend)
        want = {}
        for f in (f for f in layout if f.slot_axis is not None and f.on_device):
            shape, axis = layout.shape(f.name), f.slot_axis or 0
            rows = (np.arange(4) + 1).reshape([4 if a == axis else 1 for a in range(len(shape))])
            values = np.broadcast_to(rows % 2 if f.dtype == "bool" else rows, shape)
            backend.async_set_value(batch[f.name], values)
            order = list(range(4))
            for i, j in moves:
                order[i], order[j] = order[j], order[i]
            want[f.name] = np.take(values, order, axis=axis)
        for i, j in moves:
            batch.swap(i, j)
        for name, values in want.items():
            if layout[name].residency != "mirrored":
                assert read(backend, batch[name]).astype(np.int64).tolist() == values.tolist(), name

    @rule("S6")
    def test_c35_reset_equals_fresh_in_the_same_memory(self, backend: Any) -> None:
        batch, fresh = sl.SlotBatch(LAYOUT, backend), sl.SlotBatch(LAYOUT, backend)
        names = [f.name for f in LAYOUT if f.on_device]
        before = [backend.inspect(batch[n]) for n in names]
        sl.insert_tasks(batch, [prefill(f"r{i}", i) for i in range(9)])
        batch.swap(0, 150)
        batch.reset()
        assert [backend.inspect(batch[n]) for n in names] == before
        assert batch.diff(fresh) == []
        assert batch.digest() == fresh.digest()

    @rule("L6")
    def test_c45_a_result_is_what_the_step_made(self, backend: Any) -> None:
        batch = sl.SlotBatch(LAYOUT, backend)
        logprobs = tensor(backend, np.full((200, 2), 77), "float32")
        sl.insert_tasks(batch, [prefill("a", 1)])
        for number in range(4):
            step = sl.prepare_step(batch)
            tokens = np.full((200, 3), -1)
            tokens[0, 0] = 50 + number
            counts = np.zeros(200, np.int64)
            counts[0] = 1
            self.queue_work(backend, 1)
            sl.commit_step(batch, step, tokens, counts)
            backend.async_set_value(logprobs[0], [number, -number])
            fetch = batch.fetch(step, extra={"logprobs": logprobs})
            backend.async_set_value(logprobs, 77)  # it may be written again at once
            (out,) = fetch.result()
            assert (out.tokens, out.extra["logprobs"].tolist()) == ([50 + number], [number, -number])

    @rule("B11")
    def test_launch_runs_in_the_order_of_the_stream(self, backend: Any) -> None:
        first, second = tensor(backend, np.arange(6)), tensor(backend, np.zeros(6))
        backend.synchronize()

        def double(reads: Any, writes: Any) -> None:
            writes["out"][...] = reads["x"] + reads["x"]

        self.queue_work(backend, 2)
        backend.async_set_value(first, 5)
        backend.launch(double, {"x": first}, {"out": second}, fills={"out"})
        backend.async_set_value(first, 9)
        assert read(backend, second).tolist() == [10] * 6
        assert read(backend, first).tolist() == [9] * 6

    @rule("B8")
    def test_two_devices_at_once(self, backend: Any, new_backend: NewBackend) -> None:
        other = new_backend()
        if type(backend).probe(framework=backend.framework, vendor=backend.vendor, device=1).usable:
            other.close()
            other = new_backend(device=1)
        batches = [sl.SlotBatch(LAYOUT, backend), sl.SlotBatch(LAYOUT, other)]
        for number, batch in enumerate(batches):
            sl.insert_tasks(batch, [prefill(f"r{number}", number, (number + 3, 9))])
            batch.swap(0, 5 + number)
        for number, batch in enumerate(batches):
            assert batch.occupied == [5 + number]
            found = read(batch.backend, batch["input_ids"])[5 + number, :2].tolist()
            assert found == [number + 3, 9], "two devices in one process disturb each other"
        batches.pop()
        other.close()
        assert read(backend, batches[0]["input_ids"])[5, 0] == 3, "closing one device took the other's memory"
