"""Usable, but its driver prints to the process's own stdout, before and after the probe, and not in UTF-8."""

import atexit
import os

from hostmem import HostMemory

import slotline as sl


class Backend(HostMemory):
    name = "noisy"

    @classmethod
    def _probe(cls, *, framework, vendor, device):
        os.write(1, b"driver \xff\xfe starts\n")
        atexit.register(os.write, 1, b"driver ends\n")
        return sl.Probe(usable=True)
