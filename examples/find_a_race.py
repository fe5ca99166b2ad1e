"""Find a race without a GPU: ``python -m examples.find_a_race``.

An engine stages the token ids of each step in a ring of two host buffers. It never asks whether the copy out of a
buffer is done: with one step in flight the depth of the ring is enough. Then somebody lets two steps overlap.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

import slotline as sl
from slotline.testing import simulate
from slotline.testing.simulate import SimulationError

SLOTS, STEPS, DEPTH = 4, 12, 2
Upload = Callable[[Any, Any], object]


class TrustingRing:
    """Host buffers taken in turn. What was in a buffer is overwritten whether its copy has run or not."""

    def __init__(self, sim: Any) -> None:
        self.buffers = [sim.engine.host_buffer((SLOTS,), "int64", f"staging {n}") for n in range(DEPTH)]
        self.turn = 0

    def upload(self, tensor: Any, values: Any) -> None:
        buffer = self.buffers[self.turn % DEPTH]
        self.turn += 1
        buffer.write(values)  # a copy of DEPTH steps ago may still be about to read it
        buffer.upload(tensor)


def engine(sim: Any, upload: Upload, in_flight: int) -> None:
    """Steps of a model that only notes which ids it was given; the host runs ahead of it by ``in_flight`` steps."""
    input_ids = sim.empty([("input_ids", (SLOTS,), "int64")])["input_ids"]
    flight: deque[tuple[int, Any, Any]] = deque()
    for step in range(STEPS):
        tokens = 100 * step + np.arange(SLOTS)
        upload(input_ids, tokens)
        flight.append((step, tokens, sim.engine.read(input_ids)))  # the model's kernel
        if len(flight) > in_flight:
            check(*flight.popleft())
    while flight:
        check(*flight.popleft())


def check(step: int, tokens: Any, model: Any) -> None:
    """The result of a step, for which the host waits."""
    seen = model.array()
    if not np.array_equal(seen, tokens):
        raise AssertionError(f"step {step}: the scheduler sent {tokens.tolist()}, the model read {seen.tolist()}")


def trusting(in_flight: int) -> Callable[[Any], None]:
    return lambda sim: engine(sim, TrustingRing(sim).upload, in_flight)


def with_slotline(sim: Any) -> None:
    engine(sim, sl.async_set_value, in_flight=2)


def failure(loop: Callable[[Any], None], **options: Any) -> SimulationError | None:
    """The first seed of 500 under which ``loop`` fails."""
    try:
        simulate(loop, seeds=500, **options)
    except SimulationError as error:
        return error
    return None


def main() -> None:
    print(f"A ring of {DEPTH} host buffers, trusted by its depth, as on hardware, where nobody reports a race:\n")
    for in_flight, steps in ((1, "1 step in flight"), (2, "2 steps in flight")):
        for modes, when in ((["eager"], "copies run at once"), (["late", "random"], "copies run when they may")):
            found = failure(trusting(in_flight), modes=modes, collect=True)
            print(f"  {steps + ', ' + when:44}{said(found)}")
    print("\nThe same, 2 steps in flight, and the detector speaks. It needs no unlucky delay:\n")
    print("  " + str(failure(trusting(2))).replace("\n", "\n  "))
    print("\nThe same loop, 2 steps in flight, on slotline.async_set_value, detector on:\n")
    print(f"  {said(failure(with_slotline))}")


def said(error: SimulationError | None) -> str:
    return "500 seeds, every step right" if error is None else f"seed {error.seed}, {error.cause}"


if __name__ == "__main__":
    main()
