"""The whole conformance kit on the first OpenCL device."""

from __future__ import annotations

from typing import ClassVar

import pytest
from slotline_opencl import OpenclBackend

from slotline.testing.conformance import BackendConformance


class TestOpencl(BackendConformance):
    known_failures: ClassVar[dict[str, str]] = {}

    @pytest.fixture(scope="class")
    def new_backend(self) -> type[OpenclBackend]:
        return OpenclBackend
