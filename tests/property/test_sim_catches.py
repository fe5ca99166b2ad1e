"""One line of slotline spoilt on purpose: the simulated device finds each of them within 200 seeds.

Each sabotage is what that line would be if it were forgotten.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sim_loop import Loop

from slotline.core import staging, streamed, streams, strided, ticket, transfers, values
from slotline.core.device import DONE
from slotline.core.runtime import Copy
from slotline.testing.simulate import simulate

Patch = pytest.MonkeyPatch


def loop(backend: Any) -> None:
    Loop(backend, backend.seed).run()


def released_before_its_event(patch: Patch) -> None:
    patch.setattr(staging.StagingRing, "hold", lambda ring, block, event: setattr(block, "event", DONE))


def source_not_copied(patch: Patch) -> None:
    def put(self: Any, data: Any, stream: int, operation: str, stats: Any, queue: Any) -> Any:
        queue(data.ctypes.data, Copy.HOST_TO_DEVICE)
        return self.events.record(stream)

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

    original = ticket.Ticket.places
    patch.setattr(ticket.Ticket, "places", places)


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


SABOTAGES = {
    f.__name__: f
    for f in (
        released_before_its_event,
        source_not_copied,
        apply_on_the_copy_stream,
        event_wait_left_out,
        no_epoch_check,
        strided_taken_for_contiguous,
        result_read_before_its_copy,
    )
}


def test_the_loop_is_clean_as_it_is() -> None:
    simulate(loop, seeds=40)


@pytest.mark.parametrize("name", SABOTAGES)
def test_a_sabotage_is_found(name: str, monkeypatch: Patch) -> None:
    SABOTAGES[name](monkeypatch)
    with pytest.raises(Exception, match="seed"):
        simulate(loop, seeds=200)
