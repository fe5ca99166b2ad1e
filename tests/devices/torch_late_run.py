"""slotline on torch's device ``late``, in a process of its own; run by tests/unit/test_torch_device.py.

    torch_late_run.py CASE

prints one line of JSON.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import torch
import torch_late
from of_parts import OfParts
from sim_loop import LAYOUT, Loop

import slotline as sl
from slotline.backends.shared.torch_tensors import TorchTensors
from slotline.backends.xpu import intel


def device() -> OfParts:
    """The Intel backend's parts on the late device."""
    return OfParts(intel.make(0, "late"))


def loop() -> dict[str, Any]:
    backend = device()
    for number in range(6):
        Loop(backend, number).run(8)
    backend.synchronize()
    return {"retained": backend.retained, "details": backend.details, "staging": backend.staging}


def writes() -> dict[str, Any]:
    backend = device()
    target = backend.empty([("t", (50, 8), "int64")])["t"]
    source, late = np.empty(4, np.int64), 0
    for row in range(50):
        source[:] = row
        sl.async_set_value(target[row, ::2], source)
        sl.async_set_value(target[row, 1::2], torch.from_numpy(source))
        source[:] = -1
        late = max(late, torch_late.module.pending)
    got = backend.read(target)
    return {"right": bool((got == np.arange(50)[:, None]).all()), "late": late, "retained": backend.retained}


def insertion() -> dict[str, Any]:
    backend = device()
    batch = sl.SlotBatch(LAYOUT, backend)
    batch.stats.clear()
    sl.insert_tasks(batch, [sl.PrefillTask(sl.Request(f"r{i}", [3, 4, 5]), 0, 3, [i]) for i in range(3)])
    return batch.stats.as_dict()


def sources() -> dict[str, Any]:
    backend = device()
    target = backend.empty([("t", (4,), "int64")])["t"]
    found: dict[str, Any] = {}
    for name, source, stream in (
        ("foreign stream", 1, 12345),
        ("text", "x", None),
        ("other device", torch.zeros(4, device="meta"), None),
        ("lossy", backend.empty([("f", (4,), "float32")])["f"], None),
    ):
        try:
            sl.async_set_value(target, source, stream=stream)
            found[name] = "accepted"
        except (TypeError, ValueError) as error:
            found[name] = f"{type(error).__name__}: {error}"
    sl.async_set_value(target, [1, 2, 3, 4])
    sl.async_set_value(target[1:], target[:3])  # W7
    found["overlap"] = backend.read(target).tolist()
    own = torch_late.Stream()
    sl.async_set_value(target, [5, 6, 7, 8], stream=own).sync()
    sl.async_set_value(target, [5, 6, 7, 8]).wait(own)
    found["own stream"] = backend.read(target).tolist()
    half = backend.empty([("h", (3,), "bfloat16")])["h"]
    exact = backend.empty([("e", (3,), "float64")])["e"]
    sl.async_set_value(exact, [1 + 2**-8 + 2**-40, -(1 + 2**-8 + 2**-40), float("inf")])
    sl.async_set_value(half, exact)  # W3
    found["rounded"] = backend.read(half).astype(float).tolist()
    return found


if __name__ == "__main__":
    torch_late.register()
    # A device that is filled from Python has no inference mode.
    setattr(TorchTensors, "quiet", lambda tensors: torch.no_grad())  # noqa: B010
    chosen: Any = globals()[sys.argv[1]]
    print(json.dumps(chosen()))
