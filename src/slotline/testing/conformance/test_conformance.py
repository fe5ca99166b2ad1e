"""The kit on an installed backend: ``pytest --pyargs slotline.testing.conformance -p slotline.testing.plugin``."""

from typing import Any

import pytest

from slotline.testing.conformance import BackendConformance, NewBackend

OPTION = "slotline_new_backend"


class TestBackend(BackendConformance):
    """What ``--backend NAME`` says."""

    @pytest.fixture
    def new_backend(self, request: pytest.FixtureRequest) -> NewBackend:
        made: Any = getattr(request.config, OPTION, None)
        if made is None:
            pytest.fail("which backend? add: -p slotline.testing.plugin --backend NAME", pytrace=False)
        return made  # type: ignore[no-any-return]
