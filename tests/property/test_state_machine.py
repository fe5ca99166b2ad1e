"""The kit's state machine on the default device, for each framework (rules I, L, S, M, D, P, T)."""

from __future__ import annotations

import os
from typing import Any

import pytest
from frameworks import INSTALLED, backend, fewer
from hypothesis import settings

import slotline as sl
from slotline.testing.conformance.operations import Operations


class Shared(Operations):
    """One device for all examples."""

    framework = "numpy"

    def _backend(self, data: Any) -> sl.Backend:
        return backend(self.framework)

    def _leave(self, backend: sl.Backend) -> None:
        """It goes on being used."""


class OnTorch(Shared):
    framework = "torch"


class OnPaddle(Shared):
    framework = "paddle"


def machine_of(operations: type[Shared]) -> type:
    case: type = operations.TestCase
    case.settings = settings(fewer(1, operations.framework), stateful_step_count=40)  # type: ignore[attr-defined]
    missing = operations.framework not in INSTALLED and os.environ.get("SLOTLINE_TEST_REQUIRE_FRAMEWORKS") != "1"
    mark = pytest.mark.skipif(missing, reason=f"{operations.framework} is not installed")
    return mark(case)


TestOperations = machine_of(Shared)
TestOperationsOnTorch = machine_of(OnTorch)
TestOperationsOnPaddle = machine_of(OnPaddle)
