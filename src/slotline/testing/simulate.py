"""``simulate``: a loop of an engine on the simulated device, under many seeds."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from slotline.core.discovery import discover
from slotline.core.loading import load_backend_class

MODES = ("late", "random")
_PACKAGE = str(Path(__file__).parents[1])


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
    whole = traceback.extract_tb(cause.__traceback__)
    frames = [f for f in whole if not f.filename.startswith(_PACKAGE) and "site-packages" not in f.filename]
    lines = [f"seed {seed}, mode {mode!r}: {said}"]
    if frames:
        lines.append(f"the loop was at {Path(frames[-1].filename).name}:{frames[-1].lineno} in {frames[-1].name}")
    lines.append(f"run it alone: {_again(seed, mode)}")
    if late == 0:
        lines.append("it fails as well when nothing runs late: the order of execution does not matter")
    elif late is not None:
        lines += [f"it needs the first {late} operations to run late, and passes if this one does not:", operation]
    return "\n".join(lines)


def _again(seed: int, mode: str) -> str:
    return f"simulate(loop, seeds=[{seed}], modes=[{mode!r}])"


def simulate(
    loop: Callable[[Any], object],
    *,
    seeds: int | Iterable[int] = 500,
    modes: Sequence[str] = MODES,
    shrink: bool = True,
    **options: Any,
) -> None:
    """Run ``loop(backend)`` under many seeds, each on a simulated device of its own, and stop at the first that fails.

    - ``seeds``: how many, or which ones. Seed n runs in mode ``modes[n % len(modes)]``.
    - ``options``: for the device, such as ``staging_bytes``.
    - ``shrink``: look for the fewest operations that must run late for the failure.

    ``backend.seed`` lets a loop draw its own decisions from the seed. A loop fails by a race, which is raised where the
    second access is queued, or by any exception of its own, an assertion say. What is still queued at its end runs.

    Raises ``SimulationError`` (an AssertionError) that names seed and mode, with the report; the cause is chained.
    """
    numbers = list(range(seeds)) if isinstance(seeds, int) else list(seeds)
    if not numbers or not modes:
        raise ValueError("simulate needs at least one seed and one mode")
    device = load_backend_class(discover().plugins["sim"])
    for seed in numbers:
        run = _Runs(loop, device, seed, modes[seed % len(modes)], options)
        failed = run(None)
        if failed is not None:
            late, operation = run.fewest() if shrink else (None, "")
            text = _text(seed, run.mode, failed, late, operation)
            raise SimulationError(text, seed, run.mode, failed, late, operation) from failed


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
            self.loop(backend)
            backend.synchronize()
        except Exception as error:  # noqa: BLE001  (the loop is the user's: whatever it raises is the finding)
            self.operation = backend.last_late
            return error
        except BaseException as error:  # pytest's own, or the user stops it: as it is, but with the seed
            error.add_note(f"seed {self.seed}, mode {self.mode!r}: {_again(self.seed, self.mode)}")
            raise
        finally:
            self.queued = max(self.queued, backend.queued)
            backend.abandon()
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
