"""The kit on one broken device; ``test_broken.py`` runs it in a process of its own."""

from __future__ import annotations

import os

import broken
import pytest

from slotline.testing.conformance import BackendConformance, NewBackend


class TestBroken(BackendConformance):
    @pytest.fixture
    def new_backend(self) -> NewBackend:
        made: NewBackend = getattr(broken, os.environ["SLOTLINE_TEST_BROKEN"])
        return made
