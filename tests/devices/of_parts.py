"""A backend made of given parts, with streams for an engine's loop."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import slotline as sl
from slotline.backends.shared.parts import Parts
from slotline.core.streamed import StreamedBackend


class OfParts(StreamedBackend):
    """``host_steps``: step functions run by copies to the host and back (B11)."""

    name = "xpu"
    frameworks = ("torch", "paddle")

    def __init__(self, parts: Parts, *, host_steps: bool = False, **options: Any) -> None:
        super().__init__(framework=parts.tensors.framework, **options)
        self.abilities = replace(parts.abilities, array_namespace=not host_steps)
        self.details = parts.details
        self.start(parts.runtime, parts.tensors, parts.applier)

    @classmethod
    def _probe(cls, *, framework: str | None, vendor: str | None, device: int) -> sl.Probe:
        return sl.Probe(usable=True)

    def on_stream(self, stream: int) -> AbstractContextManager[Any]:
        return self.tensors.running(stream)
