"""Usable; its probe starts a process that goes on, holds what the probe printed to open, and is told by its number."""

import subprocess
import sys

from hostmem import HostMemory

import slotline as sl


class Backend(HostMemory):
    name = "leaves"

    @classmethod
    def _probe(cls, *, framework, vendor, device):
        left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
        return sl.Probe(usable=True, details={"process": str(left.pid)})
