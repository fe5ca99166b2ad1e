"""Hypothesis profiles, and a cache folder of our own for stevedore (its times are too coarse for tests)."""

from __future__ import annotations

import os
import tempfile
from typing import Any

from hypothesis import HealthCheck, settings

os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp(prefix="slotline-cache-")

_COMMON: dict[str, Any] = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large],
}
settings.register_profile("dev", max_examples=30, **_COMMON)
settings.register_profile("ci", max_examples=100, derandomize=True, **_COMMON)
settings.register_profile("thorough", max_examples=2000, **_COMMON)
settings.load_profile(os.environ.get("SLOTLINE_HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "dev"))
