"""A backend whose name has a capital letter."""

from hostmem import HostMemory


class Backend(HostMemory):
    name = "Upper"
