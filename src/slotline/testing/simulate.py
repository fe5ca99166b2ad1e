"""``simulate``: a loop of an engine on the simulated device, under many seeds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from slotline.core.discovery import discover
from slotline.core.loading import load_backend_class

MODES = ("late", "random")


class SimulationError(AssertionError):
    """A loop failed on the simulated device. ``seed``, ``mode``: to run it again; the cause is chained."""

    def __init__(self, seed: int, mode: str, late: int | None, cause: BaseException) -> None:
        self.seed, self.mode, self.late, self.cause = seed, mode, late, cause
        again = f"simulate(loop, seeds=[{seed}], modes=[{mode!r}])"
        lines = [f"seed {seed}, mode {mode!r}: {type(cause).__name__}: {cause}", f"run it alone: {again}"]
        if late == 0:
            lines.append("it fails as well when nothing runs late: the order of execution does not matter")
        elif late is not None:
            lines.append(f"the fewest late operations with which it fails: the first {late}")
        super().__init__("\n".join(lines))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.seed, self.mode, self.late, self.cause)


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
        mode = modes[seed % len(modes)]
        failed = _run(loop, device, seed, mode, None, options)
        if failed is not None:
            late = _fewest(loop, device, seed, mode, options) if shrink else None
            raise SimulationError(seed, mode, late, failed) from failed


def _run(
    loop: Callable[[Any], object], device: Any, seed: int, mode: str, late: int | None, options: dict[str, Any]
) -> Exception | None:
    """What the loop fails with."""
    backend = device(seed=seed, mode=mode, late=late, **options)
    try:
        loop(backend)
        backend.synchronize()
    except Exception as error:  # noqa: BLE001  (the loop is the user's: whatever it raises is the finding)
        return error
    finally:
        backend.abandon()
    return None


def _fewest(loop: Callable[[Any], object], device: Any, seed: int, mode: str, options: dict[str, Any]) -> int | None:
    """How many operations must run late, the first ones; None if that cannot be told."""

    def fails(late: int) -> bool:
        return _run(loop, device, seed, mode, late, options) is not None

    if fails(0):
        return 0
    high = 1
    while not fails(high):
        high *= 2
        if high > 1 << 20:
            return None
    low = high // 2  # does not fail, high does
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fails(middle) else (middle, high)
    return high
