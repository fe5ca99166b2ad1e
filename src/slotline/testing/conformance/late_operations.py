"""The state machine for a device with streams, which is looked at only now and then (rules W4 to W6, I6, B8)."""

from __future__ import annotations

from typing import Any

from hypothesis.stateful import rule

from slotline.testing.conformance.operations import Operations


class LateOperations(Operations):
    """For a device with streams: looked at only now and then, since each look waits and lateness is the test.

    Arrays of a step never change again, so they are compared at the next look.
    """

    def __init__(self) -> None:
        super().__init__()
        self.later: list[tuple[str, Any, Any]] = []

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
            assert getattr(self.batch.backend, "retained", 0) == 0, "sources are kept after all work is done (W4)"
            super().teardown()
