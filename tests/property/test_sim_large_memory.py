"""The detector's clocks of large memory, which are given back: it calls the same a race (rules W5, B9)."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_sim_orders import BYTES, CALLS, Call, run

from slotline.backends.sim import Machine, shadow

CHUNK = mmap.PAGESIZE // 8
"""As small as a system gives memory back, with a clock of eight bytes for each byte."""


@pytest.fixture(scope="module", autouse=True)
def everything_is_large() -> Iterator[None]:
    """And is given back at once when the host knows of all that a chunk holds."""
    let_go = shadow.Clocks._let_go

    def let_go_always(clocks: Any, *arguments: Any) -> None:
        let_go(clocks, *arguments)
        clocks._bound = 0

    with (
        mock.patch.multiple(shadow, SMALL=0, CHUNK=CHUNK),
        mock.patch.object(shadow.Clocks, "_let_go", let_go_always),
    ):
        yield


@given(st.lists(CALLS, max_size=24), st.integers(0, 2**16), st.sampled_from(["late", "random", "eager"]), st.booleans())
@settings(max_examples=4 * settings().max_examples)
def test_a_race_is_reported_exactly_where_nothing_orders_two_accesses(
    program: list[Call], seed: int, mode: str, scattered: bool
) -> None:
    run(program, seed, mode, scattered, behind=CHUNK - BYTES // 2)  # across the border of two chunks


@pytest.mark.parametrize("seed", range(5))
def test_a_chunk_is_given_back_whole_and_alone(seed: int) -> None:
    """Each byte clashes as long as the host does not know of the last write to it, whatever its neighbours do."""
    draw, machine, size = np.random.default_rng(seed), Machine(seed), 8 * CHUNK
    memory, event = machine.memory.allocate(size, "device", "x"), machine.add_event()
    last, known, recorded = np.full(size, -1), -1, -1
    for n in range(200):
        low = int(draw.integers(size))
        high = min(size, low + int(draw.integers(1, 3 * CHUNK)))
        machine.enqueue(0, str(n), lambda: None, writes=[machine.region(memory.base + low, (high - low,), (1,), 1)])
        last[low:high] = n
        if draw.random() < 0.2:
            machine.record(event, 0)
            recorded = n
        if draw.random() < 0.2:
            machine.sync_event(event)
            known = recorded
        for low in draw.integers(size, size=20).tolist():
            high = min(size, low + int(draw.choice([1, 2 * CHUNK])))
            cells = machine.region(memory.base + low, (high - low,), (1,), 1)
            assert machine.clashes(cells) == (last[low:high].max() > known)
