"""OpenclRuntime: in-order queues, events, memory and copies of one OpenCL device."""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyopencl as cl

from slotline.device import Copy, Runtime
from slotline_opencl.devices import require_in_order
from slotline_opencl.failures import failed, native
from slotline_opencl.lane import Lane
from slotline_opencl.mapped import MappedMemory
from slotline_opencl.memory import AddressSpace, Memory


class OpenclRuntime(Runtime):
    """Stream 0 is the default queue; others are named by their ``cl_command_queue``, as a whole number."""

    def __init__(self, queue: cl.CommandQueue) -> None:
        self.context, self.device = queue.context, queue.device
        self.space = AddressSpace(self.context)
        self._lock = threading.RLock()
        self._current = threading.local()
        self._lanes = {0: Lane(queue)}
        self._aliases = {queue.int_ptr: 0}
        self._orphans: list[Lane] = []
        self._numbers = itertools.count(1)
        self._events: dict[int, cl.Event | None] = {}
        self._memory: dict[int, Memory] = {}
        self._mapped = MappedMemory(self.context, self.device)
        self._closed = False

    # -- streams

    def current_stream(self) -> int:
        return getattr(self._current, "stream", 0)

    @contextmanager
    def on_stream(self, stream: int) -> Iterator[int]:
        """Inside, ``stream`` is this thread's current stream."""
        self.lane(stream)
        before = self.current_stream()
        self._current.stream = stream
        try:
            yield stream
        finally:
            self._current.stream = before

    def lane(self, stream: int) -> Lane:
        """The queue of a stream. ``DeviceError`` for a handle that is none, and after ``close``."""
        self.require_open()
        lane = self._lanes.get(self._aliases.get(stream, stream))
        if lane is None:
            hint = "no such stream; allowed: 0, what new_stream gave, or a pyopencl.CommandQueue of this context"
            raise failed(f"use of stream {stream:#x}", -36, hint)
        return lane

    def require_open(self) -> None:
        """``DeviceError`` once the backend was closed."""
        if self._closed:
            raise failed("use of the device", None, "the backend was closed; load it again")

    def adopt(self, queue: cl.CommandQueue) -> int:
        """The handle of an engine's own queue, which is kept until the backend is closed.

        ``ValueError`` for one that runs out of order, or belongs to another context.
        """
        self.require_open()
        with native("clGetCommandQueueInfo"):
            handle = int(queue.int_ptr)
            if handle in self._aliases or handle in self._lanes:
                return self._aliases.get(handle, handle)
            if queue.context != self.context or queue.device != self.device:
                raise ValueError("the queue belongs to another context or device; make the backend with queue=...")
            require_in_order(queue)
        with self._lock:
            self._lanes.setdefault(handle, Lane(queue))
        return handle

    def create_stream(self) -> int:
        self.require_open()
        with native("clCreateCommandQueue"):
            return self.adopt(cl.CommandQueue(self.context, self.device))

    def destroy_stream(self, stream: int) -> None:
        lane = self.lane(stream)
        if self._lanes.get(stream) is self._lanes[0]:
            raise failed(f"clReleaseCommandQueue of stream {stream:#x}", -36, "the default stream stays")
        with self._lock, native("clFlush"):
            lane.queue.flush()
            self._orphans.append(lane)  # whose copies may still be on their way
            del self._lanes[stream]

    def is_capturing(self, stream: int) -> bool:
        self.lane(stream)
        return False

    def synchronize(self) -> None:
        self.require_open()
        with self._lock:
            lanes = [*self._lanes.values(), *self._orphans]
        for lane in lanes:
            with native("clFinish"):
                lane.queue.finish()
        with self._lock:
            for lane in lanes:
                lane.sweep()
            self._orphans = [o for o in self._orphans if o.copies]

    # -- events

    def create_event(self) -> int:
        self.require_open()
        with self._lock:
            number = next(self._numbers)
            self._events[number] = None
        return number

    def destroy_event(self, event: int) -> None:
        self._events.pop(event, None)

    def record(self, event: int, stream: int) -> None:
        queue = self.lane(stream).queue
        with native("clEnqueueMarkerWithWaitList"):
            marker = cl.enqueue_marker(queue)
            queue.flush()  # another queue may only wait for what was handed to the device
        self._events[event] = marker

    def wait(self, stream: int, event: int) -> None:
        marker = self._event(event)
        queue = self.lane(stream).queue
        if marker is not None:
            with native("clEnqueueBarrierWithWaitList"):
                cl.enqueue_barrier(queue, wait_for=[marker])

    def is_done(self, event: int) -> bool:
        marker = self._event(event)
        if marker is None:  # never recorded
            return True
        with native("clGetEventInfo"):
            status = int(marker.command_execution_status)
        if status < 0:
            raise failed("what was queued before an event", status)
        return status == int(cl.command_execution_status.COMPLETE)

    def sync_event(self, event: int) -> None:
        marker = self._event(event)
        if marker is not None:
            with native("clWaitForEvents"):
                marker.wait()

    def _event(self, event: int) -> cl.Event | None:
        self.require_open()
        if event not in self._events:
            raise failed(f"use of event {event}", -58, "no such event")
        return self._events[event]

    # -- memory

    def allocate(self, nbytes: int) -> int:
        self.require_open()
        memory = self.space.make(nbytes)
        self._memory[memory.base] = memory
        return memory.base

    def free(self, address: int) -> None:
        memory = self._memory.pop(address, None)
        if memory is None:
            raise failed("clReleaseMemObject", -38, f"nothing was allocated at {address:#x}")
        memory.release()

    def allocate_host(self, nbytes: int) -> int:
        self.require_open()
        return self._mapped.allocate(nbytes)

    def free_host(self, address: int) -> None:
        self._mapped.free(address)

    # -- copies

    def copy(self, dst: int, src: int, nbytes: int, way: Copy, stream: int) -> None:
        if not nbytes:
            return
        lane = self.lane(stream)
        if way == Copy.DEVICE_TO_DEVICE:
            (into, to), (out_of, at) = self.space.find(dst), self.space.find(src)
            with native("clEnqueueCopyBuffer"):
                cl.enqueue_copy(lane.queue, into.buffer, out_of.buffer, byte_count=nbytes, dst_offset=to, src_offset=at)
        elif way == Copy.HOST_TO_DEVICE:
            into, to = self.space.find(dst)
            with self._host_copy(lane, "clEnqueueWriteBuffer"):
                lane.copies.append(
                    cl.enqueue_copy(lane.queue, into.buffer, _host(src, nbytes), dst_offset=to, is_blocking=False)
                )
        else:
            out_of, at = self.space.find(src)
            with self._host_copy(lane, "clEnqueueReadBuffer"):
                lane.copies.append(
                    cl.enqueue_copy(lane.queue, _host(dst, nbytes), out_of.buffer, src_offset=at, is_blocking=False)
                )

    def copy_2d(
        self, dst: int, dst_pitch: int, src: int, src_pitch: int, width: int, height: int, way: Copy, stream: int
    ) -> None:
        if not width or not height:
            return
        if min(dst_pitch, src_pitch) < width:  # not every driver looks
            raise failed("copy_2d", -30, f"a pitch is {min(dst_pitch, src_pitch)}, allowed: the width {width} and more")
        lane = self.lane(stream)
        region = (width, height, 1)
        if way == Copy.DEVICE_TO_DEVICE:
            (into, to), (out_of, at) = self.space.find(dst), self.space.find(src)
            rect: dict[str, Any] = {"src_origin": (at, 0, 0), "src_pitches": (src_pitch,)}
            rect |= {"dst_origin": (to, 0, 0), "dst_pitches": (dst_pitch,)}
            with native("clEnqueueCopyBufferRect"):
                cl.enqueue_copy(lane.queue, into.buffer, out_of.buffer, region=region, **rect)
            return
        up = way == Copy.HOST_TO_DEVICE
        memory, offset = self.space.find(dst if up else src)
        pitches = {"buffer_pitches": (dst_pitch,), "host_pitches": (src_pitch,)}
        if not up:
            pitches = {"buffer_pitches": (src_pitch,), "host_pitches": (dst_pitch,)}
        host = _host(src if up else dst, pitches["host_pitches"][0] * (height - 1) + width)
        sides = (memory.buffer, host) if up else (host, memory.buffer)
        origins = {"buffer_origin": (offset, 0, 0), "host_origin": (0, 0, 0)}
        with self._host_copy(lane, "clEnqueueWriteBufferRect" if up else "clEnqueueReadBufferRect"):
            lane.copies.append(
                cl.enqueue_copy(lane.queue, *sides, region=region, is_blocking=False, **origins, **pitches)
            )

    @contextmanager
    def _host_copy(self, lane: Lane, operation: str) -> Iterator[None]:
        with self._lock, native(operation):
            lane.sweep()
            yield

    # -- the end

    def close(self) -> None:
        """Release all memory and all queues, also of tensors that are still held. Once is enough.

        Memory and queues of the engine's own are left alone.
        """
        if self._closed:
            return
        try:
            self.synchronize()
        finally:
            self._closed = True
            self._release()

    def _release(self) -> None:
        self._mapped.close()
        self._memory.clear()
        for memory in self.space:
            if memory.own:
                memory.release()
        self._events.clear()
        self._lanes.clear()
        self._orphans.clear()
        self._aliases.clear()


def _host(address: int, nbytes: int) -> Any:
    """Host memory as something that pyopencl takes; whoever called keeps it alive."""
    return (ctypes.c_uint8 * nbytes).from_address(address)
