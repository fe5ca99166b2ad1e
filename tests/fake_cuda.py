"""A fake of the bindings' runtime and driver modules, with their real call shapes, on a simulated machine.

Calls return tuples that begin with a status; handles are objects with ``int()``; memory is at real host addresses.
What is queued executes late, and the race detector looks on.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from slotline.backends.sim.machine import Machine  # the fake stands on the simulated device on purpose
from slotline.backends.sim.runtime import SimRuntime
from slotline.compat import cuda
from slotline.core import image as images
from slotline.core.errors import DeviceError
from slotline.core.runtime import Copy


class cudaError_t(enum.IntEnum):
    cudaSuccess = 0
    cudaErrorInvalidValue = 1
    cudaErrorMemoryAllocation = 2
    cudaErrorInvalidPitchValue = 12
    cudaErrorInvalidMemcpyDirection = 21
    cudaErrorInvalidDevice = 101
    cudaErrorInvalidResourceHandle = 400
    cudaErrorNotReady = 600
    cudaErrorIllegalAddress = 700
    cudaErrorStreamCaptureUnsupported = 900


class cudaMemcpyKind(enum.IntEnum):
    cudaMemcpyHostToHost = 0
    cudaMemcpyHostToDevice = 1
    cudaMemcpyDeviceToHost = 2
    cudaMemcpyDeviceToDevice = 3


class Handle:
    """As ``cudaStream_t`` and its like: an object that is a number when asked."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __int__(self) -> int:
        return self._number


def _status(call: Callable[..., Any]) -> Callable[..., Any]:
    """The call's values behind a status; errors of the machine are the runtime's own numbers.

    As in the bindings, what gives a value gives None in its place when it fails.
    """
    gives = call.__annotations__["return"] != "None"

    @functools.wraps(call)
    def wrapped(self: FakeRuntime, *arguments: Any) -> tuple[Any, ...]:
        self.calls.append(call.__name__)
        try:
            found = call(self, *arguments)
        except DeviceError as error:
            return (cudaError_t(error.code or 1), None) if gives else (cudaError_t(error.code or 1),)
        return (cudaError_t(0),) if found is None else (cudaError_t(0), found)

    return wrapped


class FakeRuntime:
    """``cuda.bindings.runtime`` with one device, or as many as are asked for."""

    cudaError_t, cudaMemcpyKind = cudaError_t, cudaMemcpyKind

    def __init__(self, machine: Machine, devices: int = 1) -> None:
        self.machine, self.devices, self.device = machine, devices, 0
        self.sim = SimRuntime(machine)
        self.capturing: set[int] = set()
        self.calls: list[str] = []
        self.streams: set[int] = set()
        self.events: set[int] = set()
        self.memory: dict[int, str] = {}

    @property
    def leaks(self) -> int:
        """Streams, events and pieces of memory that were not given back."""
        return len(self.streams) + len(self.events) + len(self.memory)

    def _require(self, good: bool, code: int) -> None:
        if not good:
            raise DeviceError("fake", "call", code, None)

    @_status
    def cudaGetDeviceCount(self) -> int:
        return self.devices

    @_status
    def cudaGetDevice(self) -> int:
        return self.device

    @_status
    def cudaSetDevice(self, device: int) -> None:
        self._require(0 <= device < self.devices, 101)
        self.device = device

    @_status
    def cudaGetDeviceProperties(self, device: int) -> SimpleNamespace:
        self._require(0 <= device < self.devices, 101)
        return SimpleNamespace(name=b"Simulated GPU\0\0", major=9, minor=0)

    @_status
    def cudaDriverGetVersion(self) -> int:
        return 13000

    @_status
    def cudaRuntimeGetVersion(self) -> int:
        return 12090

    @_status
    def cudaStreamCreateWithFlags(self, flags: int) -> Handle:
        assert flags == 1
        stream = self.sim.create_stream()
        self.streams.add(stream)
        return Handle(stream)

    @_status
    def cudaStreamDestroy(self, stream: Any) -> None:
        self._require(int(stream) in self.streams, 400)
        self.streams.remove(int(stream))
        self.sim.destroy_stream(int(stream))

    @_status
    def cudaStreamIsCapturing(self, stream: Any) -> int:
        self.machine.require_stream(int(stream))
        return int(int(stream) in self.capturing)

    @_status
    def cudaStreamWaitEvent(self, stream: Any, event: Any, flags: int) -> None:
        assert flags == 0
        self.sim.wait(int(stream), int(event))

    @_status
    def cudaDeviceSynchronize(self) -> None:
        self._require(not self.capturing, 900)
        self.sim.synchronize()

    @_status
    def cudaEventCreateWithFlags(self, flags: int) -> Handle:
        assert flags == 2
        event = self.sim.create_event()
        self.events.add(event)
        return Handle(event)

    @_status
    def cudaEventDestroy(self, event: Any) -> None:
        self._require(int(event) in self.events, 400)
        self.events.remove(int(event))
        self.sim.destroy_event(int(event))

    @_status
    def cudaEventRecord(self, event: Any, stream: Any) -> None:
        self.sim.record(int(event), int(stream))

    @_status
    def cudaEventQuery(self, event: Any) -> None:
        self._require(self.sim.is_done(int(event)), 600)

    @_status
    def cudaEventSynchronize(self, event: Any) -> None:
        self.sim.sync_event(int(event))

    @_status
    def cudaMalloc(self, nbytes: int) -> int:
        return self._allocated(self.sim.allocate, nbytes, "device")

    @_status
    def cudaHostAlloc(self, nbytes: int, flags: int) -> int:
        assert flags == 1
        return self._allocated(self.sim.allocate_host, nbytes, "host")

    def _allocated(self, allocate: Callable[[int], int], nbytes: int, kind: str) -> int:
        self._require(nbytes > 0, 1)
        self._require(nbytes < 1 << 34, 2)
        address = allocate(nbytes)
        self.memory[address] = kind
        return address

    @_status
    def cudaFree(self, address: int) -> None:
        self._freed(address, "device")

    @_status
    def cudaFreeHost(self, address: int) -> None:
        self._freed(address, "host")

    def _freed(self, address: int, kind: str) -> None:
        self._require(self.memory.get(address) == kind, 1)
        del self.memory[address]
        self.sim.free(address)

    @_status
    def cudaMemcpyAsync(self, dst: int, src: int, count: int, kind: Any, stream: Any) -> None:
        self._require(isinstance(kind, cudaMemcpyKind) and kind > 0, 21)
        self._require(count >= 0, 1)
        self.sim.copy(dst, src, count, Copy(int(kind)), int(stream))

    @_status
    def cudaMemcpy2DAsync(
        self, dst: int, dpitch: int, src: int, spitch: int, width: int, height: int, kind: Any, stream: Any
    ) -> None:
        self._require(isinstance(kind, cudaMemcpyKind) and kind > 0, 21)
        self.sim.copy_2d(dst, dpitch, src, spitch, width, height, Copy(int(kind)), int(stream))


