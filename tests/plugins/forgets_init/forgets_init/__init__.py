"""Broken on purpose: does not let the base class begin."""

from hostmem import HostMemory


class Backend(HostMemory):
    name = "forgetsinit"

    def __init__(self, **options):
        self.options = options
