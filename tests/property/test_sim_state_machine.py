"""The state machine on the simulated device: every legal delay, and no race (rules W4 to W6, I6, B8)."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule
from simulated import simulated
from test_state_machine import Operations

import slotline as sl


class OperationsOnSim(Operations):
    """As on other devices, but looked at only now and then: each look waits for the device, and lateness is the test.

    Arrays of a step never change again, so they are compared at the next look.
    """

    framework = "sim"

    def __init__(self) -> None:
        super().__init__()
        self.later: list[tuple[str, Any, Any]] = []

    def _backend(self, data: st.DataObject) -> sl.Backend:
        seed, mode = data.draw(st.integers(0, 2**16)), data.draw(st.sampled_from(["late", "late", "random"]))
        made: sl.Backend = simulated(seed, mode)
        return made

    def _expect(self, name: str, tensor: Any, wanted: Any) -> None:
        self.later.append((name, tensor, wanted))

    def equal(self) -> None:
        """Not after every operation."""

    def no_placeholder_within_lengths(self) -> None:
        """Not after every operation."""

    @rule()
    def look(self) -> None:
        for name, tensor, wanted in self.later:
            super()._expect(name, tensor, wanted)
        self.later = []
        super().equal()
        super().no_placeholder_within_lengths()

    def teardown(self) -> None:
        if hasattr(self, "batch"):
            self.look()
            self.batch.backend.synchronize()
            assert self.batch.backend.retained == 0  # type: ignore[attr-defined]  # W4: no source is kept
            self.batch.backend.close()


TestOperationsOnSim: Any = OperationsOnSim.TestCase
TestOperationsOnSim.settings = settings(max_examples=5 * settings().max_examples, stateful_step_count=30)
"""One example is one seed: 500 in CI's profile."""
