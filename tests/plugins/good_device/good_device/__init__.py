"""A usable accelerator of the tests: host memory under another name."""

from hostmem import HostMemory


class GoodBackend(HostMemory):
    name = "good"
    priority = 50
