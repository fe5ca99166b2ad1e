"""What engines do while they are recorded: steps, callbacks, threads, failures, wrong devices, memory (rule R)."""

from __future__ import annotations

import gc
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from frameworks import backend
from recordings import (
    CONFIG,
    LAYOUT,
    OWN,
    PROMPT,
    both,
    plain,
    play,
    prefill,
    written,
)
from simulated import simulated

import slotline as sl
from slotline.core.playback import Player, verify
from slotline.core.recording_file import Recording
from slotline.testing import strategies as some

# -- steps


def test_r_steps_of_before_the_recording_and_steps_that_are_given_up(tmp_path: Path) -> None:
    batch = plain()
    sl.insert_tasks(batch, [prefill(sl.Request("a", PROMPT))])
    early, other = sl.prepare_step(batch), batch.ticket()
    batch.reset()
    with sl.record(batch, tmp_path / "run.rec"):
        sl.insert_tasks(batch, [prefill(sl.Request("b", PROMPT))])
        sl.commit_step(batch, early, np.full((3, 1), 9), np.ones(3, np.int64))
        assert [out.stale for out in batch.fetch(early).result()] == [True]
        other.discard()
        sl.prepare_step(batch, num_tokens=5000).discard()
        ticket = batch.ticket(["b"])
        sl.insert_tasks(batch, [sl.AbortTask("b"), prefill(sl.Request("b", PROMPT), slot=1)])
        sl.commit_step(batch, ticket, np.full((3, 1), 9), np.ones(3, np.int64))
        assert [out.stale for out in batch.fetch(ticket).result()] == [True]
    both(tmp_path / "run.rec")


def test_r_sampled_into_the_buffers_that_a_commit_writes(tmp_path: Path) -> None:
    """The recording holds what was given, not what the commit left of it."""
    batch = plain(config=CONFIG)
    with sl.record(batch, tmp_path / "run.rec", redact=False):
        sampling = sl.SamplingParams(max_dec_len=2)
        sl.insert_tasks(batch, [prefill(sl.Request("a", PROMPT, sampling=sampling))])
        for count in (1, 3):
            step = sl.prepare_step(batch)
            batch["accept_tokens"][:] = 77
            batch["accept_num"][:] = count
            sl.commit_step(batch, step, batch["accept_tokens"], batch["accept_num"])
            sl.commit_drafts(batch, step, np.full((4, 2), 5))
            batch.fetch(step).result()
    entries = [e.operation for e in Recording(tmp_path / "run.rec")]
    counts = [np.frombuffer(o.counts, "<i8")[0] for o in entries if hasattr(o, "counts")]
    assert counts == [1, 3]


def test_r_tensors_of_each_framework(cpu: sl.Backend, tensor: Any, tmp_path: Path) -> None:
    batch = sl.SlotBatch(LAYOUT, cpu)
    with sl.record(batch, tmp_path / "run.rec"):
        sl.insert_tasks(batch, [prefill(sl.Request("a", PROMPT))])
        for count in (1, 2):
            step = sl.prepare_step(batch)
            sl.commit_step(batch, step, tensor(np.full((4, 3), 77), "int64"), tensor([count] * 4, "int32"))
            sl.commit_drafts(batch, step, tensor(np.full((4, 2), 5), "int64"))
            batch.fetch(step, extra={"own": batch["step_idx"]}).result()
    both(tmp_path / "run.rec")
    assert play(tmp_path / "run.rec", cpu) == 9


def test_r_noise_beside_the_accepted_tokens_is_not_recorded(tmp_path: Path) -> None:
    """It may be text of other requests, or no token id at all."""
    batch = plain(config=CONFIG)
    with sl.record(batch, tmp_path / "run.rec", redact=False):
        sl.insert_tasks(batch, [prefill(sl.Request("a", PROMPT))])
        step = sl.prepare_step(batch)
        noise = np.full((4, 3), 2**40 + 99)
        noise[0, 0] = 27_001
        sl.commit_step(batch, step, noise, np.array([1, 2**33, 7, -7]))
        drafts = np.array([[27_003, -1], [27_005, 27_005], [27_005, 27_005], [27_005, 27_005]])
        sl.commit_drafts(batch, step, drafts)
    both(tmp_path / "run.rec")
    raw = (tmp_path / "run.rec").read_bytes()
    assert np.array([27_001], "<i8").tobytes() in raw
    assert all(np.array([n], "<i8").tobytes() not in raw for n in (2**40 + 99, 2**33, 27_005))


