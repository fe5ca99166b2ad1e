"""CUDA devices, with torch's or paddle's tensors: asynchronous copies from pinned memory, one apply kernel a packet.

The runtime is reached through ``cuda-bindings`` where they are installed, else through the framework alone.
"""

from __future__ import annotations

from typing import Any

from slotline.backends.cuda.parts import choose_framework, find, make
from slotline.core.backend import Abilities, Probe
from slotline.core.streamed import StreamedBackend


class CudaBackend(StreamedBackend):
    """One GPU. ``device`` is its index; streams in every form of rule B9."""

    name = "cuda"
    frameworks = ("torch", "paddle")
    priority = 100
    abilities = Abilities(
        streams=True, pinned_memory=True, async_upload=True, packed_apply=True, array_namespace=True
    )  # fmt: skip

    def __init__(self, *, framework: str | None = None, **options: Any) -> None:
        super().__init__(framework=choose_framework(framework), **options)
        parts = make(self.framework, self.device)
        self.abilities = parts.abilities
        self.start(parts.runtime, parts.tensors, parts.applier)

    @classmethod
    def _probe(cls, *, framework: str | None, vendor: str | None, device: int) -> Probe:
        return find(framework, device)
