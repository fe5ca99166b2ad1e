"""StreamedBackend: a device with streams, driven through a ``Runtime`` (rules W4 to W7, I4, I6, B9 to B12).

A packet goes in one copy, on a stream of its own, from the staging ring to that ring's twin on the device; the apply
runs on the compute stream behind the copy's event, and therefore behind every reader that was queued before.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from slotline.core import strided, trust, values
from slotline.core.applier import Applier, Bound
from slotline.core.backend import Backend
from slotline.core.device import Download, Event, TensorInfo
from slotline.core.device_tensors import DeviceTensors
from slotline.core.errors import DeviceError
from slotline.core.host_memory import host_bytes
from slotline.core.image import Image
from slotline.core.layout import BufferLayout, numpy_dtype
from slotline.core.runtime import Copy, Runtime
from slotline.core.staging import staging_kind
from slotline.core.stats import Stats
from slotline.core.streams import EventPool
from slotline.core.transfers import Pending, Transfers
from slotline.core.trust import device_work

if TYPE_CHECKING:
    from slotline.core.packet import Packet


class StreamedBackend(Backend):
    """A subclass makes its ``Runtime``, its ``DeviceTensors`` and its ``Applier`` and hands them to ``start``."""

    runtime: Runtime
    tensors: DeviceTensors
    applier: Applier

    def start(self, runtime: Runtime, tensors: DeviceTensors, applier: Applier, *, copy_stream: bool = True) -> None:
        """Begin work. ``copy_stream``: packets travel beside the compute stream. ``TypeError`` for a wrong part."""
        for part, kind in ((runtime, Runtime), (tensors, DeviceTensors), (applier, Applier)):
            trust.require_part(self, part, kind)
        self.runtime, self.tensors, self.applier = runtime, tensors, applier
        pinned, self.staging = staging_kind(runtime) if self.abilities.pinned_memory else (False, "pageable")
        waits = not self.abilities.async_upload
        self.transfers = Transfers(
            EventPool(runtime, tensors.stream_of),
            self.staging_bytes,
            pinned=pinned,
            own_stream=copy_stream and not waits,
            waits=waits,
        )
        # A backend that is dropped gives its memory back; at the end of the process the system does.
        weakref.finalize(self, _close, self.transfers).atexit = False

    # -- tensors

    def _allocate(self, specs: Sequence[tuple[str, tuple[int, ...], str]]) -> list[Any]:
        for name, _, dtype in specs:
            self.tensors.require(name, dtype)
        with self.tensors.running(self.runtime.current_stream()):
            return [self.tensors.empty(shape, dtype) for _, shape, dtype in specs]

    def _inspect(self, tensor: Any) -> TensorInfo | None:
        return self.tensors.inspect(tensor)

    def _why_not(self, tensor: Any) -> str:
        return self.tensors.why_not(tensor)

    def _why_not_written(self, tensor: Any) -> str:
        return self.tensors.why_not_written(tensor)

    def _require_dtype(self, name: str, dtype: str) -> None:
        self.tensors.require(name, dtype)

    def _host_tensor(self, array: NDArray[Any]) -> Any:
        return self.tensors.host_tensor(array)

    def _host_source(self, src: Any) -> Any:
        found = self.tensors.host_view(src)
        return src if found is None else found

    def _namespace(self) -> Any:
        return self.tensors.namespace() if self.abilities.array_namespace else super()._namespace()

    def _destination(self, tensor: Any) -> TensorInfo:
        info = super()._destination(tensor)
        if not strided.cells_apart(info.shape, info.strides, numpy_dtype(info.dtype).itemsize):
            raise ValueError("the destination has several cells in one place; write into a tensor without such axes")
        return info

    # -- streams

    def stream(self, stream: Any = None) -> int:
        """The handle of ``stream`` in any form of B9, the framework's own streams too; None: the current one."""
        return self.transfers.events.handle(stream)

    def new_stream(self) -> int:
        return self.runtime.create_stream()

    def _writable(self, stream: Any, what: str) -> int:
        """The handle of a stream that may be written on; ``DeviceError`` while a graph is captured from it."""
        handle = self.stream(stream)
        if stream is not None:
            with self.tensors.running(handle):  # a stream that the framework does not know is the caller's mistake
                pass
        if self.runtime.is_capturing(handle):
            hint = "a graph is being captured from the stream, and a replay would write the same again; write before or"
            raise DeviceError(self.name, what, None, None, f"{hint} after the capture, replays see it")
        return handle

    def _event(self, stream: int) -> Event:
        return self.transfers.events.record(stream)

    def _synchronize(self) -> None:
        self.runtime.synchronize()
        with self.transfers.lock:
            self.transfers.sweep()

    @property
    def retained(self) -> int:
        """Sources and staging blocks that the device may still read; 0 after ``synchronize``."""
        return self.transfers.retained

    # -- writing

    def async_set_value(self, dst: Any, src: Any, *, stream: Any = None) -> Event:
        info = self._destination(dst)
        handle = self._writable(stream, "async_set_value")
        source = self._seen(src)
        if source is None:
            block = values.from_host(self._host_source(src), info.dtype, info.shape)
            with device_work(self, "async_set_value"):
                return self._set_block(dst, info, block, handle, "async_set_value", self.stats)
        values.check_device_source(source.dtype, info.dtype)
        values.check_shape(source.shape, info.shape)
        with device_work(self, "async_set_value"):
            with self.tensors.running(handle):
                self.tensors.copy(dst, src)
            self.stats.add("kernels", "async_set_value")
            event = self._event(handle)
            self.transfers.retain(event, (dst, src))
        return event

    def _set_block(
        self, dst: Any, info: TensorInfo, block: NDArray[Any], stream: int, operation: str, stats: Stats
    ) -> Event:
        def queue(address: int, way: Copy) -> None:
            self._put(dst, info, address, way, stream)

        if not block.size:
            return self._event(stream)
        event = self.transfers.put(strided.bytes_of(block), stream, operation, stats, queue)
        self.transfers.retain(event, dst)
        return event

    def _set(self, dst: Any, info: TensorInfo, block: NDArray[Any], stream: Any) -> Event:
        """For step functions that run on the host (B11), whose caller counts the transfer."""
        return self._set_block(dst, info, block, self.stream(stream), "launch", Stats())

    def apply(self, packet: Packet, buffers: Sequence[Any], *, stream: Any = None, stats: Stats | None = None) -> Event:
        counted = stats or self.stats
        handle = self._writable(stream, packet.operation)
        bound = buffers.bound if isinstance(buffers, Bound) else self.bind(packet.layout, buffers).bound
        image, operation = Image(packet), packet.operation
        with device_work(self, operation):
            with self.tensors.running(handle), self.transfers.sent(image, handle, operation, counted) as arrived:
                counted.add("kernels", operation, self.applier.run(image, arrived.address, bound, handle))
            self.transfers.retain(arrived.event, (buffers, bound))  # whoever drops the batch meanwhile
        return arrived.event

    def bind(self, layout: BufferLayout, buffers: Sequence[Any]) -> Bound:
        return Bound(buffers, self.applier.bind(layout, buffers))

    def upload(
        self, arrays: Mapping[str, NDArray[Any]], operation: str = "upload", stats: Stats | None = None
    ) -> dict[str, Any]:
        if not self.abilities.array_namespace:  # launch runs on the host
            return super().upload(arrays, operation, stats)
        stream, out = self._writable(None, operation), {}
        with device_work(self, operation):
            for name, array in arrays.items():
                with self.tensors.running(stream):
                    tensor = self.tensors.empty(array.shape, array.dtype.name)
                block = np.ascontiguousarray(array).reshape(array.shape)
                self._set_block(tensor, self.inspect(tensor), block, stream, operation, stats or self.stats)
                out[name] = tensor
        return out

    def _launch(
        self,
        fn: Callable[..., None],
        reads: Mapping[str, Any],
        writes: Mapping[str, Any],
        stream: Any,
        stats: Stats,
        fills: Collection[str],
    ) -> Event:
        handle = self.stream(stream)
        if not self.abilities.array_namespace:
            with self.tensors.running(handle):
                super()._launch(fn, reads, writes, handle, stats, fills)
        else:
            with self.tensors.running(handle):
                fn(reads, writes)
        return self._event(handle)

    # -- reading

    def read(self, tensor: Any, operation: str = "read", stats: Stats | None = None) -> NDArray[Any]:
        counted = stats or self.stats
        self.inspect(tensor)
        counted.add("host_synchronisations", operation)
        with device_work(self, operation):
            self.runtime.synchronize()  # all queued work, not only this stream's
            return self._download(tensor, operation, counted).array()

    def _download(self, tensor: Any, operation: str, stats: Stats) -> Download:
        info = self.inspect(tensor)
        dtype, stream = numpy_dtype(info.dtype), self.runtime.current_stream()
        stats.add("device_to_host", operation)
        nbytes = int(np.prod(info.shape, dtype=np.int64)) * dtype.itemsize
        landing = self.transfers.take(nbytes, stream, lambda address: self._take(tensor, info, address, stream))
        self.transfers.retain(landing.event, tensor)
        return Pending(landing, info.shape, dtype)

    def _write(self, tensor: Any, offset: int, data: memoryview) -> None:
        raise NotImplementedError("a device with streams is written through _put")

    def _read(self, tensor: Any, offset: int, nbytes: int) -> bytes:
        raise NotImplementedError("a device with streams is read through _take")

    # -- raw memory, or the framework's copies where the runtime has no addresses

    def _put(self, dst: Any, info: TensorInfo, address: int, way: Copy, stream: int) -> None:
        """Queue copies of dense memory at ``address`` into the view ``dst``; no stride is ignored (W1)."""
        if not self.runtime.addresses:
            with self.tensors.running(stream):
                self.tensors.copy(dst, self._staged(info, address, on_device=way == Copy.DEVICE_TO_DEVICE))
            return
        for run in _runs(info):
            self._copy(info.pointer + run.left, run.left_pitch, address + run.right, run, run.right_pitch, way, stream)

    def _take(self, tensor: Any, info: TensorInfo, address: int, stream: int) -> None:
        """Queue copies of the view ``tensor`` into dense host memory at ``address``."""
        if not self.runtime.addresses:
            with self.tensors.running(stream):
                self.tensors.copy(self._staged(info, address), tensor)
            return
        for run in _runs(info):
            way = Copy.DEVICE_TO_HOST
            self._copy(address + run.right, run.right_pitch, info.pointer + run.left, run, run.left_pitch, way, stream)

    def _staged(self, info: TensorInfo, address: int, *, on_device: bool = False) -> Any:
        """Own memory as a dense tensor like the one that ``info`` tells of; that of the host as it lies, uncopied."""
        dtype = numpy_dtype(info.dtype)
        nbytes = math.prod(info.shape) * dtype.itemsize
        if on_device:
            return self.tensors.viewed(self.runtime.tensor_at(address, nbytes), info.dtype, info.shape)
        return self.tensors.host_tensor(host_bytes(address, nbytes).view(dtype).reshape(info.shape))

    def _copy(
        self, dst: int, dst_pitch: int, src: int, run: strided.Run, src_pitch: int, way: Copy, stream: int
    ) -> None:
        if run.height == 1:
            self.runtime.copy(dst, src, run.width, way, stream)
        else:
            self.runtime.copy_2d(dst, dst_pitch, src, src_pitch, run.width, run.height, way, stream)

    def close(self) -> None:
        super().close()
        self.transfers.close()


def _close(transfers: Transfers) -> None:
    with suppress(DeviceError):  # a device that is lost has taken its memory with it
        transfers.close()


def _runs(info: TensorInfo) -> list[strided.Run]:
    itemsize = numpy_dtype(info.dtype).itemsize
    dense, step = [], itemsize
    for size in reversed(info.shape):
        dense.append(step)
        step *= size
    return list(strided.runs(info.shape, info.strides, tuple(reversed(dense)), itemsize))
