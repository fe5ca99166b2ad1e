"""Tensors of each framework, beside the fixture ``framework`` of conftest.py: for tests that make many of them."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from typing import Any

import numpy as np
from hypothesis import settings
from numpy.typing import NDArray

import slotline as sl
from slotline.core.live import owner

INSTALLED = [name for name in ("numpy", "torch", "paddle") if importlib.util.find_spec(name) is not None]


@functools.cache
def backend(framework: str) -> sl.Backend:
    """The default device, one for each framework."""
    return sl.load_backend("cpu", framework=framework)


def tensor(framework: str, values: Any, dtype: str | None = None) -> Any:
    """``values`` as a tensor of the framework, in memory of its own, made without slotline."""
    array = np.array(values, dtype)
    if framework == "numpy":
        return array
    module = importlib.import_module(framework)
    return module.from_numpy(array) if framework == "torch" else module.to_tensor(array)


def host(value: Any) -> NDArray[Any]:
    """A tensor of any framework as a NumPy array."""
    if isinstance(value, np.ndarray):
        return value
    if type(value).__module__.startswith("slotline."):  # of the simulated device: wait first
        return owner(value).read(value)
    array: NDArray[Any] = value.numpy()
    return array


def fewer(part: int, framework: str = "numpy") -> settings:
    """The profile's settings with a part of its examples; fewer still on frameworks whose calls take longer."""
    slow = 1 if framework == "numpy" else 3
    return settings(max_examples=max(4, settings().max_examples // (part * slow)))
