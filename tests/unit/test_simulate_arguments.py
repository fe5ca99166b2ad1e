"""``simulate`` refuses what it cannot run before anything runs, and says where an engine's loop was."""

from __future__ import annotations

import json
import sys
import sysconfig
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import slotline as sl
from slotline.testing import simulate
from slotline.testing.simulate import SimulationError


def never(sim: Any) -> None:
    raise AssertionError("the loop must not run")


async def serve(sim: Any) -> None:
    never(sim)


def steps(sim: Any) -> Iterator[int]:
    never(sim)
    yield 0


async def stream(sim: Any) -> AsyncIterator[int]:
    never(sim)
    yield 0


class Engine:
    async def __call__(self, sim: Any) -> None:
        never(sim)


@pytest.mark.parametrize(
    ("loop", "says"),
    [
        (serve, "the loop gave a coroutine and has not run; give a function that runs it: .*asyncio.run"),
        (lambda sim: serve(sim), "coroutine"),
        (Engine(), "coroutine"),
        (steps, r"the loop gave a generator and has not run; .*list\(loop\(sim\)\)"),
        (stream, "async_generator"),
    ],
)
def test_a_loop_that_has_not_run_is_refused(loop: Any, says: str, recwarn: pytest.WarningsRecorder) -> None:
    with pytest.raises(TypeError, match=says):
        simulate(loop, seeds=2)
    assert not recwarn.list  # such as "was never awaited"


def test_a_loop_is_a_function() -> None:
    with pytest.raises(TypeError, match="loop is 5, allowed: a function of one argument"):
        simulate(5, seeds=1)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("wrong", "error", "says"),
    [
        ({"seeds": "abc"}, TypeError, "seeds is 'abc', allowed: how many seeds, or a list of them"),
        ({"seeds": 2.5}, TypeError, "seeds is 2.5"),
        ({"seeds": True}, TypeError, "seeds is True"),
        ({"seeds": None}, TypeError, "seeds is None"),
        ({"seeds": [1, "2"]}, TypeError, r"seeds is \[1, '2'\]"),
        ({"seeds": -1}, ValueError, "seeds is -1, .*at least 0"),
        ({"seeds": [3, -1]}, ValueError, "at least 0"),
        ({"seeds": 0}, ValueError, "at least one seed"),
        ({"seeds": np.int64(0)}, ValueError, "at least one seed"),
        ({"modes": "late"}, TypeError, r"modes is 'late', .*give modes=\['late'\]"),
        ({"modes": 3}, TypeError, "modes is 3"),
        (
            {"modes": ["late", "lat"]},
            sl.ConfigError,
            "mode is 'lat', allowed: .*eager; did you mean 'late'",
        ),
        ({"modes": [None]}, sl.ConfigError, "mode is None"),
        ({"mode": "late"}, TypeError, r"simulate has no 'mode'.*give modes=\['late'\]"),
        ({"seed": 3}, TypeError, r"simulate has no 'seed'.*give seeds=\[7\]"),
        ({"late": 3}, TypeError, "simulate has no 'late'"),
        ({"staging_bytes": 0}, sl.ConfigError, "staging_bytes is 0"),
    ],
)
def test_wrong_arguments_are_named_before_the_loop_runs(
    wrong: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says) as caught:
        simulate(never, **wrong)
    assert not isinstance(caught.value, SimulationError)


def test_numbers_of_numpy_are_numbers() -> None:
    seen: list[Any] = []
    simulate(lambda sim: seen.append(sim.seed), seeds=np.int64(2))
    simulate(lambda sim: seen.append(sim.seed), seeds=np.array([5, 7]))
    simulate(lambda sim: seen.append(sim.seed), seeds=range(8, 9), modes=("late",))
    assert seen == [0, 1, 5, 7, 8]
    assert {type(seed) for seed in seen} == {int}


# -- where the loop was


def place(loop: Callable[[Any], object]) -> str:
    with pytest.raises(SimulationError) as caught:
        simulate(loop, seeds=1, shrink=False)
    (line,) = [line for line in str(caught.value).split("\n") if line.startswith("the loop was at ")]
    return line.removeprefix("the loop was at ")


def test_the_place_is_before_slotlines_frames_and_the_librarys() -> None:
    here = Path(__file__).name

    def on_a_stream(sim: Any) -> None:
        with sim.on_stream(77):  # by contextlib
            pass

    def in_a_callback(sim: Any) -> None:
        sim.engine.kernel("k", lambda: json.loads("{"))
        sim.synchronize()

    def in_numpy(sim: Any) -> None:
        np.stack([np.zeros(2), np.zeros(3)])

    def in_python(sim: Any) -> None:
        json.loads("{")

    for loop in (on_a_stream, in_a_callback, in_numpy, in_python):
        line = loop.__code__.co_firstlineno + (2 if loop is in_a_callback else 1)
        assert place(loop) == f"{here}:{line} in {loop.__name__}"

    def breaks() -> None:
        raise ZeroDivisionError

    line = breaks.__code__.co_firstlineno + 1
    assert place(lambda sim: sim.engine.kernel("last", breaks)) == f"{here}:{line} in breaks"  # behind the loop's end


@pytest.mark.parametrize("package", ["engine", "slotline_engine"])
def test_an_engine_that_is_installed_is_the_loop_too(package: str) -> None:
    """Whatever its name: one that begins like ours is not ours."""
    file = str(Path(sysconfig.get_path("purelib")) / package / "serve.py")
    own = str(Path(sys.modules["slotline"].__file__ or "").parent) + "_engine.py"
    for name in (file, own):
        space: dict[str, Any] = {}
        exec(compile("def serve(sim):\n    sim.require_framework('none')\n", name, "exec"), space)
        assert place(lambda sim, serve=space["serve"]: serve(sim)) == f"{Path(name).name}:2 in serve"  # type: ignore[misc]
