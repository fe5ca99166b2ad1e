"""The simulated device: streams that run as late as the rules allow, and a detector that finds races.

A backend like any other, chosen by name only: engines run on it in their own tests. See ``docs/sim.md``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from slotline.backends.sim.apply import SimApplier
from slotline.backends.sim.kernels import EngineKernels, queue_launch
from slotline.backends.sim.machine import Machine
from slotline.backends.sim.report import Race
from slotline.backends.sim.runtime import SimRuntime
from slotline.backends.sim.tensor import SimTensor
from slotline.backends.sim.tensors import SimTensors
from slotline.core import live
from slotline.core.backend import Abilities, Probe
from slotline.core.device import Event
from slotline.core.stats import Stats
from slotline.core.streamed import StreamedBackend

__all__ = ["Machine", "Race", "SimBackend", "SimTensor"]


class SimBackend(StreamedBackend):
    """One simulated device. ``seed``, ``mode``, ``collect`` and ``late`` are those of ``Machine``."""

    name = "sim"
    frameworks = ("numpy",)
    device_count = 1
    abilities = Abilities(
        streams=True, pinned_memory=True, async_upload=True, packed_apply=True, array_namespace=True
    )  # fmt: skip

    def __init__(
        self,
        *,
        seed: int | None = None,
        mode: str | None = None,
        collect: bool = False,
        late: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.seed = seed or 0
        self.machine = Machine(self.seed, mode or "late", collect=collect, late=late)
        runtime = SimRuntime(self.machine)
        self._sim = runtime
        self.start(runtime, SimTensors(runtime), SimApplier(self.machine))

    @classmethod
    def _probe(cls, *, framework: str | None, vendor: str | None, device: int) -> Probe:
        return Probe(usable=True, versions={"numpy": np.__version__}, details={"staging": "simulated, pinned"})

    def _allocate(self, specs: Sequence[tuple[str, tuple[int, ...], str]]) -> list[Any]:
        tensors = super()._allocate(specs)
        for (name, _, _), tensor in zip(specs, tensors, strict=True):
            if name:
                self.engine.name(tensor, repr(name))
        return tensors

    # -- streams, for an engine's loop

    def on_stream(self, stream: Any) -> AbstractContextManager[int]:
        """Inside, ``stream`` is this thread's current stream."""
        return self._sim.on_stream(self.stream(stream))

    def record(self, stream: Any = None) -> Event:
        """An event behind what is queued on ``stream`` now; ``event.wait(other)``, ``event.sync()``."""
        return self._event(self.stream(stream))

    def read(self, tensor: Any, operation: Any = "read", stats: Any = None, *, rows: Any = None) -> Any:
        """``read(tensor)``: a host copy after all queued work, an array.

        ``read(buffer, rows, stream)``: a kernel of the engine on ``stream`` that reads ``rows``, see
        ``EngineKernels.read``; it gives a ``Download``, and nothing waits.
        """
        if rows is None and isinstance(operation, str):
            return super().read(tensor, operation, stats)
        return self.engine.read(tensor, operation if rows is None else rows, stats)

    def write(self, buffer: SimTensor, rows: Any = None, source: Any = 0, stream: Any = None) -> Event:
        """A kernel of the engine on ``stream`` that writes ``source`` into ``rows``: ``EngineKernels.write``."""
        return self.engine.write(buffer, rows, source, stream)

    @functools.cached_property
    def engine(self) -> EngineKernels:
        """``read``, ``write`` and ``kernel``: an engine's own kernels on the simulated device."""
        return EngineKernels(self)

    @property
    def races(self) -> list[Race]:
        """What was found, of a device made with ``collect=True``."""
        return self.machine.races

    @property
    def queued(self) -> int:
        """Operations that were queued so far."""
        return self.machine.schedule.queued

    @property
    def last_late(self) -> str:
        """The last of the operations that ``late`` lets run late, for reports; empty if there is none."""
        operation = self.machine.last_late
        return operation.text() if operation is not None else ""

    def finding(self, error: Exception) -> Exception:
        """``error``, or the race behind it: what cleans up after a race runs what is queued, which may fail too."""
        behind: BaseException | None = error
        while behind is not None and not isinstance(behind, Race):
            behind = behind.__context__
        return error if behind is None else behind.with_traceback(error.__traceback__)

    def abandon(self) -> None:
        """Drop everything, what is still queued too; for loops that have failed."""
        live.leave(self)
        self.machine.abandon()

    # -- step functions

    def _launch(
        self,
        fn: Callable[..., None],
        reads: Mapping[str, Any],
        writes: Mapping[str, Any],
        stream: Any,
        stats: Stats,
        fills: Collection[str],
    ) -> Event:
        return queue_launch(self, self.machine, fn, reads, writes, self.stream(stream), fills)
