"""``simulate``: a loop of an engine on the simulated device, under many seeds."""

from __future__ import annotations

import operator
import os
import sysconfig
import traceback
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterable, Sequence
from pathlib import Path
from typing import Any, SupportsIndex

import numpy as np

from slotline.core.discovery import discover
from slotline.core.errors import ConfigError, nearest
from slotline.core.loading import load_backend_class

MODES = ("late", "random")
_ALLOWED = (*MODES, "eager")
_PACKAGE = str(Path(__file__).parents[1]) + os.sep
_PYTHON = sysconfig.get_path("stdlib") + os.sep
_LIBRARIES = tuple(sysconfig.get_path(path) + os.sep for path in ("purelib", "platlib"))
_NUMPY = str(Path(np.__file__).parent) + os.sep


class SimulationError(AssertionError):
    """A loop failed on the simulated device. ``seed``, ``mode``: to run it again; the cause is chained.

    ``late``: the fewest operations that must run late for it, None where that was not looked for; ``operation``: the
    last of them.
    """

    def __init__(
        self, text: str, seed: int, mode: str, cause: BaseException, late: int | None = None, operation: str = ""
    ) -> None:
        super().__init__(text)
        self.seed, self.mode, self.cause, self.late, self.operation = seed, mode, cause, late, operation

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.seed, self.mode, self.cause, self.late, self.operation)


def _text(seed: int, mode: str, cause: BaseException, late: int | None, operation: str) -> str:
    said = f"{type(cause).__name__}: {cause}" if str(cause) else type(cause).__name__
    lines = [f"seed {seed}, mode {mode!r}: {said}", *_place(cause)]
    lines.append(f"run it alone: {_again(seed, mode)}")
    if late == 0:
        lines.append("it fails as well when nothing runs late: the order of execution does not matter")
    elif late is not None:
        lines += [f"it needs the first {late} operations to run late, and passes if this one does not:", operation]
    return "\n".join(lines)


def _place(error: BaseException) -> list[str]:
    """Where the loop was: its last frame before slotline's own; a kernel's, if it failed behind the loop's end."""
    found = _place_in(traceback.extract_tb(error.__traceback__)[1:])  # the first called the loop
    if not found and error.__cause__ is not None:  # a kernel's own exception, which the device told on (W9)
        found = _place_in(traceback.extract_tb(error.__cause__.__traceback__))
    return found


def _place_in(frames: Sequence[traceback.FrameSummary]) -> list[str]:
    own = [f.filename.startswith(_PACKAGE) for f in frames]
    before = frames[: own.index(True)] if True in own else frames
    for some in (before, frames):
        found = [f for f in some if not f.filename.startswith(_PACKAGE) and not _is_library(f.filename)]
        if found:
            return [f"the loop was at {Path(found[-1].filename).name}:{found[-1].lineno} in {found[-1].name}"]
    return []


def _is_library(file: str) -> bool:
    """Code that a loop only calls: Python's own and NumPy. Other packages that are installed may be the engine."""
    return file.startswith(_NUMPY) or (file.startswith(_PYTHON) and not file.startswith(_LIBRARIES))


def _again(seed: int, mode: str) -> str:
    return f"simulate(loop, seeds=[{seed}], modes=[{mode!r}])"


def simulate(
    loop: Callable[[Any], object],
    *,
    seeds: SupportsIndex | Iterable[SupportsIndex] = 500,
    modes: Sequence[str] = MODES,
    shrink: bool = True,
    **options: Any,
) -> None:
    """Run ``loop(backend)`` under many seeds, each on a simulated device of its own, and stop at the first that fails.

    - ``loop``: a plain function. What an ``async`` engine has in its place is ``lambda sim: asyncio.run(serve(sim))``.
    - ``seeds``: how many, or which ones. Seed n runs in mode ``modes[n % len(modes)]``.
    - ``modes``: of "late", "random" and "eager".
    - ``options``: for the device, such as ``staging_bytes``.
    - ``shrink``: look for the fewest operations that must run late for the failure.

    ``backend.seed`` lets a loop draw its own decisions from the seed. A loop fails by a race, which is raised where the
    second access is queued, or by any exception of its own, an assertion say. What is still queued at its end runs.

    Raises ``SimulationError`` (an AssertionError) that names seed and mode, with the report; the cause is chained. For
    arguments: ``TypeError``, ``ValueError`` for seeds below 0 or none at all, ``ConfigError`` for a mode that is none.
    """
    if not callable(loop):
        raise TypeError(f"loop is {loop!r}, allowed: a function of one argument, the simulated device")
    numbers, modes = _seeds(seeds), _modes(modes)
    if not numbers or not modes:
        raise ValueError("simulate needs at least one seed and one mode")
    for name, instead in (("seed", "seeds=[7]"), ("mode", "modes=['late']"), ("late", "shrink=True")):
        if name in options:
            raise TypeError(f"simulate has no {name!r}: each run of the loop has its own; give {instead}")
    device = load_backend_class(discover().plugins["sim"])
    for seed in numbers:
        run = _Runs(loop, device, seed, modes[seed % len(modes)], options)
        failed = run(None)
        if failed is not None:
            late, operation = run.fewest() if shrink else (None, "")
            text = _text(seed, run.mode, failed, late, operation)
            raise SimulationError(text, seed, run.mode, failed, late, operation) from failed


