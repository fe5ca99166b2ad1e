"""What engines do while they are recorded: own fields, adopted tensors, roles, callbacks, failures (rule R)."""

from __future__ import annotations

import gc
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from frameworks import backend
from recordings import CONFIG, LAYOUT, PROMPT, play, prefill, written
from simulated import simulated

import slotline as sl
from slotline.core.playback import Player, verify
from slotline.core.recording_file import Recording
from slotline.testing import strategies as some

S, PAD = "max_num_seqs", 7
OWN = sl.BatchConfig(
    max_num_seqs=3,
    max_model_len=32,
    vocab_size=30_000,
    max_chunk_tokens=16,
    block_size=4,
    num_blocks=40,
    pad_token_id=PAD,
)


def plain(*fields: sl.Field, config: sl.BatchConfig = OWN) -> sl.SlotBatch:
    return sl.SlotBatch(some.full_layout(config).extend(*fields), backend("numpy"))


def both(path: Path) -> None:
    """It plays on NumPy and on a device where everything is late."""
    assert play(path) == play(path, simulated(3)) > 0


def field(name: str, *dims: int | str, dtype: str = "int64", **options: Any) -> sl.Field:
    return sl.Field(name, (S, *dims), dtype, options.pop("fill", 0), **options)


# -- own fields


def test_r_token_ids_of_ones_own_whose_fill_is_no_pad_token(tmp_path: Path) -> None:
    """0 is the default fill, and a token id like any other; constants of rules too."""
    batch = plain(
        field("own", 4, token_ids=True, on={"prefill": sl.extra("own")}),
        field("mark", token_ids=True, fill=5, on={"prefill": 12}),
        field("by_axis", dtype="int32", token_ids=True, residency="mirrored", on={"prefill": sl.extra("own_first")}),
    )
    with sl.record(batch, tmp_path / "run.rec"):
        for own in ([11_113, 22_225], np.array([3.0, 28_001.0]), np.array([True, False]), 29_999, [[9, 8, 7, 6]][0]):
            sl.insert_tasks(batch, [prefill(sl.Request("a", PROMPT, extra={"own": own, "own_first": 11_113}))])
            batch.release(["a"])
    both(tmp_path / "run.rec")
    raw = (tmp_path / "run.rec").read_bytes()
    assert all(np.array([t], d).tobytes() not in raw for t in (11_113, 28_001, 29_999) for d in ("<i4", "<i8", "<f8"))


def test_r_a_field_that_takes_a_column_of_token_ids_is_hidden_though_it_does_not_say_so(tmp_path: Path) -> None:
    batch = plain(
        field("copy", "max_model_len", fill=-1, on={"prefill": sl.column("history")}),
        field("as_float", "max_model_len", dtype="float32", fill=-1.0, on={"prefill": sl.column("history")}),
        field("host_copy", "max_model_len", residency="host", fill=-1, on={"prefill": sl.column("history")}),
    )
    with sl.record(batch, tmp_path / "run.rec"):
        sl.insert_tasks(batch, [prefill(sl.Request("a", PROMPT))])
    both(tmp_path / "run.rec")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ([field("ids", dtype="int8", token_ids=True)], "'ids' is int8, which cannot hold every token id below 30000"),
        ([field("ids", dtype="float16", token_ids=True)], "'ids' is float16"),
        ([field("ids", dtype="bool", fill=False, token_ids=True)], "'ids' is bool"),
        ([field("ids", token_ids=True, on={"prefill": sl.column("prompt_len")})], "column\\('prompt_len'\\)"),
        ([field("ids", token_ids=True, on={"prefill": sl.extra("x")}), field("other", on={"prefill": sl.extra("x")})],
         "'other' takes extra\\('x'\\)"),
    ],
)  # fmt: skip
def test_r_what_cannot_be_redacted_is_refused_before_the_file_is_touched(
    fields: list[sl.Field], words: str, tmp_path: Path
) -> None:
    (tmp_path / "run.rec").write_bytes(b"mine")
    with pytest.raises(sl.PacketError, match=words), sl.record(plain(*fields), tmp_path / "run.rec"):
        pass
    assert (tmp_path / "run.rec").read_bytes() == b"mine"
    with sl.record(plain(*fields), tmp_path / "run.rec", redact=False):
        pass


