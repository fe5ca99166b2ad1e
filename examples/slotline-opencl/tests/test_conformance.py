"""The whole conformance kit on the first OpenCL device."""

from __future__ import annotations

import pytest
from slotline_opencl import OpenclBackend

from slotline.testing.conformance import BackendConformance, NewBackend


class TestOpencl(BackendConformance):
    @pytest.fixture
    def new_backend(self) -> NewBackend:
        return OpenclBackend
