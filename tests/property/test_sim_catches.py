"""One line of slotline spoilt on purpose: the simulated device finds each within 200 seeds, and by its own fault.

Each sabotage is what that line would be if it were forgotten.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sim_loop import Loop

from slotline.backends.sim import Race
from slotline.core import commit, staging, streamed, streams, strided, ticket, transfers, values
from slotline.core.device import DONE
from slotline.core.runtime import Copy
from slotline.testing.simulate import SimulationError, simulate

Patch = pytest.MonkeyPatch


def loop(backend: Any) -> None:
    Loop(backend, backend.seed).run()


def released_before_its_event(patch: Patch) -> None:
    patch.setattr(staging.StagingRing, "hold", lambda ring, block, event: setattr(block, "event", DONE))


def source_not_copied(patch: Patch) -> None:
    def put(self: Any, data: Any, stream: int, operation: str, stats: Any, queue: Any) -> Any:
        queue(data.ctypes.data, Copy.HOST_TO_DEVICE)
        event = self.events.record(stream)
        self.retain(event, data)  # alive, or the copy would read whatever lies there then
        return event

    def from_host(src: Any, dtype: str, shape: tuple[int, ...], checked: bool = True) -> Any:
        same = isinstance(src, np.ndarray) and (src.dtype, src.shape) == (np.dtype(dtype), shape)
        return src if same else original(src, dtype, shape, checked)

    original = values.from_host
    patch.setattr(values, "from_host", from_host)
    patch.setattr(transfers.Transfers, "put", put)


def apply_on_the_copy_stream(patch: Patch) -> None:
    original = streamed.StreamedBackend.start

    def start(self: Any, runtime: Any, tensors: Any, applier: Any, **options: Any) -> None:
        run = applier.run
        original(self, runtime, tensors, applier, **options)
        applier.run = lambda image, address, bound, _stream: run(image, address, bound, self.transfers._copy_stream)

    patch.setattr(streamed.StreamedBackend, "start", start)


def event_wait_left_out(patch: Patch) -> None:
    patch.setattr(streams.StreamEvent, "wait", lambda event, stream=None: None)


def no_epoch_check(patch: Patch) -> None:
    def places(self: Any) -> Any:
        found = original(self)
        then = np.array(self.inside, np.intp)
        found[ticket.PLACE, then] = found[ticket.SOURCE, then] = then
        return found

    original, tell = ticket.Ticket.places, commit._tell_host
    patch.setattr(ticket.Ticket, "places", places)
    # The host's own books stay right: it is the device that applies what has no owner any more.
    patch.setattr(commit, "_tell_host", lambda batch, step, _places: tell(batch, step, original(step)))


def strided_taken_for_contiguous(patch: Patch) -> None:
    def runs(info: Any) -> Any:
        nbytes = int(np.prod(info.shape)) * np.dtype(info.dtype).itemsize
        return [strided.Run(0, nbytes, 0, nbytes, nbytes, 1)]

    patch.setattr(streamed, "_runs", runs)


def result_read_before_its_copy(patch: Patch) -> None:
    original = transfers.Landing.bytes

    def at_once(self: Any) -> Any:
        self.event = DONE
        return original(self)

    patch.setattr(transfers.Landing, "bytes", at_once)


def race(where: str, *operations: str) -> Callable[[Exception], bool]:
    """A race on what is called ``where``, of operations that are called so, whichever came first."""

    def is_it(cause: Exception) -> bool:
        if not isinstance(cause, Race) or not cause.where.startswith(where):
            return False
        return all(any(o.name.startswith(name) for o in (cause.before, cause.after)) for name in operations)

    return is_it


def wrong(what: str) -> Callable[[Exception], bool]:
    """An assertion of the loop about ``what``."""
    return lambda cause: type(cause) is AssertionError and str(cause).startswith(what)


SABOTAGES: dict[Callable[[Patch], None], Callable[[Exception], bool]] = {
    released_before_its_event: race(
        "page-locked host memory", "a copy from the host to the device", "the release of the memory"
    ),
    source_not_copied: wrong("the engine's own buffer"),
    apply_on_the_copy_stream: race("field '", "the apply of 'insert'", "step function"),
    event_wait_left_out: race("device memory", "a copy from the host to the device", "the apply of 'insert'"),
    no_epoch_check: wrong("the results of a step"),
    strided_taken_for_contiguous: wrong("the engine's own buffer"),
    result_read_before_its_copy: race(
        "page-locked host memory", "a copy from the device to the host", "a read by the host"
    ),
}


def test_the_loop_is_clean_as_it_is() -> None:
    simulate(loop, seeds=40)


@pytest.mark.parametrize("mode", ["late", "random"])
@pytest.mark.parametrize("sabotage", SABOTAGES, ids=lambda sabotage: sabotage.__name__)
def test_a_sabotage_is_found_by_its_own_fault(sabotage: Callable[[Patch], None], mode: str, monkeypatch: Patch) -> None:
    sabotage(monkeypatch)
    with pytest.raises(SimulationError) as caught:
        simulate(loop, seeds=200, modes=[mode])
    cause = caught.value.cause
    assert isinstance(cause, Exception)
    assert SABOTAGES[sabotage](cause), f"{type(cause).__name__}: {cause}"


def test_another_failure_is_not_taken_for_the_fault() -> None:
    """The sabotages' causes are told from each other, and from a crash."""
    for cause in (IndexError("the results of a step"), AssertionError("something else"), AssertionError()):
        assert not any(expected(cause) for expected in SABOTAGES.values())
