"""The apply on the simulated device: one kernel that reads the image where it lies, when it runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slotline.backends.sim.machine import Machine
from slotline.core import image as images
from slotline.core.applier import Applier
from slotline.core.device import TensorInfo
from slotline.core.image import Image
from slotline.core.layout import BufferLayout


class SimApplier(Applier):
    """``core.image.run`` as a kernel of a machine."""

    name = "sim"
    packed = True

    def __init__(self, machine: Machine) -> None:
        self.machine = machine

    def bind(self, layout: BufferLayout, buffers: Sequence[Any]) -> Any:
        infos = [None if b is None else _info(b) for b in buffers]
        for f, info in zip(layout, infos, strict=True):
            if info is not None:
                row = info.strides[f.slot_axis] if f.slot_axis is not None and not f.slot_axis else 0
                self.machine.name(info.pointer, f"field {f.name!r}", row)
        return images.targets(layout, infos), list(buffers)

    def run(self, image: Image, address: int, bound: Any, stream: int) -> int:
        table, _ = bound
        machine, meta = self.machine, image.meta
        writes = [a for at, width in image.accesses(table) for a in machine.scattered(at, width)]
        read = machine.region(address, (image.nbytes,), (1,), 1)
        lies = read.allocation.bytes[read.offset : read.offset + image.nbytes]

        def execute() -> None:
            images.run(lies.copy(), meta, table, self._cells)

        machine.enqueue(stream, f"the apply of {image.packet.operation!r}", execute, [read], writes)
        return 1

    def _cells(self, address: int, width: int) -> tuple[NDArray[Any], int]:
        found = self.machine.memory.find(address)
        assert found is not None
        memory = found.bytes.view(np.dtype(f"<u{width}"))
        return memory, (address - found.base) // width


def _info(tensor: Any) -> TensorInfo:
    return TensorInfo(
        shape=tensor.shape, strides=tensor.strides, dtype=tensor.dtype.name, place="sim", pointer=tensor.pointer
    )