class FakeDriver:
    """``cuda.bindings.driver`` as far as the apply kernel needs it: a launch runs the image where it lies."""

    CUDA_VERSION = 13000

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.loaded: list[bytes] = []
        self.launches = 0
        self.CUdevice_attribute = SimpleNamespace(
            CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR=75, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR=76
        )

    def cuInit(self, flags: int) -> tuple[int]:
        return (0,)

    def cuDeviceGet(self, index: int) -> tuple[int, int]:
        return (0, index)

    def cuDeviceGetAttribute(self, attribute: int, device: int) -> tuple[int, int]:
        return (0, 9 if attribute == 75 else 0)

    def cuModuleLoadData(self, code: bytes) -> tuple[int, Handle]:
        self.loaded.append(code)
        return (0, Handle(len(self.loaded)))

    def cuModuleGetFunction(self, module: Handle, name: bytes) -> tuple[int, Handle]:
        return (0, Handle(1))

    def cuModuleUnload(self, module: Handle) -> tuple[int]:
        return (0,)

    def cuLaunchKernel(
        self, function: Handle, gx: int, gy: int, gz: int, bx: int, by: int, bz: int, shared: int, stream: Any,
        parameters: Any, extra: int,
    ) -> tuple[int]:  # fmt: skip
        (address, table, numbers_at, payload_at, work_at), _ = parameters
        programs = gx
        machine = self.machine
        self.launches += 1
        nbytes = work_at + 16 * programs
        image, rows = machine.region(address, (nbytes,), (1,), 1), machine.memory.find(table)
        assert rows is not None
        lies = image.allocation.bytes[image.offset : image.offset + nbytes]
        meta = images.Meta(40, numbers_at, payload_at, work_at, programs)

        def cells(at: int, width: int) -> tuple[Any, int]:
            found = machine.memory.find(at)
            assert found is not None
            return found.bytes.view(f"<u{width}"), (at - found.base) // width

        def run() -> None:
            where = rows.bytes.view(np.int64).reshape(-1, 8)
            images.run(lies.copy(), meta, where, cells)

        # What it writes is known to the image alone; the reads are enough for the detector to see staging reused.
        reads = [image, machine.region(table, (rows.nbytes,), (1,), 1)]
        machine.enqueue(int(stream), "the apply kernel", run, reads)
        return (0,)


@contextmanager
def installed(machine: Machine, devices: int = 1) -> Iterator[FakeRuntime]:
    """Inside, ``compat.cuda`` hands out the fake."""
    fake, driver = FakeRuntime(machine, devices), FakeDriver(machine)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda, "runtime", lambda: fake)
        patch.setattr(cuda, "driver", lambda: driver)
        yield fake
