"""The apply kernel compiled by nvrtc and launched on raw pointers: no framework and no Triton is needed."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slotline.backends.cuda.kernel import NAME, SOURCE, THREADS
from slotline.compat import cuda
from slotline.core import image as images
from slotline.core.applier import Applier
from slotline.core.device import TensorInfo
from slotline.core.errors import DeviceError
from slotline.core.image import Image
from slotline.core.layout import BufferLayout
from slotline.core.runtime import Copy, Runtime

Spare = dict[int, list[int]]
"""Device memory of tables that were given up, by its size in bytes."""
_TYPES = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_longlong, ctypes.c_longlong, ctypes.c_longlong)


@functools.cache
def compiled(architecture: str) -> bytes:
    """The kernel as a CUBIN for ``sm_90`` and the like, or as PTX for ``compute_90``. Needs no driver.

    ``BackendUnavailable`` without the compiler; ``DeviceError`` with its log if it refuses.
    """
    nvrtc = cuda.nvrtc()
    program = cuda.call(nvrtc.nvrtcCreateProgram, SOURCE.encode(), b"slotline_apply.cu", 0, [], [])
    options = [f"--gpu-architecture={architecture}".encode(), b"--std=c++17"]
    status, *_ = nvrtc.nvrtcCompileProgram(program, len(options), options)
    if int(status):
        log = b" " * cuda.call(nvrtc.nvrtcGetProgramLogSize, program)
        cuda.call(nvrtc.nvrtcGetProgramLog, program, log)
        raise DeviceError("cuda", "nvrtcCompileProgram", int(status), status.name, log.decode(errors="replace").strip())
    what = "CUBIN" if architecture.startswith("sm_") else "PTX"
    code: bytes = b" " * cuda.call(getattr(nvrtc, f"nvrtcGet{what}Size"), program)
    cuda.call(getattr(nvrtc, f"nvrtcGet{what}"), program, code)
    return code


class Table:
    """A destination table in device memory, and the buffers that it points into.

    Given up, its memory goes back to ``spare``: to free it would be a call to the device, which may wait, or spoil a
    graph that is being captured.
    """

    def __init__(self, runtime: Runtime, table: NDArray[np.int64], buffers: Sequence[Any], spare: Spare) -> None:
        self._spare, self._nbytes, self.buffers = spare, max(table.nbytes, 8), buffers
        addresses = spare.setdefault(self._nbytes, [])
        self.address = addresses.pop() if addresses else runtime.allocate(self._nbytes)
        runtime.copy(self.address, table.ctypes.data, table.nbytes, Copy.HOST_TO_DEVICE, runtime.current_stream())
        runtime.synchronize()  # once for a batch, when it is made

    def __del__(self) -> None:
        address = getattr(self, "address", 0)  # 0: there was no memory for it
        if address:
            self._spare[self._nbytes].append(address)


class NvrtcApplier(Applier):
    """One launch of the CUDA C kernel for each image. ``inspect`` tells shape, strides and address of a tensor."""

    name = "nvrtc"
    packed = True

    def __init__(self, runtime: Runtime, device: int, inspect: Any) -> None:
        self._runtime, self._inspect = runtime, inspect
        self._spare: Spare = {}
        driver = self._driver = cuda.driver()
        cuda.call(driver.cuInit, 0)
        self._function = self._load(self._capability(device))

    def _capability(self, device: int) -> str:
        driver = self._driver
        handle = cuda.call(driver.cuDeviceGet, device)
        kind = driver.CUdevice_attribute
        major, minor = (
            cuda.call(
                driver.cuDeviceGetAttribute, getattr(kind, f"CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_{part}"), handle
            )
            for part in ("MAJOR", "MINOR")
        )
        return f"{major}{minor}"

    def _load(self, capability: str) -> Any:
        try:
            code = compiled(f"sm_{capability}")
        except DeviceError:  # a compiler older than the device: its newest PTX, which the driver finishes
            code = compiled("compute_80")
        with self._runtime.on_device():
            self._runtime.synchronize()  # makes the device's context current in this thread
            self._module = cuda.call(self._driver.cuModuleLoadData, code)
            return cuda.call(self._driver.cuModuleGetFunction, self._module, NAME.encode())

    def bind(self, layout: BufferLayout, buffers: Sequence[Any]) -> Table:
        infos: list[TensorInfo | None] = [None if b is None else self._inspect(b) for b in buffers]
        return Table(self._runtime, images.targets(layout, infos), buffers, self._spare)

    def run(self, image: Image, address: int, bound: Table, stream: int) -> int:
        meta = image.meta
        if not meta.programs:
            return 0
        values = (address, bound.address, meta.numbers_at, meta.payload_at, meta.work_at)
        grid, block = (meta.programs, 1, 1), (THREADS, 1, 1)
        launch = self._driver.cuLaunchKernel
        with self._runtime.on_device():
            cuda.call(launch, self._function, *grid, *block, 0, stream, (values, _TYPES), 0)
        return 1
