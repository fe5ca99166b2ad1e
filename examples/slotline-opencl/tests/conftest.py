"""A backend on the first OpenCL device, and work that keeps it busy."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # all arrays here are small; read when NumPy loads
os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="slotline-opencl-")  # of stevedore and of PoCL

import numpy as np
import pyopencl as cl
import pytest
from hypothesis import HealthCheck, settings
from slotline_opencl import OpenclBackend

import slotline as sl

_COMMON: dict[str, Any] = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large],
}
settings.register_profile("dev", max_examples=30, **_COMMON)
settings.register_profile("ci", max_examples=100, derandomize=True, **_COMMON)
settings.register_profile("thorough", max_examples=2000, **_COMMON)
settings.load_profile(os.environ.get("SLOTLINE_HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "dev"))

_BUSY = """
__kernel void busy(__global volatile long* cells, long count) {
  long sum = 0;
  for (long i = 0; i < count; i++) sum += cells[i & 7];
  cells[8] = sum;
}
"""

Busy = Callable[..., sl.Event]


@pytest.fixture(scope="module")
def backend() -> Iterator[OpenclBackend]:
    made = OpenclBackend()
    tensors = made.empty([("x", (4,), "int32")])
    made.async_set_value(tensors["x"], 1)  # maps staging memory, which on a device of one thread waits
    made.read(tensors.pop("x"))
    yield made
    made.close()


@pytest.fixture
def side_by_side(backend: OpenclBackend) -> None:
    """For tests where something else must run while the device is busy."""
    if backend.queue().device.max_compute_units < 2:
        pytest.skip("the device does one thing at a time")


@pytest.fixture(scope="module")
def busy(backend: OpenclBackend) -> Busy:
    """``busy(stream=None)`` queues a kernel of half a second, on one thread of the device, and gives its event.

    Skips where the driver runs what is queued at once, as simulators do: nothing can be found out there.
    """
    queue = backend.queue()
    kernel = cl.Kernel(cl.Program(queue.context, _BUSY).build(), "busy")
    flags = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
    cells = cl.Buffer(queue.context, flags, hostbuf=np.zeros(9, np.int64))

    def launch(on: cl.CommandQueue, count: int) -> cl.Event:
        kernel.set_args(cells, np.int64(count))
        event = cl.enqueue_nd_range_kernel(on, kernel, (1,), (1,))
        on.flush()
        return event

    launch(queue, 1000).wait()  # compiled
    count, seconds = 1 << 12, 0.0
    while seconds < 0.05:
        count *= 2
        start = time.perf_counter()
        launch(queue, count).wait()
        seconds = time.perf_counter() - start
    count *= 10
    raw = launch(queue, count)
    at_once = raw.command_execution_status == cl.command_execution_status.COMPLETE
    raw.wait()
    if at_once:
        pytest.skip("the driver runs what is queued at once")

    def run(stream: Any = None) -> sl.Event:
        launch(backend.queue(stream), count)
        return backend.record(stream)

    return run
