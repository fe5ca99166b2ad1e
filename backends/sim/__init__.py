"""The simulated device: streams that run as late as the rules allow, and a detector that finds races.

A backend like any other, chosen by name only: engines run on it in their own tests. See ``docs/sim.md``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from slotline.backends.sim.apply import SimApplier
from slotline.backends.sim.kernels import EngineKernels, read_only
from slotline.backends.sim.machine import Machine
from slotline.backends.sim.memory import POISON
from slotline.backends.sim.report import Race
from slotline.backends.sim.runtime import SimRuntime
from slotline.backends.sim.tensor import SimTensor, inside
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

    # -- streams, for an engine's loop

    def new_stream(self) -> int:
        """A stream of its own; a handle for ``stream=`` and ``on_stream``."""
        return self.runtime.create_stream()

    def on_stream(self, stream: Any) -> AbstractContextManager[int]:
        """Inside, ``stream`` is this thread's current stream."""
        return self._sim.on_stream(self.stream(stream))

    def record(self, stream: Any = None) -> Event:
        """An event behind what is queued on ``stream`` now; ``event.wait(other)``, ``event.sync()``."""
        return self._event(self.stream(stream))

    @functools.cached_property
    def engine(self) -> EngineKernels:
        """``read``, ``write`` and ``kernel``: an engine's own kernels on the simulated device."""
        return EngineKernels(self)

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
        ins = {key: read_only(inside(self._own(t))) for key, t in reads.items()}
        outs = {key: inside(self._own(t)) for key, t in writes.items()}

        def run() -> None:
            for key in fills:  # it must write them whole
                outs[key].reshape(-1).view(np.uint8)[...] = POISON
            fn(ins, outs)
            kept.clear()

        kept = {**{f"r{k}": t for k, t in reads.items()}, **{f"w{k}": t for k, t in writes.items()}}
        machine, handle = self.machine, self.stream(stream)
        both = [a for key, a in outs.items() if key not in fills]
        machine.enqueue(
            handle,
            f"step function {getattr(fn, '__qualname__', 'fn')!r}",
            run,
            [machine.array(a) for a in (*ins.values(), *both) if a.size],
            [machine.array(a) for a in outs.values() if a.size],
        )
        return self._event(handle)

    def _own(self, tensor: Any) -> SimTensor:
        self.inspect(tensor)
        own: SimTensor = tensor
        return own
