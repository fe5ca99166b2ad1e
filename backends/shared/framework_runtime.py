"""FrameworkRuntime: the runtime interface through a framework alone, and stream objects by their handles.

It copies to and from memory that it allocated itself; tensors of others go by the framework's copies (``addresses``).
"""

from __future__ import annotations

import bisect
import itertools
from abc import abstractmethod
from collections.abc import Iterable
from typing import Any

from slotline.core.device_tensors import DeviceTensors
from slotline.core.errors import DeviceError
from slotline.core.runtime import Copy, Runtime


class StreamBook:
    """The stream objects of a framework that were seen, by native handle; they live as long as they stand here."""

    def __init__(self, names: Iterable[str]) -> None:
        self._names = tuple(names)
        self._streams: dict[int, Any] = {}

    def remember(self, stream: Any, base: Any = None) -> int:
        """The handle of ``stream``, from the first of the names that ``base`` (by default itself) has."""
        of = stream if base is None else base
        name = next((n for n in self._names if hasattr(of, n)), None)
        if name is None:
            raise TypeError(f"a stream of type {type(stream).__name__} has none of {', '.join(self._names)}")
        handle = int(getattr(of, name))
        self._streams[handle] = stream
        return handle

    def get(self, handle: int) -> Any:
        """The object, None if none was seen."""
        return self._streams.get(handle)

    def forget(self, handle: int) -> None:
        self._streams.pop(handle, None)


class FrameworkTensors(DeviceTensors):
    """Tensors of a framework that also makes streams: ``streams`` holds those that were seen."""

    streams: StreamBook

    @abstractmethod
    def stream_object(self, handle: int) -> Any:
        """The framework's object for a native handle; ``ValueError`` where it cannot make one of a foreign handle."""


class FrameworkRuntime(Runtime):
    """A subclass makes streams, events and bytes with its framework, and waits for the device."""

    addresses = False
    framework: str

    def __init__(self, tensors: FrameworkTensors) -> None:
        self.tensors = tensors
        self._numbers = itertools.count(1)
        self._events: dict[int, Any] = {}
        self._bases: list[int] = []
        self._memory: dict[int, Any] = {}

    @abstractmethod
    def _event(self) -> Any:
        """A new event of the framework's."""

    @abstractmethod
    def _bytes(self, nbytes: int) -> Any:
        """A new uint8 tensor on the device."""

    # -- streams and events

    def current_stream(self) -> int:
        return self.tensors.current_stream()

    def destroy_stream(self, stream: int) -> None:
        self.tensors.streams.forget(stream)  # frameworks take their streams from a pool and give none back

    def create_event(self) -> int:
        handle = next(self._numbers)
        self._events[handle] = self._event()
        return handle

    def destroy_event(self, event: int) -> None:
        del self._events[event]

    def record(self, event: int, stream: int) -> None:
        self._events[event].record(self.tensors.stream_object(stream))

    def wait(self, stream: int, event: int) -> None:
        self.tensors.stream_object(stream).wait_event(self._events[event])

    def is_done(self, event: int) -> bool:
        return bool(self._events[event].query())

    def sync_event(self, event: int) -> None:
        self._events[event].synchronize()

    # -- memory

    def allocate(self, nbytes: int) -> int:
        return self._keep(self._bytes(nbytes))

    def _keep(self, tensor: Any) -> int:
        base = int(tensor.data_ptr())
        bisect.insort(self._bases, base)
        self._memory[base] = tensor
        return base

    def free(self, address: int) -> None:
        if address not in self._memory:
            raise DeviceError(self.framework, "free", None, None, f"nothing was allocated at {address:#x}")
        self.synchronize()  # the framework would give it out again while another stream still uses it
        del self._memory[address]
        self._bases.remove(address)

    free_host = free

    def tensor_at(self, address: int, nbytes: int) -> Any:
        at = bisect.bisect_right(self._bases, address) - 1
        if at >= 0:
            base = self._bases[at]
            tensor = self._memory[base][address - base : address - base + nbytes]
            if tensor.shape[0] == nbytes:
                return tensor
        return self._host(address, nbytes)

    @abstractmethod
    def _host(self, address: int, nbytes: int) -> Any:
        """Host memory as a uint8 tensor, without a copy."""

    # -- copies

    def copy(self, dst: int, src: int, nbytes: int, way: Copy, stream: int) -> None:
        with self.tensors.running(stream):
            self._copy(self.tensor_at(dst, nbytes), self.tensor_at(src, nbytes))

    @abstractmethod
    def _copy(self, dst: Any, src: Any) -> None:
        """Queue a copy of bytes on the current stream."""

    def copy_2d(
        self, dst: int, dst_pitch: int, src: int, src_pitch: int, width: int, height: int, way: Copy, stream: int
    ) -> None:
        for row in range(height):
            self.copy(dst + row * dst_pitch, src + row * src_pitch, width, way, stream)
