"""What holds while work is queued: values at call time, order, staging memory, events (rules W4 to W6, I6, L6, B9)."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import slotline as sl
from slotline.testing.conformance.base import Kit, NewBackend, examples, read, tensor
from slotline.testing.counters import assert_no_sync
from slotline.testing.rules import rule


class Handle:
    """A stream handle as foreign libraries have it."""

    def __init__(self, name: str, handle: Any) -> None:
        setattr(self, name, handle)


class Number:
    def __init__(self, handle: int) -> None:
        self.handle = handle

    def __int__(self) -> int:
        return self.handle


class Streams(Kit):
    """Every test also runs on a device without streams, where the same must hold at once, unless it needs one."""

    @rule("W4")
    @pytest.mark.parametrize("kind", ["array", "fortran", "strided", "list", "scalar"])
    def test_c06_c09_the_value_at_call_time_lands(self, backend: Any, kind: str) -> None:
        first, second = tensor(backend, np.zeros(3)), tensor(backend, np.zeros(3))
        backend.synchronize()
        base = np.zeros((3, 2), np.int64, order="F" if kind == "fortran" else "C")
        source = np.zeros(3, np.int64) if kind in ("array", "list", "scalar") else base[:, 0]

        def given() -> Any:
            return source.tolist() if kind == "list" else source[0] if kind == "scalar" else source

        self.queue_work(backend, 4)
        source[:] = [1, 2, 3]
        backend.async_set_value(first, given())
        source[:] = [4, 5, 6]
        backend.async_set_value(second, given())
        source[:] = 9
        wanted = ([1, 1, 1], [4, 4, 4]) if kind == "scalar" else ([1, 2, 3], [4, 5, 6])
        found = read(backend, first).tolist(), read(backend, second).tolist()
        assert found == wanted, "what landed is not what the source held when the call was made"

    @rule("W4")
    def test_c07_a_thousand_temporaries(self, backend: Any) -> None:
        target = tensor(backend, np.zeros((1000, 16)))
        backend.synchronize()
        self.queue_work(backend, 4)
        for row in range(1000):
            backend.async_set_value(target[row], np.full(16, row))
            np.full(16, -1)  # likely where the source was
        assert (read(backend, target) == np.arange(1000)[:, None]).all(), "a source was read after it had been freed"

    @rule("W4")
    def test_c08_many_scalars(self, new_backend: NewBackend) -> None:
        self._many_scalars(new_backend())

    @rule("W6")
    def test_c08_many_scalars_when_the_staging_memory_is_used_up(self, new_backend: NewBackend) -> None:
        self._many_scalars(new_backend(staging_bytes=4096))

    def _many_scalars(self, backend: Any) -> None:
        target = tensor(backend, np.zeros(5000))
        backend.synchronize()
        self.queue_work(backend, 4)
        for i in range(5000):
            backend.async_set_value(target[i : i + 1], i)
        found = read(backend, target)
        backend.close()
        lost = np.flatnonzero(found != np.arange(5000))
        assert not len(lost), f"{len(lost)} of 5000 writes are wrong, the first at {lost[:1]}: {found[lost[:1]]}"

    @rule("W5")
    def test_work_queued_before_a_write_sees_the_old_value(self, backend: Any) -> None:
        target = tensor(backend, np.zeros((64, 8)))
        backend.synchronize()
        self.queue_work(backend, 4)
        before = backend.download(target)
        backend.async_set_value(target, 1)
        between = backend.download(target)
        backend.async_set_value(target[8:], 2)
        after = backend.download(target)
        assert (before.array() == 0).all(), "a write overtook a reader that was queued before it"
        assert (between.array() == 1).all(), "a reader does not see the write queued before it"
        assert (after.array()[:8] == 1).all()
        assert (after.array()[8:] == 2).all()

    @rule("W5", needs="streams")
    def test_across_streams_the_returned_event_is_enough(self, backend: Any) -> None:
        side, main = backend.new_stream(), backend.new_stream()
        for value in range(1, 9):
            target, out = tensor(backend, np.zeros(1000)), tensor(backend, np.zeros(1000))
            backend.synchronize()
            self.queue_work(backend, 2, side)
            event = backend.async_set_value(target, value, stream=side)
            event.wait(main)
            done = backend.async_set_value(out, target, stream=main)
            done.sync()
            assert done.is_done, "an event that was waited for is not done"
            assert (read(backend, out) == value).all(), "Event.wait does not order the two streams"

    @rule("W5")
    @examples(0.5)
    @given(data=st.data())
    def test_writes_take_effect_in_program_order(self, backend: Any, data: st.DataObject) -> None:
        """Host and device sources in any order, everything queued before anything is looked at."""
        want, target = np.zeros((4, 6), np.int32), tensor(backend, np.zeros((4, 6)), "int32")
        seen = []
        for number in range(data.draw(st.integers(2, 8))):
            rows, to = data.draw(st.sampled_from([slice(0, 2), slice(1, 4), slice(2, 4)])), data.draw(st.integers(0, 3))
            if data.draw(st.booleans()):
                backend.async_set_value(target[rows, ::2], number)
                want[rows, ::2] = number
            else:
                start = data.draw(st.integers(0, 3))
                backend.async_set_value(target[to], target[start])
                want[to] = want[start].copy()
            seen.append((backend.download(target), want.copy()))
        for number, (download, expected) in enumerate(seen):
            assert download.array().tolist() == expected.tolist(), f"after write {number}"

    @rule("W6", needs="streams")
    def test_c04_a_write_waits_for_no_queued_work(self, backend: Any) -> None:
        if not backend.abilities.async_upload:
            pytest.skip(f"{type(backend).__name__}.abilities does not declare async_upload (B12)")
        target, wide = tensor(backend, np.zeros((6, 8))), np.arange(54).reshape(6, 9)

        def write() -> None:
            with assert_no_sync(backend):
                backend.async_set_value(target, wide[:, :8])
                backend.async_set_value(target[:, 2:5], wide[:, 1:4])
                backend.async_set_value(target[0, :1], 7)

        self.behind_work(backend, write, "async_set_value")
        expected = wide[:, :8].copy()
        expected[:, 2:5] = wide[:, 1:4]
        expected[0, 0] = 7
        assert read(backend, target).tolist() == expected.tolist()

    @rule("W6", needs="streams")
    def test_device_sources_wait_for_no_queued_work(self, backend: Any) -> None:
        target, source = tensor(backend, np.zeros((6, 8))), tensor(backend, np.arange(48).reshape(8, 6))
        self.behind_work(backend, lambda: backend.async_set_value(target, source[:6, :1]), "a write from the device")
        assert read(backend, target).tolist() == np.repeat(np.arange(0, 36, 6), 8).reshape(6, 8).tolist()

    @rule("W6")
    @examples(0.3)
    @given(size=st.integers(1, 3000), staging=st.sampled_from([256, 512, 1000, 4096]))
    def test_a_write_larger_than_the_ring_goes_in_parts(self, new_backend: NewBackend, size: int, staging: int) -> None:
        backend = new_backend(staging_bytes=staging)
        target = tensor(backend, np.zeros(size))
        backend.stats.clear()
        backend.async_set_value(target, np.arange(size))
        transfers, nbytes = backend.stats["transfers"], backend.stats["bytes"]
        found = read(backend, target)
        backend.close()
        assert np.array_equal(found, np.arange(size)), "a part was lost"
        if backend.abilities.streams and backend.abilities.async_upload:
            assert transfers == -(-nbytes // staging), "a write is split into ceil(bytes / staging_bytes) transfers"

    @rule("O")
    def test_transfers_and_their_bytes_are_counted(self, backend: Any) -> None:
        target = tensor(backend, np.zeros((10, 3)))
        backend.stats.clear()
        for _ in range(3):
            backend.async_set_value(target, np.ones((10, 3)))
        backend.async_set_value(target[0, :1], 4)
        assert (backend.stats["transfers"], backend.stats["bytes"]) == (4, 3 * 240 + 8)
        read(backend, target)
        assert backend.stats["device_to_host"] <= 1  # host memory needs no copy
        assert backend.stats["host_synchronisations"] >= (1 if backend.abilities.streams else 0), "a read waits"

    @rule("L6")
    def test_c45_a_download_is_never_from_before_its_copy(self, backend: Any) -> None:
        target = tensor(backend, np.full(1000, 77))
        backend.synchronize()
        for value in range(1, 6):
            self.queue_work(backend, 2)
            backend.async_set_value(target, value)
            download = backend.download(target)
            backend.async_set_value(target, 77)  # it may be written again at once
            assert (download.array() == value).all(), "the array was given out before the copy had landed"
            assert download.is_done

    @rule("B9")
    def test_an_event_is_done_only_when_all_before_it_is(self, backend: Any) -> None:
        target = tensor(backend, np.zeros(1000))
        backend.synchronize()
        self.queue_work(backend, 16)
        event = backend.async_set_value(target, 1)
        download = backend.download(target)
        if download.is_done:  # then its memory holds the copy, and may be looked at without waiting
            assert (download.array() == 1).all(), "an event said done before the work that it stands for"
        event.sync()
        assert event.is_done, "an event that was waited for says that it is not done"
        assert (download.array() == 1).all(), "an event said done before the work that it stands for"

    @rule("B9", needs="streams")
    def test_c67_stream_handles_in_every_form(self, backend: Any) -> None:
        stream = backend.new_stream()
        handle = backend.stream(stream)
        forms: list[Any] = [handle, np.int64(handle), Number(handle)]
        forms += [Handle(name, handle) for name in ("value", "cuda_stream", "ptr")]
        forms += [Handle("__cuda_stream__", lambda: (0, handle)), None]
        for number, form in enumerate(forms):
            target = tensor(backend, np.zeros(4))
            backend.synchronize()
            backend.async_set_value(target, number, stream=form).sync()
            assert read(backend, target).tolist() == [number] * 4, f"stream={form!r}"
            assert form is None or backend.stream(form) == handle

    @rule("B9")
    @pytest.mark.parametrize("form", ["side", 1.5, object()], ids=["text", "float", "object"])
    def test_what_is_no_stream_is_refused(self, backend: Any, form: Any) -> None:
        target = tensor(backend, np.zeros(4))
        with pytest.raises((TypeError, ValueError)):
            backend.async_set_value(target, 1, stream=form)
        assert not read(backend, target).any()

    @rule("B12")
    def test_a_device_without_streams_says_so(self, backend: Any) -> None:
        if backend.abilities.streams:
            assert backend.stream(backend.new_stream()) is not None
            return
        with pytest.raises(sl.DeviceError, match="no streams"):
            backend.new_stream()
        assert backend.async_set_value(tensor(backend, [1]), 2).is_done, (
            "without streams a call has happened at its return"
        )

    @rule("W10")
    def test_threads_write_disjoint_rows_and_take_results(self, new_backend: NewBackend) -> None:
        backend = new_backend(staging_bytes=4096)
        target = tensor(backend, np.zeros((6, 64)))
        backend.synchronize()
        failures: list[BaseException] = []

        def work(row: int) -> None:
            try:
                for i in range(50):
                    backend.async_set_value(target[row], i * 8 + row)
                    if i % 10 == 0:
                        assert backend.download(target[row]).array().tolist() == [i * 8 + row] * 64
            except BaseException as error:  # noqa: BLE001  (shown below, in the thread of the test)
                failures.append(error)

        threads = [threading.Thread(target=work, args=(row,)) for row in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures, failures
        assert read(backend, target).tolist() == [[49 * 8 + row] * 64 for row in range(6)]
        backend.close()
