"""Broken on purpose: its probe answers with a bare truth value."""

from hostmem import HostMemory


class Backend(HostMemory):
    name = "wrongprobe"
    priority = 90

    @classmethod
    def _probe(cls, *, framework, vendor, device):
        return True
