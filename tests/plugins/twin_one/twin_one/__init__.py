"""One of two distributions with one backend name."""

from hostmem import HostMemory


class Backend(HostMemory):
    name = "twin"
    priority = 40
