"""One name for two makers; ``SLOTLINE_TEST_VENDORS`` says whose device is there, each with its priority (B6)."""

import os

from hostmem import HostMemory

import slotline as sl


class Backend(HostMemory):
    name = "twovendors"
    vendors = ("kunlun", "intel")

    @classmethod
    def rank(cls, vendor):
        return {"kunlun": 60, "intel": 50}[vendor]

    @classmethod
    def _probe(cls, *, framework, vendor, device):
        there = os.environ.get("SLOTLINE_TEST_VENDORS", "").split(",")
        return sl.Probe(usable=vendor in there, reason="" if vendor in there else f"no device of {vendor}")
