"""Random programs on several queues, ordered by events alone, against plain arrays (rules W4, W5, W7, B8)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from slotline_opencl import OpenclBackend

BUFFERS, SHAPE = 6, (24, 16)


class Program:
    """Each step waits, on the device, for the last step that touched its buffers; nothing else orders the queues."""

    def __init__(self, seed: int) -> None:
        self.rng: Any = np.random.default_rng(seed)
        self.backend = OpenclBackend(staging_bytes=int(self.rng.choice([2048, 8192, 1 << 20])))
        self.streams = [0, *(self.backend.new_stream() for _ in range(3))]
        self.model = [np.zeros(SHAPE, np.int64) for _ in range(BUFFERS)]
        self.tensors = list(self.backend.empty([(str(i), SHAPE, "int64") for i in range(BUFFERS)]).values())
        self.last = [self.backend.async_set_value(t, 0) for t in self.tensors]
        self.results: list[tuple[Any, Any]] = []

    def step(self) -> None:
        rng, stream = self.rng, self.streams[self.rng.integers(4)]
        i, j = (int(k) for k in rng.integers(BUFFERS, size=2))
        view = tuple(slice(rng.integers(0, 4), rng.integers(4, n + 1), rng.integers(1, 3)) for n in SHAPE)
        self.last[i].wait(stream)
        kind = rng.choice(["host", "device", "number", "result"])
        if kind == "host":
            source = rng.integers(-9, 9, self.model[i][view].shape)
            self.model[i][view] = source
            self.last[i] = self.backend.async_set_value(self.tensors[i][view], source, stream=stream)
            source[...] = 77
        elif kind == "device":
            self.last[j].wait(stream)
            self.model[i][view] = self.model[j][view].copy()
            event = self.backend.async_set_value(self.tensors[i][view], self.tensors[j][view], stream=stream)
            self.last[i] = self.last[j] = event
        elif kind == "number":
            self.model[i][view] = 5
            self.last[i] = self.backend.async_set_value(self.tensors[i][view], 5, stream=stream)
        else:
            with self.backend.on_stream(stream):
                self.results.append((self.backend.download(self.tensors[i][view]), self.model[i][view].copy()))
                self.last[i] = self.backend.record()


@pytest.mark.parametrize("seed", range(10))
def test_w5_events_are_all_that_is_needed(seed: int) -> None:
    program = Program(seed)
    for _ in range(300):
        program.step()
    for download, want in program.results:
        assert np.array_equal(download.array(), want)
    for tensor, want in zip(program.tensors, program.model, strict=True):
        assert np.array_equal(program.backend.read(tensor), want)
    assert program.backend.retained == 0
    program.backend.close()
