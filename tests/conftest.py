"""Hypothesis profiles, a cache folder of our own for stevedore (its times are too coarse for tests), and frameworks.

A test that asks for ``framework``, ``cpu`` or ``tensor`` runs once for each framework that is installed.
"""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Callable
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # all arrays here are small, threads only cost; read when NumPy loads

import frameworks
import pytest
from hypothesis import HealthCheck, settings

import slotline as sl

FRAMEWORKS = ("numpy", "torch", "paddle")

os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="slotline-cache-")

_COMMON: dict[str, Any] = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large],
}
settings.register_profile("dev", max_examples=30, **_COMMON)
settings.register_profile("ci", max_examples=100, derandomize=True, **_COMMON)
settings.register_profile("thorough", max_examples=2000, **_COMMON)
settings.load_profile(os.environ.get("SLOTLINE_HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "dev"))


HARDWARE = {"gpu": "a CUDA device", "kunlun": "a Kunlun XPU", "intel": "an Intel GPU"}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests of hardware run only when they are asked for."""
    for mark, device in HARDWARE.items():
        if mark not in config.option.markexpr:
            skip = pytest.mark.skip(reason=f"needs {device}: python -m pytest -m {mark} tests")
            for item in items:
                if item.get_closest_marker(mark):
                    item.add_marker(skip)


@pytest.fixture(scope="session", params=FRAMEWORKS)
def framework(request: pytest.FixtureRequest) -> str:
    """Each framework's name; one that is not installed skips, or fails where all of them are required."""
    name: str = request.param
    if name != "numpy":
        frameworks.require(name)
    return name


@pytest.fixture(scope="session")
def cpu(framework: str) -> sl.Backend:
    """The default device with each framework."""
    return frameworks.backend(framework)


@pytest.fixture(scope="session")
def tensor(framework: str) -> Callable[..., Any]:
    """``tensor(values, dtype=None)``: a tensor of the framework, in memory of its own, made without slotline."""
    return functools.partial(frameworks.tensor, framework)
