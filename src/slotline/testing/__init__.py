"""For tests of engines and of backends: counters, and the simulated device under many seeds.

The reference (``slotline.testing.reference``) and the Hypothesis strategies are modules of their own.
"""

from slotline.testing.counters import assert_no_sync
from slotline.testing.simulate import simulate

__all__ = ["assert_no_sync", "simulate"]
