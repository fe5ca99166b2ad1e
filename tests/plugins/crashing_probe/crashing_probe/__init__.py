"""Broken on purpose: takes its process down in the probe."""

import os

from hostmem import HostMemory


class Backend(HostMemory):
    name = "crashing"
    priority = 90

    @classmethod
    def _probe(cls, *, framework, vendor, device):
        print("garbage on stdout", flush=True)
        os.abort()
