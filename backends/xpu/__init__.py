"""XPUs of two makers: Kunlun's with paddle, Intel's with torch (rule B6)."""

from __future__ import annotations

from typing import Any

from slotline.backends.xpu import intel, kunlun
from slotline.core.backend import Abilities, Probe
from slotline.core.errors import BackendUnavailable
from slotline.core.streamed import StreamedBackend

_FRAMEWORKS = {"kunlun": "paddle", "intel": "torch"}


class XpuBackend(StreamedBackend):
    """One XPU of ``vendor``; ``device`` is its index."""

    name = "xpu"
    vendors = ("kunlun", "intel")
    frameworks = ("paddle", "torch")
    priority = 90
    abilities = Abilities(streams=True, array_namespace=True)

    def __init__(self, *, framework: str | None = None, vendor: str | None = None, **options: Any) -> None:
        _require_match(vendor, framework)
        super().__init__(framework=_FRAMEWORKS[vendor or "kunlun"], vendor=vendor, **options)
        parts = kunlun.make(self.device) if self.vendor == "kunlun" else intel.make(self.device)
        self.abilities = parts.abilities
        self.start(parts.runtime, parts.tensors, parts.applier)

    @classmethod
    def rank(cls, vendor: str | None) -> int | None:
        return 110 if vendor == "kunlun" else cls.priority  # Kunlun answers CUDA's probe too: it must be above cuda

    @classmethod
    def _probe(cls, *, framework: str | None, vendor: str | None, device: int) -> Probe:
        if vendor is None:
            raise BackendUnavailable(f"xpu stands for {' and '.join(cls.vendors)}; choose with SLOTLINE_VENDOR")
        _require_match(vendor, framework)
        return kunlun.find(device) if vendor == "kunlun" else intel.find(device)


def _require_match(vendor: str | None, framework: str | None) -> None:
    needed = _FRAMEWORKS.get(vendor or "kunlun")
    if framework is not None and framework != needed:
        raise BackendUnavailable(f"xpu of {vendor} works with {needed}, not with {framework}")
