"""Another usable accelerator, of the same priority as the first."""

from hostmem import HostMemory


class SecondBackend(HostMemory):
    name = "second"
    priority = 50