def _seeds(seeds: SupportsIndex | Iterable[SupportsIndex]) -> list[int]:
    allowed = "allowed: how many seeds, or a list of them, as whole numbers of at least 0"
    try:
        numbers = [_index(n) for n in (seeds if isinstance(seeds, Iterable) else [seeds])]
    except TypeError:
        raise TypeError(f"seeds is {seeds!r}, {allowed}") from None
    if min(numbers, default=0) < 0:
        raise ValueError(f"seeds is {seeds!r}, {allowed}")
    return numbers if isinstance(seeds, Iterable) else list(range(numbers[0]))


def _index(number: Any) -> int:
    if isinstance(number, bool):
        raise TypeError
    return operator.index(number)


def _modes(modes: Sequence[str]) -> list[str]:
    if isinstance(modes, str) or not isinstance(modes, Iterable):
        raise TypeError(f"modes is {modes!r}, allowed: a list of {', '.join(_ALLOWED)}; give modes=[{modes!r}]")
    for mode in (found := list(modes)):
        if mode not in _ALLOWED:
            hint = nearest(mode, _ALLOWED) if isinstance(mode, str) else ""
            raise ConfigError(f"mode is {mode!r}, allowed: {', '.join(_ALLOWED)}{hint}")
    return found


def _require_has_run(returned: object) -> None:
    """``TypeError`` for what an async or a generator function gives: nothing of its body has run."""
    if isinstance(returned, (Coroutine, Generator, AsyncGenerator)):
        if not isinstance(returned, AsyncGenerator):
            returned.close()  # else Python warns that nobody awaited it
        how = "list(loop(sim))" if isinstance(returned, Generator) else "asyncio.run(loop(sim))"
        kind = type(returned).__name__
        raise TypeError(f"the loop gave a {kind} and has not run; give a function that runs it: lambda sim: {how}")


class _Runs:
    """One loop under one seed, as often as wanted."""

    def __init__(self, loop: Callable[[Any], object], device: Any, seed: int, mode: str, options: dict[str, Any]):
        self.loop, self.device, self.seed, self.mode, self.options = loop, device, seed, mode, options
        self.queued = 0
        """Operations of the longest run so far."""
        self.operation = ""
        """The last of the operations that were to run late, of the last run that failed."""

    def __call__(self, late: int | None) -> Exception | None:
        """What the loop fails with when only the first ``late`` operations run late (None: all)."""
        backend = self.device(seed=self.seed, mode=self.mode, late=late, **self.options)
        try:
            returned = self.loop(backend)
            backend.synchronize()
        except Exception as error:  # noqa: BLE001  (the loop is the user's: whatever it raises is the finding)
            self.operation = backend.last_late
            found: Exception = backend.finding(error)
            return found
        except BaseException as error:  # pytest's own, or the user stops it: as it is, but with the seed
            error.add_note(f"seed {self.seed}, mode {self.mode!r}: {_again(self.seed, self.mode)}")
            raise
        finally:
            self.queued = max(self.queued, backend.queued)
            backend.abandon()
        _require_has_run(returned)
        return None

    def fewest(self) -> tuple[int | None, str]:
        """How many operations must run late, the first ones, and the last of them; None if that cannot be told."""
        if self(0) is not None:
            return 0, ""
        most = self.queued
        passes, fails = 0, 1
        while self(fails) is None:
            if fails >= most:
                return None, ""  # it does not fail again: the loop draws on more than the seed
            passes, fails = fails, min(2 * fails, most)
        operation = self.operation
        while fails - passes > 1:
            middle = (passes + fails) // 2
            if self(middle) is None:
                passes = middle
            else:
                fails, operation = middle, self.operation
        return fails, operation
