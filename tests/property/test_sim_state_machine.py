"""The kit's state machine on the simulated device: every legal delay, and no race (rules W4 to W6, I6, B8)."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from simulated import simulated

import slotline as sl
from slotline.testing.conformance.late_operations import LateOperations


class OnSim(LateOperations):
    """Each example executes in the order of a seed of its own."""

    def _backend(self, data: st.DataObject) -> sl.Backend:
        seed, mode = data.draw(st.integers(0, 2**16)), data.draw(st.sampled_from(["late", "late", "random"]))
        made: sl.Backend = simulated(seed, mode)
        return made


TestOperationsOnSim: Any = OnSim.TestCase
TestOperationsOnSim.settings = settings(max_examples=5 * settings().max_examples, stateful_step_count=30)
"""One example is one seed: 500 in CI's profile."""
