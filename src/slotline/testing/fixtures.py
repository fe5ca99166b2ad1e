"""Fixtures for pytest: ``from slotline.testing.fixtures import assert_no_sync`` in a conftest.py brings them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from slotline.testing import counters


@pytest.fixture(name="assert_no_sync")
def assert_no_sync() -> Callable[..., Any]:
    """``with assert_no_sync(batch): ...``, see ``slotline.testing.assert_no_sync`` (rule O)."""
    return counters.assert_no_sync
