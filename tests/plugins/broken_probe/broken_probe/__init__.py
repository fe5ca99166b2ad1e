"""Broken on purpose: raises in its probe."""

from hostmem import HostMemory


class Backend(HostMemory):
    name = "brokenprobe"
    priority = 90

    @classmethod
    def _probe(cls, *, framework, vendor, device):
        raise RuntimeError("the driver answered nonsense")