def test_r_requests_that_come_back_and_steps_that_are_over_are_not_kept(tmp_path: Path) -> None:
    """Neither by who records nor by who plays; a request that comes back is told again."""
    batch, request = plain(), sl.Request("a", PROMPT)
    with sl.record(batch, tmp_path / "run.rec") as recorder:
        for number in range(40):
            sl.insert_tasks(batch, [prefill(request), prefill(sl.Request(f"r{number}", PROMPT), [4, 5])])
            step = sl.prepare_step(batch)
            sl.commit_step(batch, step, np.full((3, 1), 9), np.ones(3, np.int64))
            batch.fetch(step).result()
            sl.insert_tasks(batch, [sl.PreemptTask("a"), sl.FinishTask(f"r{number}")])
            gc.collect()  # a step and its requests name each other
        assert len(recorder._requests) == 0
    player = Player(Recording(tmp_path / "run.rec"), backend("numpy"))
    for played in player.play():
        assert played.digest == played.expected
        assert len(player._requests) <= 2
        assert len(player._steps) <= 2


def test_r_tasks_are_an_iterator_and_some_are_refused(tmp_path: Path) -> None:
    batch = plain()
    with sl.record(batch, tmp_path / "run.rec"):
        bad = sl.PrefillTask(sl.Request("b", [1, 99_999]), 0, 2, [5])
        tasks = (
            t for t in (bad, prefill(sl.Request("a", PROMPT)), sl.DecodeTask("a", new_blocks=[9]), sl.AbortTask("x"))
        )
        receipt = sl.insert_tasks(batch, tasks, on_invalid="skip")
        assert len(receipt.refused) == 2
        # Of one request: a release that is refused, a prefill and a decode task that are not.
        some_good: list[Any] = [sl.AbortTask("c"), prefill(sl.Request("c", PROMPT)), sl.DecodeTask("c", new_blocks=[7])]
        assert len(sl.insert_tasks(batch, some_good, on_invalid="skip").refused) == 1
        with pytest.raises(sl.TaskError):
            sl.insert_tasks(batch, [bad])
        sl.insert_tasks(batch, [])
    both(tmp_path / "run.rec")


# -- callbacks, threads and failures


def test_r_callbacks_that_do_more_and_callbacks_that_raise(tmp_path: Path) -> None:
    batch = plain()

    def moved(request_id: str, src: int, dst: int) -> None:
        if dst == 2:
            batch.set_num_blocks(39)
            raise KeyError("the engine's own")

    batch.on_move(moved)
    batch.on_release(lambda request_id, slot: batch.set_num_blocks(38))
    with sl.record(batch, tmp_path / "run.rec"):
        sl.insert_tasks(batch, [prefill(sl.Request("a", PROMPT))])
        with pytest.raises(KeyError):
            batch.swap(0, 2)
        batch.condense()
        batch.reset()
    both(tmp_path / "run.rec")
    kinds = [type(e.operation).__name__ for e in Recording(tmp_path / "run.rec")]
    assert kinds == ["Insert", "Swap", "NumBlocks", "Condense", "Reset", "NumBlocks"]


class Full:
    """A file on a disk that is full after some bytes."""

    def __init__(self, file: Any, room: int) -> None:
        self.file, self.room = file, room

    def write(self, data: bytes) -> int:
        self.room -= len(data)
        if self.room < 0:
            raise OSError(28, "No space left on device")
        return int(self.file.write(data))


def test_r_a_full_disk_stops_the_recording_and_no_operation(tmp_path: Path) -> None:
    batch = plain()
    recording = sl.record(batch, tmp_path / "run.rec")
    recorder = recording.__enter__()
    sl.insert_tasks(batch, [prefill(sl.Request("a", PROMPT))])
    recorder._file = Full(recorder._file, 100)  # type: ignore[assignment]
    receipt = sl.insert_tasks(batch, [prefill(sl.Request("b", PROMPT), [4, 5])])
    assert receipt.slots == {"b": 1}
    batch.release(["a"])
    with pytest.raises(OSError, match="No space left") as caught:
        recording.__exit__(None, None, None)
    assert "stopped behind record 1" in caught.value.__notes__[0]
    assert batch.recorder is None
    with pytest.raises(sl.PacketError, match="cut off behind record 1"):
        list(Recording(tmp_path / "run.rec"))
    with sl.record(plain(), tmp_path / "again.rec"):
        pass


def test_r_a_block_that_raises_leaves_what_was_recorded(tmp_path: Path) -> None:
    batch = plain()

    def failing() -> None:
        with sl.record(batch, tmp_path / "run.rec"):
            sl.insert_tasks(batch, [prefill(sl.Request("a", PROMPT))])
            raise RuntimeError

    with pytest.raises(RuntimeError):
        failing()
    assert batch.recorder is None
    entries = iter(Recording(tmp_path / "run.rec"))
    next(entries)
    with pytest.raises(sl.PacketError, match="cut off behind record 1"):
        next(entries)
    batch.reset()
    with sl.record(batch, tmp_path / "run.rec"):  # the same batch, the same path
        sl.insert_tasks(batch, [prefill(sl.Request("a", PROMPT))])
    both(tmp_path / "run.rec")


