"""Tensors of each framework, beside the fixture ``framework`` of conftest.py: for tests that make many of them."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import re
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
from hypothesis import settings
from numpy.typing import NDArray

import slotline as sl
from slotline.core.live import owner

INSTALLED = [name for name in ("numpy", "torch", "paddle") if importlib.util.find_spec(name) is not None]


GATE = (Path(__file__).parents[1] / ".ci" / "run").read_text()
WITH_ALL = re.findall(r"-k '(.*)'", GATE)[0].split(" or ")
"""Words of the ids of tests that the gate runs with all frameworks and kernels installed."""


def require(package: str, all_of: str = "FRAMEWORKS") -> None:
    """Skip the running test if ``package`` is not installed; fail where all must be (``SLOTLINE_TEST_REQUIRE_...``).

    The gate runs such tests a second time, with everything installed, and picks them by words of their ids.
    """
    running = os.environ.get("PYTEST_CURRENT_TEST", "")
    assert any(word in running.lower() for word in WITH_ALL), f"{running} needs {package}; rename it: {WITH_ALL}"
    if importlib.util.find_spec(package) is None:
        lacking(f"{package} is not installed", all_of)


def lacking(missing: str, all_of: str = "FRAMEWORKS") -> NoReturn:
    """Skip for what is missing, or fail where all must be there."""
    variable = f"SLOTLINE_TEST_REQUIRE_{all_of}"
    if os.environ.get(variable) == "1":
        pytest.fail(f"{missing}, and {variable}=1")
    pytest.skip(missing)


def require_cuda_build(framework: str) -> None:
    """Skip unless the framework is installed, and built for CUDA; for tests on a GPU. It is imported."""
    require(framework)
    backend(framework)  # imports it without its warnings
    module = importlib.import_module(framework)
    if not (module.version.cuda if framework == "torch" else module.is_compiled_with_cuda()):
        pytest.skip(f"{framework} {module.__version__} is built without CUDA; install its CUDA build")


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
