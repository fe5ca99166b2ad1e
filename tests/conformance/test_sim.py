"""The kit on the simulated device, each time in the order of another seed."""

import itertools

import pytest
from simulated import simulated

from slotline.testing.conformance import BackendConformance, NewBackend

SEEDS = itertools.count()


class TestSim(BackendConformance):
    @pytest.fixture
    def new_backend(self) -> NewBackend:
        return lambda **options: simulated(next(SEEDS), **options)
