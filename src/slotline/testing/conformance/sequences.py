"""Any sequence of operations, by a Hypothesis state machine against the reference (rule B8)."""

from __future__ import annotations

from hypothesis.stateful import run_state_machine_as_test

from slotline.testing.conformance.base import Kit, NewBackend, examples
from slotline.testing.conformance.late_operations import LateOperations
from slotline.testing.conformance.operations import Operations
from slotline.testing.rules import rule


class Sequences(Kit):
    """The widest net, and the last: what one rule's own tests show is plainer there."""

    @rule("B8")
    def test_any_sequence_of_operations_leaves_the_bytes_of_the_reference(self, new_backend: NewBackend) -> None:
        probe = new_backend()
        late = probe.abilities.streams
        probe.close()
        base: type[Operations] = LateOperations if late else Operations
        machine = type("Machine", (base,), {"new_backend": staticmethod(new_backend)})
        run_state_machine_as_test(machine, settings=examples(1.0, stateful_step_count=30))