def test_r_two_batches_in_two_threads_and_results_taken_in_a_third(tmp_path: Path) -> None:
    def run(name: str) -> None:
        batch = plain()
        with sl.record(batch, tmp_path / name):
            for number in range(15):
                sl.insert_tasks(batch, [prefill(sl.Request(f"r{number}", PROMPT))])
                step = sl.prepare_step(batch)
                sl.commit_step(batch, step, np.full((3, 1), 9), np.ones(3, np.int64))
                taker = threading.Thread(target=batch.fetch(step).result)
                taker.start()
                taker.join()
                batch.release([f"r{number}"])

    threads = [threading.Thread(target=run, args=(name,)) for name in ("one.rec", "two.rec")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert play(tmp_path / "one.rec") == play(tmp_path / "two.rec") == 75


# -- other streams, wrong devices, memory


def test_r_on_a_stream_of_ones_own(tmp_path: Path) -> None:
    device = simulated(5)
    batch = sl.SlotBatch(some.full_layout(OWN), device)
    stream = device.new_stream()
    with sl.record(batch, tmp_path / "run.rec", redact=False):
        for number in range(3):
            request = sl.Request(f"r{number}", PROMPT)
            sl.insert_tasks(batch, [prefill(request, [number, 30 + number])], stream=stream)
    both(tmp_path / "run.rec")


def test_r_a_device_that_decides_otherwise_is_not_the_recordings_fault(tmp_path: Path) -> None:
    """Its buffers are right, what its steps tell the host is not."""

    class Wrong(type(backend("numpy"))):  # type: ignore[misc]
        def _download(self, *arguments: Any) -> Any:
            found = super()._download(*arguments)
            found.array()[:, 2] = 3  # of each row: it has ended
            return found

    path = written(tmp_path / "run.rec")
    found = verify(path, Wrong(framework="numpy"), backend("numpy"))
    assert found.record is not None
    assert found.refused is not None
    assert f"record {found.record} " in found.refused


def test_r_one_huge_record_is_read_in_less_than_twice_its_size(tmp_path: Path) -> None:
    config = sl.BatchConfig(max_num_seqs=8, max_model_len=300_000, vocab_size=30_000, max_chunk_tokens=8,
                            block_size=1000, num_blocks=9999)  # fmt: skip
    batch = sl.SlotBatch(some.full_layout(config), backend("numpy"))
    tasks = [sl.PrefillTask(sl.Request(f"r{i}", np.full(299_000, i)), 0, 8, [i]) for i in range(8)]
    with sl.record(batch, tmp_path / "run.rec"):
        sl.insert_tasks(batch, tasks)
    size = (tmp_path / "run.rec").stat().st_size
    assert size > 8 * 299_000 * 4
    tracemalloc.start()
    assert len([e.digest for e in Recording(tmp_path / "run.rec")]) == 1
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 * size
    assert play(tmp_path / "run.rec") == 1


def test_r_a_recording_of_many_small_requests_is_light_enough_to_be_read(tmp_path: Path) -> None:
    """What is refused as too heavy for its bytes is nothing that slotline writes."""
    config = sl.BatchConfig(
        max_num_seqs=6000, max_model_len=4, vocab_size=9, max_chunk_tokens=2, block_size=2, num_blocks=9999
    )
    batch = sl.SlotBatch(some.full_layout(config), backend("numpy"))
    with sl.record(batch, tmp_path / "run.rec"):
        sl.insert_tasks(batch, [sl.PrefillTask(sl.Request(str(i), [i % 9]), 0, 1, [i]) for i in range(6000)])
        sl.insert_tasks(batch, [sl.DecodeTask(str(i), new_blocks=[]) for i in range(6000) for _ in range(2)])
        batch.release([str(i) for i in range(6000)])
    assert play(tmp_path / "run.rec") == 3


def test_r_a_skipped_call_without_prefills_is_recorded(tmp_path: Path) -> None:
    """Nothing of it may be looked for among prefills that are not there."""
    batch = sl.SlotBatch(LAYOUT, backend("numpy"))
    with sl.record(batch, tmp_path / "x.rec"):
        sl.insert_tasks(batch, [sl.DecodeTask("nobody", new_blocks=[1]), sl.AbortTask("gone")], on_invalid="skip")
    found = verify(tmp_path / "x.rec", backend("numpy"), backend("numpy"))
    assert (found.records, found.record) == (1, None)
