"""CudaRuntime: the runtime interface over CUDA's own bindings, whichever are installed (``compat.cuda``)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from slotline.compat import cuda
from slotline.core.errors import DeviceError
from slotline.core.runtime import Copy, Runtime

NON_BLOCKING = 1  # cudaStreamNonBlocking: the stream orders itself with the legacy default stream in no way
NO_TIMING = 2  # cudaEventDisableTiming
PORTABLE = 1  # cudaHostAllocPortable
NOT_READY = 600
CAPTURED_ELSEWHERE = 906  # cudaErrorStreamCaptureImplicit: the default stream is asked while another is captured


def device_info(device: int) -> dict[str, str]:
    """What ``doctor`` says of a GPU: its name, compute capability, and the CUDA versions of driver and runtime.

    Makes no context. Raises as ``CudaRuntime`` does.
    """
    module = cuda.runtime()
    properties = cuda.call(module.cudaGetDeviceProperties, device)
    return {
        "device": properties.name.rstrip(b"\0").decode(errors="replace"),
        "compute capability": f"{properties.major}.{properties.minor}",
        "driver": _version(cuda.call(module.cudaDriverGetVersion)),
        "runtime": _version(cuda.call(module.cudaRuntimeGetVersion)),
    }


def _version(number: int) -> str:
    """CUDA's own writing of a version: 12090 is 12.9."""
    return f"{number // 1000}.{number % 1000 // 10}"


class CudaRuntime(Runtime):
    """One GPU. ``current_stream`` gives the handle of the framework's current stream in this thread.

    Raises ``BackendUnavailable`` without bindings or driver, ``DeviceError`` for a device that is not there.
    """

    def __init__(self, device: int, current_stream: Callable[[], int]) -> None:
        self._module = cuda.runtime()
        self._current_stream, self.device = current_stream, device
        count = int(self._call("cudaGetDeviceCount"))
        if not 0 <= device < count:
            raise DeviceError("cuda", "choice of a device", None, None, f"device {device} of {count}")

    def _call(self, name: str, *arguments: Any) -> Any:
        return cuda.call(getattr(self._module, name), *arguments)

    @contextmanager
    def on_device(self) -> Iterator[None]:
        """The device is this thread's current one; handle 0 is the default stream of whichever is."""
        before = int(self._call("cudaGetDevice"))
        if before == self.device:
            yield
            return
        self._call("cudaSetDevice", self.device)
        try:
            yield
        finally:
            self._call("cudaSetDevice", before)

    def _here(self, name: str, *arguments: Any) -> Any:
        with self.on_device():
            return self._call(name, *arguments)

    # -- streams

    def current_stream(self) -> int:
        return self._current_stream()

    def create_stream(self) -> int:
        return int(self._here("cudaStreamCreateWithFlags", NON_BLOCKING))

    def destroy_stream(self, stream: int) -> None:
        self._here("cudaStreamDestroy", stream)

    def is_capturing(self, stream: int) -> bool:
        try:
            return int(self._here("cudaStreamIsCapturing", stream)) != 0
        except DeviceError as error:
            if error.code == CAPTURED_ELSEWHERE:
                return True
            raise

    def synchronize(self) -> None:
        self._here("cudaDeviceSynchronize")

    # -- events

    def create_event(self) -> int:
        return int(self._here("cudaEventCreateWithFlags", NO_TIMING))

    def destroy_event(self, event: int) -> None:
        self._here("cudaEventDestroy", event)

    def record(self, event: int, stream: int) -> None:
        self._here("cudaEventRecord", event, stream)

    def wait(self, stream: int, event: int) -> None:
        self._here("cudaStreamWaitEvent", stream, event, 0)

    def is_done(self, event: int) -> bool:
        try:
            self._here("cudaEventQuery", event)
        except DeviceError as error:
            if error.code == NOT_READY:
                return False
            raise
        return True

    def sync_event(self, event: int) -> None:
        self._here("cudaEventSynchronize", event)

    # -- memory

    def allocate(self, nbytes: int) -> int:
        return int(self._here("cudaMalloc", nbytes))

    def free(self, address: int) -> None:
        self._here("cudaFree", address)

    def allocate_host(self, nbytes: int) -> int:
        return int(self._here("cudaHostAlloc", nbytes, PORTABLE))

    def free_host(self, address: int) -> None:
        self._here("cudaFreeHost", address)

    # -- copies

    def copy(self, dst: int, src: int, nbytes: int, way: Copy, stream: int) -> None:
        self._here("cudaMemcpyAsync", dst, src, nbytes, self._way(way), stream)

    def copy_2d(
        self, dst: int, dst_pitch: int, src: int, src_pitch: int, width: int, height: int, way: Copy, stream: int
    ) -> None:
        way_ = self._way(way)
        self._here("cudaMemcpy2DAsync", dst, dst_pitch, src, src_pitch, width, height, way_, stream)

    def _way(self, way: Copy) -> Any:
        return self._module.cudaMemcpyKind(int(way))
