"""The cases of asynchronous writes on a device with streams: the simulated one, which is late wherever it may be."""

from __future__ import annotations

import gc
import threading
from typing import Any

import numpy as np
import pytest
from simulated import simulated

import slotline as sl
from slotline.testing import assert_no_sync

CONFIG = sl.BatchConfig(
    max_num_seqs=200, max_model_len=32, max_chunk_tokens=8, block_size=4, num_blocks=4000, vocab_size=100,
    eos_token_ids=(2,), spec_method="mtp", num_draft_tokens=2,
)  # fmt: skip
LAYOUT = sl.target_layout(CONFIG) | sl.mtp_layout(CONFIG)


def tensor(backend: Any, shape: tuple[int, ...], dtype: str = "int64", fill: int = 0) -> Any:
    made = backend.empty([("target", shape, dtype)])["target"]
    sl.async_set_value(made, fill)
    return made


def busy(backend: Any) -> Any:
    """Work on the current stream that has not run: a backlog."""
    backlog = tensor(backend, (4,))
    for _ in range(20):
        backend.engine.write(backlog, source=1)
    return backlog


def test_c04_a_write_behind_a_backlog_waits_for_nothing() -> None:  # W6
    backend = simulated(4)
    target = tensor(backend, (6, 8))
    busy(backend)
    wide = np.arange(54).reshape(6, 9)
    with assert_no_sync(backend):
        sl.async_set_value(target, wide[:, :8])
        event = sl.async_set_value(target[:, 2:5], wide[:, 1:4])
    assert not event.is_done
    wide[...] = -1
    got = backend.read(target)
    assert got[:, 2:5].tolist() == [[9 * r + 1, 9 * r + 2, 9 * r + 3] for r in range(6)]
    assert got[:, 5:].tolist() == [[9 * r + 5, 9 * r + 6, 9 * r + 7] for r in range(6)]


@pytest.mark.parametrize("kind", ["array", "list", "scalar"])
def test_c06_c09_the_value_at_call_time_lands(kind: str) -> None:  # W4
    backend = simulated(6)
    first, second = tensor(backend, (3,)), tensor(backend, (3,))
    busy(backend)
    source: Any = np.array([1, 2, 3])
    made = {"array": lambda: source, "list": source.tolist, "scalar": lambda: source[0]}[kind]
    sl.async_set_value(first, made())
    source[:] = [4, 5, 6]
    sl.async_set_value(second, made())
    source[:] = 9
    wanted = ([1, 1, 1], [4, 4, 4]) if kind == "scalar" else ([1, 2, 3], [4, 5, 6])
    assert (backend.read(first).tolist(), backend.read(second).tolist()) == wanted


def test_c07_a_thousand_temporaries() -> None:  # W4
    backend = simulated(7)
    target = tensor(backend, (1000, 16))
    for row in range(1000):
        sl.async_set_value(target[row], np.full(16, row))
        np.full(16, -1)  # likely where the source was
    assert (backend.read(target) == np.arange(1000)[:, None]).all()
    assert backend.retained == 0


@pytest.mark.parametrize("staging_bytes", [64 << 20, 1024])
def test_c08_ten_thousand_scalars_also_when_the_staging_memory_is_used_up(staging_bytes: int) -> None:  # W4, W6
    backend = simulated(8, staging_bytes=staging_bytes)
    target = tensor(backend, (10_000,))
    busy(backend)
    for i in range(10_000):
        sl.async_set_value(target[i : i + 1], i)
    assert (backend.stats["staging_waits"] > 0) == (staging_bytes == 1024)
    assert backend.read(target).tolist() == list(range(10_000))
    assert backend.retained == 0


def test_c11_w8_a_write_moves_nothing() -> None:
    backend = simulated(11)
    target = tensor(backend, (4, 4))
    before = backend.inspect(target)
    buffer = backend.engine.host_buffer((4, 4), "int64")
    buffer.write(7)
    sl.async_set_value(target, buffer.read())
    assert backend.inspect(target) == before
    assert (backend.read(target) == 7).all()


def test_c23_two_hundred_decode_tasks_are_one_packet() -> None:  # I4
    backend = simulated(23)
    batch = sl.SlotBatch(LAYOUT, backend)
    sl.insert_tasks(batch, [sl.PrefillTask(sl.Request(f"r{i:03}", [3, 4]), 0, 2, [i]) for i in range(200)])
    batch.stats.clear()
    with assert_no_sync(batch):
        sl.insert_tasks(batch, [sl.DecodeTask(f"r{i:03}", block_table=[i, 1000 + i]) for i in range(200)])
    assert (batch.stats["transfers"], batch.stats["kernels"]) == (1, 1)
    wanted = [[i, 1000 + i, *[-1] * 6] for i in range(200)]
    assert backend.read(batch["block_tables"]).tolist() == wanted
    assert backend.read(batch["mtp.block_tables"]).tolist() == wanted


