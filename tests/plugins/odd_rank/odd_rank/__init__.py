"""Broken on purpose: its rank is no number, so that it could not be compared with others."""

from hostmem import HostMemory


class Backend(HostMemory):
    name = "oddrank"

    @classmethod
    def rank(cls, vendor):
        return "high"
