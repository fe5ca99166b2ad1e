"""The apply as one Triton kernel, for every device that torch's Triton has."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slotline.compat.frameworks import find
from slotline.core import image as images
from slotline.core.applier import Applier
from slotline.core.device import TensorInfo
from slotline.core.errors import BackendUnavailable
from slotline.core.image import Image
from slotline.core.layout import BufferLayout


class Bound(NamedTuple):
    """The destination table as a tensor of the device, and the buffers that it points into."""

    table: Any
    address: int
    buffers: Sequence[Any]


class TritonApplier(Applier):
    """One launch for each image, on torch's current stream.

    - ``upload``: an int64 array as a tensor of the device, once for each batch.
    - ``inspect``: shape, strides and address of a tensor.

    Raises ``BackendUnavailable`` with the reason where Triton is missing or has no driver for the device.
    """

    name = "triton"
    packed = True

    def __init__(self, upload: Callable[[NDArray[np.int64]], Any], inspect: Callable[[Any], TensorInfo | None]) -> None:
        self._kernel = usable()
        self._upload, self._inspect = upload, inspect

    def bind(self, layout: BufferLayout, buffers: Sequence[Any]) -> Bound:
        table = self._upload(images.targets(layout, [None if b is None else self._inspect(b) for b in buffers]))
        info = self._inspect(table)
        assert info is not None
        return Bound(table, info.pointer, buffers)

    def run(self, image: Image, address: int, bound: Bound, stream: int) -> int:
        meta = image.meta
        if not meta.programs:
            return 0
        launch = self._kernel.launch
        launch(address, bound.address, meta.numbers_at, meta.payload_at, meta.work_at, meta.programs)
        return 1


def usable() -> ModuleType:
    """The kernel's module. ``BackendUnavailable``: Triton is missing, broken, or drives no device here."""
    if find_spec("triton") is None:
        raise BackendUnavailable("triton is not installed; it comes with torch's builds for GPUs")
    triton = find("triton", "torch")
    try:
        interprets = bool(triton.knobs.runtime.interpret)
    except AttributeError:  # before 3.3
        interprets = False
    if not interprets:
        try:
            triton.runtime.driver.active.get_current_target()
        except RuntimeError as error:
            raise BackendUnavailable(f"Triton has no active driver: {error}") from error
    from slotline.backends.shared import triton_kernel

    return triton_kernel
