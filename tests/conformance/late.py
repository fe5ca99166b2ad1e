"""A device that is late and looks at nothing: queues that run when someone waits.

It passes the kit; those of ``broken`` do not. Unlike ``sim`` it has no race detector, so what the kit finds on it the
kit finds by itself.
"""

from __future__ import annotations

import ctypes
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slotline.core import image as images
from slotline.device import (
    Abilities,
    Applier,
    BufferLayout,
    Copy,
    DeviceTensors,
    Image,
    Probe,
    Runtime,
    StreamedBackend,
    TensorInfo,
    numpy_dtype,
    targets,
)


class LateTensor:
    """Host memory that pretends to lie on a device; basic slicing gives views."""

    def __init__(self, array: NDArray[Any]) -> None:
        self.array = array

    @property
    def shape(self) -> tuple[int, ...]:
        return self.array.shape

    def __getitem__(self, key: Any) -> LateTensor:
        view = self.array[key]
        return LateTensor(view if isinstance(view, np.ndarray) else self.array[(*np.atleast_1d(key), ...)])


@dataclass(eq=False)
class Point:
    """A place in a stream."""

    stream: int
    passed: bool = False


class LateRuntime(Runtime):
    """Queues of functions. A queue runs as far as someone waits for it, and no further."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.queues: dict[int, deque[tuple[str, Any]]] = {0: deque()}
        self.points: dict[int, Point] = {}
        """Where each event was recorded last."""
        self.memory: dict[int, NDArray[np.uint8]] = {}
        self.numbers = iter(range(1, 1 << 62))
        self.current = threading.local()

    def current_stream(self) -> int:
        return getattr(self.current, "stream", 0)

    def create_stream(self) -> int:
        with self.lock:
            stream = next(self.numbers)
            self.queues[stream] = deque()
            return stream

    def destroy_stream(self, stream: int) -> None:
        with self.lock:
            self._run(stream)
            del self.queues[stream]

    def is_capturing(self, stream: int) -> bool:
        return False

    def queue(self, stream: int, work: Callable[[], object]) -> None:
        with self.lock:
            self.queues[stream].append(("run", work))

    def synchronize(self) -> None:
        with self.lock:
            for stream in list(self.queues):
                self._run(stream)

    def _run(self, stream: int, until: Point | None = None) -> None:
        """Run a queue, or as far as the point ``until``."""
        queue = self.queues[stream]
        while queue:
            kind, what = queue.popleft()
            if kind == "run":
                what()
            elif kind == "wait":
                self._reach(what)
            else:
                what.passed = True
                if what is until:
                    return

    def _reach(self, point: Point) -> None:
        if not point.passed:
            self._run(point.stream, point)

    def create_event(self) -> int:
        with self.lock:
            event = next(self.numbers)
            self.points[event] = Point(0, True)
            return event

    def destroy_event(self, event: int) -> None:
        with self.lock:
            del self.points[event]

    def record(self, event: int, stream: int) -> None:
        with self.lock:
            point = self.points[event] = Point(stream)
            self.queues[stream].append(("record", point))

    def wait(self, stream: int, event: int) -> None:
        with self.lock:
            self.queues[stream].append(("wait", self.points[event]))

    def is_done(self, event: int) -> bool:
        with self.lock:
            return self.points[event].passed

    def sync_event(self, event: int) -> None:
        with self.lock:
            self._reach(self.points[event])

    def allocate(self, nbytes: int) -> int:
        with self.lock:
            block = np.zeros(nbytes + 256, np.uint8)
            address = -(-int(block.__array_interface__["data"][0]) // 256) * 256
            self.memory[address] = block
            return address

    def free(self, address: int) -> None:
        with self.lock:
            self.synchronize()
            del self.memory[address]

    allocate_host = allocate
    free_host = free

    def copy(self, dst: int, src: int, nbytes: int, way: Copy, stream: int) -> None:
        self.queue(stream, lambda: ctypes.memmove(dst, src, nbytes))

    def copy_2d(
        self, dst: int, dst_pitch: int, src: int, src_pitch: int, width: int, height: int, way: Copy, stream: int
    ) -> None:
        def work() -> None:
            for row in range(height):
                ctypes.memmove(dst + row * dst_pitch, src + row * src_pitch, width)

        self.queue(stream, work)


class LateTensors(DeviceTensors):
    framework = "numpy"
    versions: Mapping[str, str] = MappingProxyType({"numpy": np.__version__})

    def __init__(self, runtime: LateRuntime) -> None:
        self.runtime = runtime

    def empty(self, shape: tuple[int, ...], dtype: str) -> LateTensor:
        return LateTensor(np.full(shape, 1, numpy_dtype(dtype)))

    def inspect(self, tensor: Any) -> TensorInfo | None:
        if not isinstance(tensor, LateTensor):
            return None
        a = tensor.array
        pointer = int(a.__array_interface__["data"][0])
        return TensorInfo(shape=a.shape, strides=a.strides, dtype=a.dtype.name, place="late", pointer=pointer)

    def why_not(self, tensor: Any) -> str:
        return ""

    why_not_written = why_not

    def host_view(self, tensor: Any) -> NDArray[Any] | None:
        return tensor if isinstance(tensor, np.ndarray) else None

    def host_tensor(self, array: NDArray[Any]) -> Any:
        return array

    def copy(self, dst: Any, src: Any) -> None:
        def work() -> None:
            source = src.array.copy()  # as if copied first (W7)
            while source.ndim > dst.array.ndim:
                source = source[0]
            dst.array[...] = source

        self.runtime.queue(self.runtime.current_stream(), work)

    def current_stream(self) -> int:
        return self.runtime.current_stream()

    @contextmanager
    def running(self, stream: int) -> Iterator[None]:
        before = self.runtime.current_stream()
        self.runtime.current.stream = stream
        try:
            yield
        finally:
            self.runtime.current.stream = before

    def namespace(self) -> Any:
        raise NotImplementedError("step functions run by copies to the host and back (B11)")


class LateApplier(Applier):
    """The image as it lies on the device, applied by ``core.image.run`` when its turn comes."""

    name, packed = "late", True

    def __init__(self, tensors: LateTensors, runtime: LateRuntime) -> None:
        self.tensors, self.runtime = tensors, runtime

    def bind(self, layout: BufferLayout, buffers: Sequence[Any]) -> Any:
        infos = [None if b is None else self.tensors.inspect(b) for b in buffers]
        ends = {
            i.pointer: i.pointer + sum((n - 1) * s for n, s in zip(i.shape, i.strides, strict=True)) + 8
            for i in infos
            if i is not None
        }
        return targets(layout, infos), max(ends.values(), default=0), buffers

    def run(self, image: Image, address: int, bound: Any, stream: int) -> int:
        table, end, buffers = bound
        meta, there = image.meta, self.image_at(address, image)

        def work() -> None:
            held = buffers  # alive until now
            images.run(there, meta, table, lambda at, width: (_bytes(at, end - at, width), 0))
            del held

        self.runtime.queue(stream, work)
        return 1

    def image_at(self, address: int, image: Image) -> NDArray[Any]:
        return _bytes(address, image.nbytes)


def _bytes(address: int, nbytes: int, width: int = 1) -> NDArray[Any]:
    raw = (ctypes.c_uint8 * (nbytes // width * width)).from_address(address)
    return np.asarray(raw).view(f"<u{width}")


class LateBackend(StreamedBackend):
    """The whole device; step functions run on the host."""

    name = "late"
    frameworks = ("numpy",)
    abilities = Abilities(streams=True, pinned_memory=True, async_upload=True, packed_apply=True)

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.late = self.make_runtime()
        tensors = self.make_tensors(self.late)
        self.start(self.late, tensors, self.make_applier(tensors))

    def make_runtime(self) -> LateRuntime:
        return LateRuntime()

    def make_tensors(self, runtime: LateRuntime) -> LateTensors:
        return LateTensors(runtime)

    def make_applier(self, tensors: LateTensors) -> LateApplier:
        return LateApplier(tensors, self.late)

    @classmethod
    def _probe(cls, *, framework: str | None, vendor: str | None, device: int) -> Probe:
        if device:
            return Probe(usable=False, reason=f"device {device}: there is only device 0")
        return Probe(usable=True)
