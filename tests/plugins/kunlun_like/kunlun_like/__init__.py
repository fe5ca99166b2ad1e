"""An accelerator that declares a higher priority, as Kunlun does over CUDA (B5)."""

from hostmem import HostMemory


class KunlunBackend(HostMemory):
    name = "kunlunlike"
    vendor = "kunlun"
    priority = 60
