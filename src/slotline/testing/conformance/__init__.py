"""The conformance kit: a device that passes it does what slotline promises (rule B8 and all that it rests on).

Subclass ``BackendConformance`` with one fixture::

    class TestMine(BackendConformance):
        @pytest.fixture
        def new_backend(self):
            return MyBackend

or run it for an installed backend: ``slotline conformance NAME``. Each test names its rule, see ``rules.RULES``. The
reference that results are compared with shares no code with what is tested. ``docs/write-a-backend.md`` goes through
it.
"""

import pytest

_PARTS = ("base", "batches", "late_operations", "lifetimes", "operations", "packets", "sequences", "streams", "writes")
pytest.register_assert_rewrite(*(f"{__name__}.{part}" for part in _PARTS))

from slotline.testing.conformance.base import NewBackend, examples  # noqa: E402  (asserts are rewritten before)
from slotline.testing.conformance.batches import Batches  # noqa: E402
from slotline.testing.conformance.lifetimes import Lifetimes  # noqa: E402
from slotline.testing.conformance.packets import Packets  # noqa: E402
from slotline.testing.conformance.sequences import Sequences  # noqa: E402
from slotline.testing.conformance.streams import Streams  # noqa: E402
from slotline.testing.conformance.writes import Writes  # noqa: E402
from slotline.testing.rules import RULES, rule  # noqa: E402


class BackendConformance(Sequences, Lifetimes, Batches, Packets, Streams, Writes):  # pytest begins with the last
    """All tests. A subclass writes the fixture ``new_backend`` and may set ``known_failures``, ``queue_work``."""


__all__ = ["RULES", "BackendConformance", "NewBackend", "examples", "rule"]
