"""The kit on the default device with each framework."""

import functools

import pytest

from slotline.backends.cpu import CpuBackend
from slotline.testing.conformance import BackendConformance, NewBackend


class TestCpu(BackendConformance):
    @pytest.fixture
    def new_backend(self, framework: str) -> NewBackend:
        return functools.partial(CpuBackend, framework=framework)
