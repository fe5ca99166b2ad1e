"""slotline on paddle's custom device ``late``, in a process of its own; run by tests/unit/test_paddle_device.py.

    run.py CASE LIBRARY

prints one line of JSON.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import paddle
from of_parts import OfParts
from sim_loop import LAYOUT, Loop

import slotline as sl
from slotline.backends.xpu import kunlun
from slotline.backends.xpu.xpurt import XpuRt

LIBRARY: Any = None


def device(library: XpuRt) -> OfParts:
    """The Kunlun backend's parts on the custom device, with or without the runtime library.

    Step functions want kernels for strided views, which a custom device has not: they run on the host.
    """
    return OfParts(kunlun.make(0, "late", library), host_steps=True)


def pending() -> int:
    """What has been queued and has not run."""
    LIBRARY.late_pending.restype = ctypes.c_ulonglong
    return int(LIBRARY.late_pending())


def waits() -> int:
    found = (ctypes.c_ulonglong * 3)()
    LIBRARY.late_counters(found)
    return int(found[1] + found[2])


class NoViews(Loop):
    """paddle has no strided copy on a custom device; Kunlun has."""

    def _write(self) -> None:
        self.source[:] = self.draw.randint(0, 99)
        row = self.draw.randint(0, 5)
        whole = np.repeat(self.source, 2)
        sl.async_set_value(self.own[row], whole)
        self.want[row] = whole
        whole[:] = self.source[:] = -7


def loop(library: XpuRt) -> dict[str, Any]:
    """An engine's loop against the reference."""
    backend = device(library)
    kind = Loop if library.found else NoViews
    for number in range(3):
        kind(backend, number).run(5)
    backend.synchronize()
    return {"retained": backend.retained, "details": backend.details, "staging": backend.staging}


def writes(library: XpuRt) -> dict[str, Any]:
    """C06, C07: what lands is what the source held at the call, whatever becomes of it."""
    backend = device(library)
    target = backend.empty([("t", (50, 8), "int64")])["t"]
    backend.synchronize()
    source, late = np.empty(8, np.int64), 0
    for row in range(50):
        source[:] = row
        sl.async_set_value(target[row], source)
        source[:] = -1
        late = max(late, pending())
    got = backend.read(target)
    return {"right": bool((got == np.arange(50)[:, None]).all()), "late": late, "retained": backend.retained}


def insertion(library: XpuRt) -> dict[str, Any]:
    """I4, B12: how often an insertion waits."""
    backend = device(library)
    batch = sl.SlotBatch(LAYOUT, backend)
    batch.stats.clear()
    backend.synchronize()
    before, queued = waits(), pending()
    sl.insert_tasks(batch, [sl.PrefillTask(sl.Request(f"r{i}", [3, 4, 5]), 0, 3, [i]) for i in range(3)])
    return {"waits": waits() - before, "queued": pending() - queued, "stats": batch.stats.as_dict()}


def errors(library: XpuRt) -> dict[str, Any]:
    """W9, B9: a failing call keeps its number; a foreign stream is refused."""
    backend = device(library)
    found: dict[str, Any] = {}
    try:
        library.allocate_host(1 << 50)
    except sl.DeviceError as error:
        found["code"] = [error.operation, error.code]
    target = backend.empty([("t", (4,), "int64")])["t"]
    cpu = paddle.zeros([4], dtype="int64").cpu()
    calls: dict[str, Callable[[], Any]] = {
        "foreign": lambda: sl.async_set_value(target, paddle.arange(4), stream=12345),
        "host destination": lambda: backend.async_set_value(cpu, 1),
        "dtype": lambda: backend.async_set_value(target, 0.5),
    }
    for name, call in calls.items():
        try:
            call()
            found[name] = "accepted"
        except (TypeError, ValueError) as error:
            found[name] = f"{type(error).__name__}: {error}"
    sl.async_set_value(target, cpu + 3)
    found["host source"] = backend.read(target).tolist()
    sl.async_set_value(target, target[:1])
    found["overlap"] = backend.read(target).tolist()
    of_paddle: Any = paddle.device
    own = of_paddle.Stream("late:0")
    sl.async_set_value(target, [1, 2, 3, 4], stream=own).sync()
    sl.async_set_value(target, [1, 2, 3, 4]).wait(own)
    found["own stream"] = backend.read(target).tolist()
    return found


def rounding(library: XpuRt) -> dict[str, Any]:
    """W3: float64 of the device into bfloat16 is rounded once."""
    backend = device(library)
    target = backend.empty([("t", (4,), "bfloat16")])["t"]
    exact = np.array([1 + 2**-8 + 2**-40, -(1 + 2**-8 + 2**-40), 1 + 2**-8, np.inf])
    paddle.device.set_device("late:0")
    backend.async_set_value(target, paddle.to_tensor(exact, dtype="float64"))
    got = backend.read(target)
    return {"got": got.astype(float).tolist()}


if __name__ == "__main__":
    case, path = sys.argv[1:3]
    LIBRARY = ctypes.CDLL(path)
    with_library = XpuRt(path if not case.endswith("-plain") else "libxpurt-that-is-missing.so")
    chosen: Any = globals()[case.removesuffix("-plain")]
    print(json.dumps(chosen(with_library)))
