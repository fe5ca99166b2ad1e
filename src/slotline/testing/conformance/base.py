"""What the kit's tests share: the fixture that a plugin writes, skips, known failures, and a device that is busy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from numpy.typing import NDArray

import slotline as sl
from slotline.core.errors import nearest
from slotline.core.layout import numpy_dtype

NewBackend = Callable[..., Any]

MOST_ROUNDS = 5
"""How often a backlog is made larger before a call that always outlasts it is said to wait for it."""


def examples(part: float = 1.0, **more: Any) -> settings:
    """The profile's settings, with a part of its examples. The kit's tests run from several classes on purpose."""
    kept = set(settings().suppress_health_check) | {
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.function_scoped_fixture,
        HealthCheck.differing_executors,
    }
    count = max(1, round(part * settings().max_examples))
    return settings(max_examples=count, deadline=None, suppress_health_check=sorted(kept, key=str), **more)


class Kit:
    """The part that every group of tests builds on. A plugin subclasses ``BackendConformance``, not this."""

    known_failures: ClassVar[Mapping[str, str]] = {}
    """Tests that fail on this device, with the reason. One that passes, or that does not exist, is an error."""

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        check_known_failures(cls, cls.known_failures)

    @pytest.fixture
    def new_backend(self) -> NewBackend:
        """What makes a backend: its class, or ``functools.partial`` of it. A subclass writes this one fixture."""
        raise NotImplementedError(
            f"{type(self).__name__} lacks its fixture: @pytest.fixture def new_backend(self): return YourBackend"
        )

    @pytest.fixture
    def backend(self, new_backend: NewBackend) -> Iterator[Any]:
        """A device of its own for each test."""
        made = new_backend()
        yield made
        made.synchronize()
        made.close()

    @pytest.fixture(autouse=True)
    def _as_declared(self, request: pytest.FixtureRequest, backend: Any) -> None:
        """Skips what needs an ability that is not declared, and expects the known failures."""
        test = getattr(type(self), request.function.__name__)
        needed = getattr(test, "conformance_needs", "")
        if needed and not getattr(backend.abilities, needed):
            pytest.skip(f"{type(backend).__name__}.abilities does not declare {needed} (B12)")
        reason = self.known_failures.get(request.function.__name__)
        if reason is not None:
            request.applymarker(pytest.mark.xfail(strict=True, reason=reason))

    # -- a device that is busy

    def queue_work(self, backend: Any, amount: int, stream: Any = None) -> Any:
        """Queue ``amount`` pieces of work, a millisecond or so each, on ``stream`` without waiting; the last's event.

        Here: copies of 4 MiB from one device tensor into another. A plugin may override it, with a kernel that spins,
        say.
        """
        size = 1 << 19
        made = backend.empty([("from", (size,), "int64"), ("to", (size,), "int64")])
        event = backend.async_set_value(made["from"], 1, stream=stream)
        for _ in range(amount):
            event = backend.async_set_value(made["to"], made["from"], stream=stream)
        return event

    def behind_work(self, backend: Any, call: Callable[[], Any], what: str, stream: Any = None) -> Any:
        """``call()`` while the device is busy; its result. ``AssertionError`` if it seems to wait for the device.

        No clock: the call must return at least once before the work queued ahead of it is done. The backlog grows
        until it does, so a slow call on a fast device is no failure.
        """
        for exponent in range(MOST_ROUNDS):
            done = self.queue_work(backend, 8 * 4**exponent, stream)
            result = call()
            if not done.is_done:
                return result
        raise AssertionError(f"{what} returned only after all work queued before it was done, {MOST_ROUNDS} times")


def check_known_failures(kit: type[Kit], known: Mapping[str, str]) -> None:
    """``TypeError`` for a known failure that names no test, or gives no reason."""
    tests = [n for n in dir(kit) if n.startswith("test_")]
    for name, reason in known.items():
        if name not in tests and tests:
            raise TypeError(f"known_failures: {kit.__name__} has no test {name!r}{nearest(name, tests)}")
        if not isinstance(reason, str) or not reason.strip():
            raise TypeError(f"known_failures[{name!r}] is {reason!r}, needed: the reason, in words")


# -- tensors


def tensor(backend: Any, values: Any, dtype: str = "int64", stream: Any = None) -> Any:
    """A device tensor that holds ``values``."""
    array = np.asarray(values)
    made = backend.empty([("t", array.shape, dtype)])["t"]
    backend.async_set_value(made, array if array.size else 0, stream=stream)
    return made


def read(backend: Any, tensor: Any) -> NDArray[Any]:
    """The cells of a tensor, after all queued work."""
    found: NDArray[Any] = backend.read(tensor)
    return found


def has(backend: Any, dtype: str) -> bool:
    """Whether the device, and NumPy, have tensors of a dtype."""
    try:
        numpy_dtype(dtype)
        backend.empty([("t", (1,), dtype)])
    except sl.LayoutError:
        return False
    return True
