"""Recordings: what was done to a batch plays on another backend to the same digests (rule R)."""

from __future__ import annotations

import tempfile
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from frameworks import backend, fewer
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize
from recordings import LAYOUT, PROMPT, play, written
from simulated import simulated

import slotline as sl
from slotline.core import derived, record, recorded, recorded_requests, recording
from slotline.core.playback import Player, verify
from slotline.core.recording_file import Recording
from slotline.testing import strategies as some
from slotline.testing.conformance.operations import Operations
from slotline.testing.reference import ReferenceBatch
from slotline.testing.strategies_invalid import mixed_calls


class Recorded(Operations):
    """Every sequence of operations, recorded while it is held against the reference; played when it is over."""

    @initialize(data=st.data())
    def make(self, data: st.DataObject) -> None:
        self._begin(data)
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name, "run.rec")
        self.redacted = data.draw(st.booleans())
        self.context = sl.record(self.batch, self.path, redact=self.redacted)
        self.context.__enter__()

    def _backend(self, data: Any) -> sl.Backend:
        return backend("numpy")

    def teardown(self) -> None:
        if not hasattr(self, "context"):
            return
        with self.folder:
            self.context.__exit__(None, None, None)
            play(self.path, backend("numpy"))
            if not self.redacted:
                last = [entry.digest for entry in Recording(self.path)][-1:]
                assert not last or last == [self.batch.digest()]


TestRecorded: Any = Recorded.TestCase
TestRecorded.settings = settings(fewer(2), stateful_step_count=25)


@settings(fewer(4))
@given(data=st.data(), seed=st.integers(0, 999))
def test_r_a_recording_plays_on_another_backend(data: st.DataObject, seed: int) -> None:
    config = data.draw(some.configs())
    layout = data.draw(some.layouts(config))
    batch, ref = sl.SlotBatch(layout, backend("numpy")), ReferenceBatch(layout)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "run.rec")
        with sl.record(batch, path) as recorder:
            for _ in range(4):
                tasks = data.draw(mixed_calls(ref))
                sl.insert_tasks(batch, tasks, on_invalid="skip")
                ref.insert_skip(tasks)
                step, ticket = sl.prepare_step(batch), ref.ticket()
                tokens, counts = data.draw(some.accepted(ref, ticket))
                sl.commit_step(batch, step, tokens, counts)
                ref.commit(ticket, tokens, counts)
        assert play(path, simulated(seed)) == recorder.records == 12


def test_r_redacted_no_token_id_of_the_user_is_in_the_file_and_stops_stop_as_before(tmp_path: Path) -> None:
    path = written(tmp_path / "run.rec")
    raw = path.read_bytes()
    for ids in ([25_252], [26_262], *([t] for t in PROMPT)):
        for dtype in ("<i4", "<i8"):
            assert np.array(ids, dtype).tobytes() not in raw
    again = written(tmp_path / "again.rec").read_bytes()
    assert raw != again  # the key is new each time, and kept nowhere
    player = Player(Recording(path), backend("numpy"))
    reasons = []
    for played in player.play():
        assert played.digest == played.expected
        reasons.append(int(player.batch.host_array("finish_reason").max()))
    assert int(sl.FinishReason.STOP) in reasons


def test_r_not_redacted_the_digests_are_the_batchs_own(tmp_path: Path) -> None:
    path = written(tmp_path / "run.rec", redact=False)
    assert np.array(PROMPT, "<i4").tobytes() in path.read_bytes()
    fresh = sl.SlotBatch(LAYOUT, backend("numpy"))
    assert [e.digest for e in Recording(path)][-1] == derived.digest(fresh)


def test_r_the_first_difference_is_named(tmp_path: Path) -> None:
    class Wrong(type(backend("numpy"))):  # type: ignore[misc]
        def _apply(self, packet: Any, buffers: Any, stream: Any) -> Any:
            done = super()._apply(packet, buffers, stream)
            if packet.operation == "insert":
                self.made["temperature"][0] = 9
            return done

        def allocate(self, layout: Any, names: Any) -> Any:
            self.made = super().allocate(layout, names)
            return self.made

    found = verify(written(tmp_path / "run.rec"), Wrong(framework="numpy"), backend("numpy"))
    assert (found.record, found.kind) == (1, "insert")
    assert found.difference == ("temperature", 0, 0, 0.5, 9.0)


def test_r_a_batch_that_holds_requests_or_is_recorded_already_is_refused(tmp_path: Path) -> None:
    batch = sl.SlotBatch(LAYOUT, backend("numpy"))
    with sl.record(batch, tmp_path / "a"), pytest.raises(sl.PacketError, match="being recorded already"):
        sl.record(batch, tmp_path / "b").__enter__()
    sl.insert_tasks(batch, [sl.PrefillTask(sl.Request("a", PROMPT), 0, 6, [1, 2])])
    with pytest.raises(sl.PacketError, match="1 slots are taken"):
        sl.record(batch, tmp_path / "c").__enter__()
    assert not (tmp_path / "c").exists()