def test_c45_a_result_is_never_from_before_its_copy() -> None:  # L6
    backend = simulated(45)
    batch = sl.SlotBatch(LAYOUT, backend)
    sl.insert_tasks(batch, [sl.PrefillTask(sl.Request("a", [3, 4]), 0, 2, [1])])
    step = sl.prepare_step(batch)
    tokens = np.full((200, 3), -1)
    tokens[0, 0] = 50
    sl.commit_step(batch, step, tokens, np.ones(200, np.int64))
    logprobs = tensor(backend, (200, 2), "float32", 77)
    backend.engine.write(logprobs, rows=0, source=[-0.5, -1.5])
    with assert_no_sync(batch, device_to_host=True):
        fetch = batch.fetch(step, extra={"logprobs": logprobs})
        backend.engine.write(logprobs, source=77)  # it may be written again at once
    assert not fetch.is_done
    (out,) = fetch.result()
    assert (out.tokens, out.extra["logprobs"].tolist()) == ([50], [-0.5, -1.5])


def test_w5_i6_across_streams_the_returned_event_is_enough() -> None:
    for seed in range(30):
        backend = simulated(seed)
        batch = sl.SlotBatch(LAYOUT, backend)
        side, main = backend.new_stream(), backend.new_stream()
        before = backend.engine.read(batch["seq_lens_this_time"], stream=side)
        receipt = sl.insert_tasks(batch, [sl.PrefillTask(sl.Request("a", [3, 4]), 0, 2, [1])], stream=side)
        receipt.event.wait(main)
        after = backend.engine.read(batch["seq_lens_this_time"], stream=main)
        assert (before.array()[0], after.array()[0]) == (0, 2)


def test_w5_without_the_event_it_is_a_race() -> None:
    backend = simulated(1)
    batch = sl.SlotBatch(LAYOUT, backend)
    side, main = backend.new_stream(), backend.new_stream()
    sl.insert_tasks(batch, [sl.PrefillTask(sl.Request("a", [3, 4]), 0, 2, [1])], stream=side)
    with pytest.raises(sl.SlotlineError, match=r"race on field 'seq_lens_this_time', row 0"):
        backend.engine.read(batch["seq_lens_this_time"], stream=main)


def test_w10_threads_write_disjoint_rows_and_take_results() -> None:
    backend = simulated(10, staging_bytes=4096)
    target = tensor(backend, (8, 64))
    backend.synchronize()
    failures: list[BaseException] = []

    def work(row: int) -> None:
        try:
            for i in range(50):
                sl.async_set_value(target[row], i * 8 + row)
                if i % 10 == 0:
                    assert backend.download(target[row]).array().tolist() == [i * 8 + row] * 64
        except BaseException as error:  # noqa: BLE001  (shown below, in the thread of the test)
            failures.append(error)

    threads = [threading.Thread(target=work, args=(row,)) for row in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    assert backend.read(target).tolist() == [[49 * 8 + row] * 64 for row in range(8)]
    assert backend.retained == 0


def test_w1_a_destination_with_several_cells_in_one_place_is_refused() -> None:
    backend = simulated(1)
    target = tensor(backend, (4,))
    allocation = target._allocation
    twice = type(target)(target.machine, allocation, np.lib.stride_tricks.as_strided(target._array, (2, 4), (0, 8)))
    with pytest.raises(ValueError, match="several cells in one place"):
        sl.async_set_value(twice, 1)


def test_l6_results_that_nobody_takes_give_their_memory_back() -> None:
    backend = simulated(5)
    target = tensor(backend, (1000,))
    for _ in range(200):
        backend.download(target)
        backend.synchronize()
    assert len(backend.transfers.landing._all) <= 2
    assert backend.download(target).array().tolist() == [0] * 1000


def test_closed_once_or_twice_everything_is_given_back_and_late_results_say_so() -> None:
    backend = simulated(6)
    target = tensor(backend, (1000,))
    pending = backend.download(target)
    backend.close()
    backend.close()
    with pytest.raises(sl.DeviceError, match="closed before this result was taken"):
        pending.array()
    del target, pending
    assert len(backend.machine.memory) == 0


def test_a_backend_that_is_dropped_gives_everything_back() -> None:
    backend = simulated(7)
    machine = backend.machine
    batch = sl.SlotBatch(LAYOUT, backend)
    sl.insert_tasks(batch, [sl.PrefillTask(sl.Request("a", [3, 4]), 0, 2, [1])])
    del batch, backend  # the insertion is still queued
    gc.collect()
    assert (machine.schedule.pending, len(machine.memory)) == (0, 0)
