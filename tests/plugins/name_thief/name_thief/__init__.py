"""Claims a name that is reserved for the project itself."""

from hostmem import HostMemory


class Backend(HostMemory):
    name = "cpu"