def test_r_after_a_batch_with_a_history(tmp_path: Path) -> None:
    """Epochs go on counting, so a recording says where they begin."""
    batch = sl.SlotBatch(LAYOUT, backend("numpy"))
    sl.insert_tasks(batch, [sl.PrefillTask(sl.Request("a", PROMPT), 0, 6, [1, 2])])
    batch.reset()
    with sl.record(batch, tmp_path / "run.rec"):
        sl.insert_tasks(batch, [sl.PrefillTask(sl.Request("a", PROMPT), 0, 6, [1, 2])])
    assert play(tmp_path / "run.rec", backend("numpy")) == 1


def check_refused(path: Path, size: int) -> None:
    """A ``PacketError``, in no more memory than twice the file and the buffers."""
    tracemalloc.start()
    try:
        with pytest.raises(sl.PacketError):
            for _ in Recording(path):
                pass
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= 2 * size + (1 << 18), f"{peak} bytes for a file of {size}"


def test_r_cut_anywhere(tmp_path: Path) -> None:
    raw = written(tmp_path / "run.rec").read_bytes()
    cut = tmp_path / "cut.rec"
    for size in [*range(0, len(raw), 23), len(raw) - 1]:
        cut.write_bytes(raw[:size])
        check_refused(cut, len(raw))


@settings(fewer(1))
@given(data=st.data())
def test_r_flipped_anywhere(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        raw = bytearray(written(Path(folder, "run.rec")).read_bytes())
        for _ in range(data.draw(st.integers(1, 3))):
            raw[data.draw(st.integers(0, len(raw) - 1))] ^= data.draw(st.integers(1, 255))
        path = Path(folder, "flipped.rec")
        path.write_bytes(raw)
        try:
            check_refused(path, len(raw))
        except BaseException:
            if bytes(raw) != Path(folder, "run.rec").read_bytes():  # two flips of one bit make none
                raise


def insertion(*tasks: recorded_requests.TaskRecord) -> recorded.Insert:
    return recorded.Insert(requests=(), tasks=tasks, packet_bytes=0, segments=0)


HOSTILE: list[tuple[recorded.Operation, str]] = [
    (recorded.Prepare(step=2, packed=True, rows=(), num_tokens=4, gone=()), "allowed: 1, the next"),
    (recorded.Prepare(step=1, packed=True, rows=(), num_tokens=4, gone=(1,)), "step 1 is gone"),
    (recorded.Prepare(step=1, packed=True, rows=("nobody",), num_tokens=4, gone=()), "nobody"),
    (recorded.Commit(step=7, tokens=b"", counts=b""), "bytes, allowed"),
    (recorded.Commit(step=7, tokens=bytes(96), counts=bytes(32)), "never prepared, or gone"),
    (recorded.Drafts(step=1, tokens=bytes(5)), "not known"),
    (recorded.Swap(i=-1, j=2**40), "slot"),
    (recorded.NumBlocks(num_blocks=0), "num_blocks"),
    (insertion(recorded_requests.TaskRecord(kind="prefill", request=5)), "no record has told"),
    (insertion(recorded_requests.TaskRecord(kind="decode", request_id="a", blocks=b"abc")), "multiple of 4"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("operation", "words"), HOSTILE, ids=lambda v: type(v).__name__ if not isinstance(v, str) else v
)
def test_r_records_that_do_not_fit_are_named(operation: Any, words: str, tmp_path: Path) -> None:
    """Whole frames with lying content: numbers and lengths are checked against the layout before a byte is written."""
    whole = written(tmp_path / "run.rec").read_bytes()
    size = record.HEADER.unpack_from(whole)[3] + record.HEADER.size
    entry = recorded.Entry(operation=operation, digest="0" * 64)
    end = record.encode(recorded.End(records=1), recording.END)
    path = tmp_path / "hostile.rec"
    path.write_bytes(whole[:size] + record.encode(entry, recording.ENTRY) + end)
    player = Player(Recording(path), backend("numpy"))
    before = player.batch.digest()
    with pytest.raises(sl.PacketError, match=r"record 1 \(") as caught:
        list(player.play())
    assert words in str(caught.value)
    assert player.batch.digest() == before


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"config": {}}, "max_num_seqs"),
        ({"fingerprint": "0" * 32}, "fingerprint|layout is"),
        ({"fields": ()}, "layout is"),
        ({"next_epoch": 0}, "next_epoch"),
        ({"num_blocks": -1}, "num_blocks"),
    ],
)
def test_r_a_head_that_contradicts_itself(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    path = written(tmp_path / "run.rec")
    head = Recording(path).head
    values = {n: getattr(head, n) for n in head.__struct_fields__} | change
    path.write_bytes(record.encode(recorded.Head(**values), recording.HEAD))
    with pytest.raises(sl.PacketError, match=words):
        Recording(path)
