"""``simulate``: a loop under many seeds, the first that fails, and what is said of it."""

from __future__ import annotations

import pickle
import re
from typing import Any

import numpy as np
import pytest

import slotline as sl
from slotline.core.runtime import Copy
from slotline.testing import simulate
from slotline.testing.simulate import SimulationError


def test_a_loop_runs_once_for_each_seed_and_on_a_device_of_its_own() -> None:
    seen: list[tuple[int, str]] = []
    devices = set()

    def loop(sim: Any) -> None:
        seen.append((sim.seed, sim.machine.mode))
        devices.add(sim)

    simulate(loop, seeds=4)
    assert seen == [(0, "late"), (1, "random"), (2, "late"), (3, "random")]
    simulate(loop, seeds=[7, 8], modes=["eager"])
    assert seen[4:] == [(7, "eager"), (8, "eager")]
    assert len(devices) == 6


def test_what_is_still_queued_at_the_end_runs() -> None:
    ran: list[int] = []
    simulate(lambda sim: sim.engine.kernel("last", lambda: ran.append(sim.seed)), seeds=3, modes=["late"])
    assert ran == [0, 1, 2]

    def breaks() -> None:
        raise ZeroDivisionError

    with pytest.raises(SimulationError, match="ZeroDivisionError"):
        simulate(lambda sim: sim.engine.kernel("last", breaks), seeds=1)


def forgets_to_wait(sim: Any) -> None:
    x = sim.empty([("x", (4, 2), "int64")])["x"]
    side = sim.new_stream()
    sl.async_set_value(x[1:3], 5, stream=side)
    sim.engine.read(x, rows=slice(2, 4))


def test_a_race_names_buffer_rows_operations_and_both_stacks() -> None:
    with pytest.raises(SimulationError) as caught:
        simulate(forgets_to_wait)
    text, file = str(caught.value), re.escape("tests/unit/test_simulate.py")
    assert re.search(r"^seed \d+, mode '\w+': Race: race on 'x', row 2: ", text)
    assert re.search(rf"which writes it:\n    a copy .*, on stream \d, queued at\n.*\n.*{file}:\d+ in forgets", text)
    assert re.search(rf"which reads it:\n    kernel 'read', on stream 0, queued at\n.*{file}:\d+ in forgets", text)
    assert caught.value.__cause__ is caught.value.cause
    assert text.count("\n") < 20


def source_used_again(sim: Any) -> None:
    """What a copy of pageable memory makes of a source that is changed too early; no detector sees that memory."""
    x, source = sim.empty([("x", (2,), "int64")])["x"], np.zeros(2, np.int64)
    for n in range(12):
        source[:] = n
        if n == 8:
            sim.runtime.copy(x.pointer, source.ctypes.data, 16, Copy.HOST_TO_DEVICE, 0)
        else:
            sl.async_set_value(x, source)
        source[:] = -1
        if sim.read(x).tolist() != [n, n]:
            raise ValueError


def test_the_operation_that_must_run_late_is_named() -> None:
    with pytest.raises(SimulationError) as caught:
        simulate(source_used_again, modes=["late"])
    error = caught.value
    assert (error.seed, type(error.cause)) == (0, ValueError)
    assert error.late is not None
    assert error.late > 8
    assert re.search(r"a copy from the host to the device, .*\n.*test_simulate.py:\d+ in source_used_again", str(error))
    assert re.match(
        r"seed 0, mode 'late': ValueError\nthe loop was at test_simulate.py:\d+ in source_used_again\n", str(error)
    )
    line = re.search(r"test_simulate.py:(\d+) in source_used_again", error.operation)
    assert line is not None
    body = source_used_again.__code__
    assert int(line[1]) - body.co_firstlineno == 6  # the copy by hand, of all the twelve


def test_the_text_says_how_to_run_it_alone() -> None:
    with pytest.raises(SimulationError) as caught:
        simulate(source_used_again, shrink=False)
    (line,) = [line for line in str(caught.value).split("\n") if line.startswith("run it alone: ")]
    assert "late operations" not in str(caught.value)
    with pytest.raises(SimulationError) as again:
        eval(line.removeprefix("run it alone: "), {"simulate": simulate, "loop": source_used_again})
    assert (again.value.seed, again.value.mode) == (caught.value.seed, caught.value.mode)


def test_eager_hides_what_late_shows() -> None:
    simulate(source_used_again, seeds=20, modes=["eager"])


def test_a_loop_that_draws_on_more_than_the_seed_is_still_reported() -> None:
    runs: list[int] = []

    def loop(sim: Any) -> None:
        runs.append(0)
        for _ in range(5):
            sim.engine.kernel("nothing")
        assert len(runs) > 1, "only once"

    with pytest.raises(SimulationError, match="only once") as caught:
        simulate(loop)
    assert caught.value.late is None


def test_a_failure_that_needs_no_lateness_is_said_to_be_one() -> None:
    def loop(sim: Any) -> None:
        sim.engine.kernel("nothing")
        raise AssertionError("always")

    with pytest.raises(SimulationError, match="it fails as well when nothing runs late") as caught:
        simulate(loop)
    assert caught.value.late == 0


def test_what_is_no_error_comes_through_with_its_seed() -> None:
    def loop(sim: Any) -> None:
        if sim.seed == 3:
            pytest.fail("as pytest says it")

    with pytest.raises(pytest.fail.Exception) as caught:
        simulate(loop)
    assert caught.value.__notes__ == ["seed 3, mode 'random': simulate(loop, seeds=[3], modes=['random'])"]


def test_options_are_the_devices_own() -> None:
    seen: list[int] = []
    simulate(lambda sim: seen.append(sim.staging_bytes), seeds=1, staging_bytes=8192)
    assert seen == [8192]


def test_nothing_to_run_is_an_error() -> None:
    nothing: list[dict[str, Any]] = [{"seeds": 0}, {"seeds": []}, {"modes": ()}]
    for wrong in nothing:
        with pytest.raises(ValueError, match="at least one seed and one mode"):
            simulate(lambda sim: None, **wrong)
    with pytest.raises(sl.ConfigError, match="allowed: late, random, eager"):
        simulate(lambda sim: None, modes=["lazy"])


def test_the_error_travels_between_processes() -> None:
    with pytest.raises(SimulationError) as caught:
        simulate(forgets_to_wait)
    again = pickle.loads(pickle.dumps(caught.value))
    assert (str(again), again.seed, again.mode) == (str(caught.value), caught.value.seed, caught.value.mode)


def test_races_can_be_collected_instead() -> None:
    found: list[int] = []

    def loop(sim: Any) -> None:
        forgets_to_wait(sim)
        found.append(len(sim.races))

    simulate(loop, seeds=1, collect=True)
    assert found == [1]
