"""Broken on purpose: never comes back from its probe."""

import threading

from hostmem import HostMemory


class Backend(HostMemory):
    name = "hanging"
    priority = 90

    @classmethod
    def _probe(cls, *, framework, vendor, device):
        threading.Event().wait()
