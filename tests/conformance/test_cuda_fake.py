"""The kit on the CUDA backend over a fake of CUDA's runtime, which executes late and finds races."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterator

import pytest
from cuda_on_sim import cuda_device

from slotline.testing.conformance import BackendConformance, NewBackend

SEEDS = itertools.count()


class TestCudaOnAFake(BackendConformance):
    @pytest.fixture
    def new_backend(self) -> Iterator[NewBackend]:
        with cuda_device(next(SEEDS)) as (make, fake):
            fake.calls = deque(maxlen=0)  # type: ignore[assignment]  # its log of calls would count as a leak
            yield make
