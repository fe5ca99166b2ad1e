"""The CUDA backend on a fake of CUDA's runtime that executes late, on the machine of the simulated device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import fake_cuda
import pytest

import slotline as sl
from slotline.backends.cuda import CudaBackend, apply_nvrtc, parts
from slotline.backends.sim.kernels import queue_launch
from slotline.backends.sim.machine import Machine
from slotline.backends.sim.runtime import SimRuntime
from slotline.backends.sim.tensors import SimTensors


class Backend(CudaBackend):
    """The CUDA backend with what an engine's loop needs for its own streams."""

    machine: Machine
    sim: SimRuntime

    @classmethod
    def _probe(cls, *, framework: str | None, vendor: str | None, device: int) -> sl.Probe:
        """The fake has one device; what the real probe says of this machine is tested elsewhere."""
        return sl.Probe(usable=device == 0, reason="" if device == 0 else f"there is no device {device}")

    def on_stream(self, stream: int) -> AbstractContextManager[Any]:
        return self.sim.on_stream(stream)

    def _launch(self, fn: Any, reads: Any, writes: Any, stream: Any, stats: Any, fills: Any) -> Any:
        """As with a framework: step functions are kernels in the order of their stream."""
        return queue_launch(self, self.machine, fn, reads, writes, self.stream(stream), fills)


@contextmanager
def cuda_device(seed: int = 0, mode: str = "late") -> Iterator[tuple[Callable[..., Any], fake_cuda.FakeRuntime]]:
    """What makes backends on one fake device, and the fake."""
    machine = Machine(seed, mode)
    with fake_cuda.installed(machine) as fake, pytest.MonkeyPatch.context() as patch:
        patch.setattr(apply_nvrtc, "compiled", lambda architecture: b"code for " + architecture.encode())
        patch.setattr(parts, "make_tensors", lambda framework, device: SimTensors(fake.sim))
        patch.setattr(parts, "find_spec", lambda name: None)
        patch.setattr(parts, "_applier", lambda framework, runtime, device, tensors: (
            apply_nvrtc.NvrtcApplier(runtime, device, tensors.inspect), []))  # fmt: skip

        def make(**options: Any) -> Any:
            backend = Backend(framework="torch", **options)
            backend.machine, backend.sim = machine, fake.sim
            return backend

        yield make, fake


@contextmanager
def cuda_backend(seed: int = 0, mode: str = "late", **options: Any) -> Iterator[tuple[Any, fake_cuda.FakeRuntime]]:
    """A backend on a fake of its own."""
    with cuda_device(seed, mode) as (make, fake):
        yield make(**options), fake
