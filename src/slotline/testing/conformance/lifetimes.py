"""What is kept and what is given back; what the probe and the abilities say (rules W4, W6, W9, B3, B12)."""

from __future__ import annotations

import gc
import tracemalloc
import weakref
from typing import Any

import numpy as np
import pytest

import slotline as sl
from slotline.core.discovery import Plugin
from slotline.core.loading import interface_problem
from slotline.testing.conformance.base import Kit, NewBackend, read, tensor
from slotline.testing.rules import rule

SLACK = 256 << 10
"""Bytes of Python memory that may differ between two equal rounds: caches, and pools that have grown to their size."""


class Lifetimes(Kit):
    """Memory over time, and the backend's account of itself."""

    @rule("W4")
    def test_no_source_is_kept_once_its_write_is_done(self, backend: Any) -> None:
        target = tensor(backend, np.zeros((50, 16)))
        sources = []
        for row in range(50):
            source = np.full(16, row)
            sources.append(weakref.ref(source))
            backend.async_set_value(target[row], source)
        del source
        backend.synchronize()
        gc.collect()
        assert not [ref for ref in sources if ref() is not None], "host sources are kept"
        assert getattr(backend, "retained", 0) == 0, "staging blocks are kept after all work is done"

    @rule("W6")
    def test_writes_leave_nothing_behind(self, backend: Any) -> None:
        target = tensor(backend, np.zeros(64))

        def work() -> int:
            for i in range(2000):
                backend.async_set_value(target[i % 64 : i % 64 + 1], i)
            backend.synchronize()
            gc.collect()
            return tracemalloc.get_traced_memory()[0]

        tracemalloc.start()
        try:
            work()
            first = work()
            last = [work() for _ in range(3)][-1]
        finally:
            tracemalloc.stop()
        assert last - first <= SLACK, f"6000 writes left {last - first} bytes behind"
        assert read(backend, target).tolist() == [max(i for i in range(2000) if i % 64 == s) for s in range(64)]

    @rule("W9")
    def test_a_closed_device_says_so_or_still_works(self, new_backend: NewBackend) -> None:
        """Closing twice is allowed; afterwards a call works or raises an error of slotline's own."""
        backend = new_backend()
        target = tensor(backend, np.zeros(4))
        backend.synchronize()
        backend.close()
        backend.close()
        try:
            backend.async_set_value(target, 1)
        except (sl.SlotlineError, TypeError, ValueError):
            return

    @rule("B3")
    def test_the_probe_answers_twice_alike(self, backend: Any) -> None:
        options = {"framework": backend.framework, "vendor": backend.vendor, "device": backend.device}
        first, second = type(backend).probe(**options), type(backend).probe(**options)
        assert isinstance(first, sl.Probe)
        assert first == second, "a probe left something behind"
        assert first.usable, f"the device is in use and its probe says: {first.reason}"
        assert all(isinstance(k, str) and isinstance(v, str) for k, v in first.versions.items())

    @rule("B3")
    def test_a_device_that_is_not_there_is_a_reason_not_an_exception(self, backend: Any) -> None:
        found = type(backend).probe(framework=backend.framework, vendor=backend.vendor, device=10_000)
        assert isinstance(found, sl.Probe)
        assert found.usable or found.reason, "an unusable device needs its reason"

    @rule("B12")
    def test_the_interface_is_whole(self, backend: Any) -> None:
        kind = type(backend)
        origin = Plugin(kind.name, f"{kind.__module__}:{kind.__qualname__}", "this", "")
        assert interface_problem(origin, kind) == ""
        assert isinstance(backend.abilities, sl.Abilities)
        assert not (backend.abilities.async_upload and not backend.abilities.streams), "async_upload needs streams"

    @rule("B12")
    @pytest.mark.parametrize("dtype", ["int64", "int32", "float32", "bool"])
    def test_the_dtypes_of_the_table_are_there(self, backend: Any, dtype: str) -> None:
        made = backend.empty([("t", (2, 3), dtype)])["t"]
        info = backend.inspect(made)
        assert (info.shape, info.dtype) == ((2, 3), dtype)
        assert info.strides == (3 * np.dtype(dtype).itemsize, np.dtype(dtype).itemsize)
        view = backend.inspect(made[1:, ::2])
        assert (view.shape, view.strides[1]) == ((1, 2), 2 * np.dtype(dtype).itemsize)
        assert view.pointer == info.pointer + info.strides[0], "a view tells the pointer of its own first cell"
