"""Applier: how a packet's image, once it is on the device, is written into the buffers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slotline.core.image import Image
    from slotline.core.layout import BufferLayout


class Applier(ABC):
    """One way of applying; a backend picks the best that works on its device and says which in ``doctor``."""

    name: str
    """One word, for ``doctor``."""
    packed: bool
    """One kernel for the whole image, whatever it holds (I4)."""

    @abstractmethod
    def bind(self, layout: BufferLayout, buffers: Sequence[Any]) -> Any:
        """What ``run`` needs to know of the buffers (None: a field that is not on the device), made once for them.

        Raises ``LayoutError`` naming a field that it cannot write.
        """

    @abstractmethod
    def run(self, image: Image, address: int, bound: Any, stream: int) -> int:
        """Queue the writes of ``image``, which lies at ``address`` on the device, on ``stream``; the kernels launched.

        Called inside ``DeviceTensors.running(stream)``. Nothing of ``image`` on the host is read after the return.
        """


class Bound(Sequence[Any]):
    """Buffers of a layout with what the applier needs to know of them, found out once."""

    def __init__(self, buffers: Sequence[Any], bound: Any) -> None:
        self._buffers, self.bound = tuple(buffers), bound

    def __getitem__(self, index: Any) -> Any:
        return self._buffers[index]

    def __len__(self) -> int:
        return len(self._buffers)