def test_r_extras_of_every_kind(tmp_path: Path) -> None:
    batch = plain(
        field("score", 2, dtype="float32", fill=0.0, on={"prefill": sl.extra("score")}),
        field("wide", dtype="float64", fill=0.0, on={"prefill": sl.extra("score_one")}),
        field("mask", 2, 3, dtype="bool", fill=False, residency="host", on={"prefill": sl.extra("mask")}),
        field("big", dtype="uint64", residency="mirrored", on={"prefill": sl.extra("big")}),
    )
    given = {"score": [float("nan"), float("-inf")], "mask": np.ones((2, 3), bool)[:, ::-1], "big": 2**64 - 1,
             "score_one": np.longdouble(0.25)}  # fmt: skip
    unused = {"text": "what the user said", "callback": print, "ragged": [[1], [2, 3]]}
    with sl.record(batch, tmp_path / "run.rec"):
        sl.insert_tasks(batch, [prefill(sl.Request("a", PROMPT, extra=given | unused))])
        sl.insert_tasks(batch, [prefill(sl.Request("b", PROMPT, extra={"mask": 1}), [3, 4])])
    both(tmp_path / "run.rec")
    assert b"what the user said" not in (tmp_path / "run.rec").read_bytes()


def test_r_only_some_fields_are_inserted_and_tensors_are_the_engines(tmp_path: Path) -> None:
    layout = some.full_layout(OWN)
    tensors = {name: np.empty(layout.shape(name), layout[name].dtype) for name in ("token_ids_all", "seq_lens_encoder")}
    batch = sl.SlotBatch(layout, backend("numpy"), tensors=tensors, only={"token_ids_all", "prompt_lens"})
    with sl.record(batch, tmp_path / "run.rec"):
        sl.insert_tasks(batch, [prefill(sl.Request("a", PROMPT))])
        batch.swap(0, 2)
        batch.release(["a"])
    both(tmp_path / "run.rec")


def test_r_hidden_states_that_the_layout_does_not_keep_are_left_out(tmp_path: Path) -> None:
    batch = plain()
    with sl.record(batch, tmp_path / "run.rec"):
        sl.insert_tasks(batch, [prefill(sl.Request("a", PROMPT, hidden_state=object()))])
    both(tmp_path / "run.rec")


# -- roles and methods


@pytest.mark.parametrize("role", ["mixed", "prefill", "decode"])
@pytest.mark.parametrize("method", ["none", "ngram", "mtp"])
def test_r_roles_and_methods(role: str, method: str, tmp_path: Path) -> None:
    hybrid: dict[str, Any] = {"hybrid": "ngram", "hidden_size": 2, "hidden_dtype": "float16"} if method == "mtp" else {}
    config = sl.BatchConfig(
        max_num_seqs=3, max_model_len=32, vocab_size=30_000, max_chunk_tokens=16, block_size=4, num_blocks=40,
        eos_token_ids=(2,), spec_method=method, num_draft_tokens=2, role=role, **hybrid,
    )  # fmt: skip
    batch = plain(config=config)
    drafts = [21_001, 21_002, *range(21_003, 21_030)] if role == "decode" else []
    state = np.array([0.1, 2.5]) if hybrid else None
    start = -(2**70) if role == "decode" else 0  # which is ignored there
    width = config.num_drafts + 1
    with sl.record(batch, tmp_path / "run.rec"):
        request = sl.Request("a", PROMPT, draft_token_ids=drafts, hidden_state=state)
        ends = sl.Request("b", PROMPT, draft_token_ids=[2, 4])  # the first token ends it (D4)
        for number, told in enumerate((request, ends)):
            task = sl.PrefillTask(told, start, 6, [3 * number + i for i in range(3)])
            sl.insert_tasks(batch, [task])
        for _ in range(3):
            step = sl.prepare_step(batch)
            sl.commit_step(batch, step, np.full((3, width), 23_001), np.ones(3, np.int64))
            if width > 1:
                sl.commit_drafts(batch, step, np.full((3, width - 1), 24_001))
            batch.fetch(step).result()
    both(tmp_path / "run.rec")
    raw = (tmp_path / "run.rec").read_bytes()
    assert all(np.array([t], d).tobytes() not in raw for t in (21_001, 23_001, 24_001) for d in ("<i4", "<i8"))


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


def test_r_redacted_two_tokens_stay_two_tokens_and_what_no_user_said_stays() -> None:
    from slotline.core.redaction import Permutation

    hidden = Permutation(LAYOUT)
    ids = np.arange(-5, 30_005)
    out = hidden.of(ids)
    assert sorted(out.tolist()) == ids.tolist()
    kept = set(ids[out == ids].tolist())
    assert {0, 2, *range(-5, 0), *range(30_000, 30_005)} <= kept
    assert len(kept) < 40  # a random permutation has about one fixed point
