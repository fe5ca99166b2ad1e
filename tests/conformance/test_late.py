"""The kit on a late device without a race detector, and on one whose uploads wait (B12)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from late import LateBackend

from slotline.testing.conformance import BackendConformance, NewBackend


class Waiting(LateBackend):
    name = "waiting"
    abilities = replace(LateBackend.abilities, async_upload=False, pinned_memory=False)


class TestLate(BackendConformance):
    @pytest.fixture
    def new_backend(self) -> NewBackend:
        return LateBackend


class TestWaiting(BackendConformance):
    @pytest.fixture
    def new_backend(self) -> NewBackend:
        return Waiting
