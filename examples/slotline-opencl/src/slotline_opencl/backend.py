"""OpenclBackend: any OpenCL 1.2 device behind slotline's interface.

Nothing here imports pyopencl at import: naming the backend touches no driver (rule B2).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from slotline.device import Abilities, BackendUnavailable, DeviceError, Event, Probe, StreamedBackend
from slotline_opencl import devices

if TYPE_CHECKING:
    from slotline_opencl.tensor import OpenclTensor


class OpenclBackend(StreamedBackend):
    """One OpenCL device. ``device`` counts all devices of all platforms.

    An engine that has OpenCL memory of its own gives its ``queue``, an in-order ``pyopencl.CommandQueue``: the backend
    works in its context, and stream 0 is that queue.

    Raises ``BackendUnavailable`` where there is no such device, ``DeviceError`` where it fails, ``TypeError`` or
    ``ValueError`` for a queue that is none or runs out of order.
    """

    name = "opencl"
    frameworks = ("numpy",)
    priority = 10
    abilities = Abilities(streams=True, pinned_memory=True, async_upload=True, packed_apply=True)

    def __init__(self, *, queue: Any = None, **options: Any) -> None:
        super().__init__(**options)
        found = devices.choose(self.device) if queue is None else devices.require_queue(queue)
        from slotline_opencl import parts

        self._made = parts.make(parts.new_queue(found) if queue is None else queue)
        self.start(*self._made)

    @classmethod
    def _probe(cls, *, framework: str | None, vendor: str | None, device: int) -> Probe:
        found = devices.choose(device)
        from slotline_opencl import parts

        try:
            staging = parts.try_out(found)
        except DeviceError as error:  # the device's fault, not this plugin's
            raise BackendUnavailable(str(error)) from error
        details = {**devices.details(found), "staging": staging, "apply": "opencl"}
        by_name = devices.kind(found) == "cpu"  # no accelerator; "auto" has cpu itself for that
        return Probe(usable=True, versions=devices.versions(found), details=details, by_name_only=by_name)

    def _allocate(self, specs: Sequence[tuple[str, tuple[int, ...], str]]) -> list[Any]:
        for name, _, dtype in specs:
            self.tensors.require(name, dtype)
        return list(self._made.tensors.empty_all([(shape, dtype) for _, shape, dtype in specs]))

    # -- for an engine's own kernels

    def wrap(
        self,
        memory: Any,
        shape: Sequence[int] | None = None,
        dtype: str | None = None,
        *,
        offset: int = 0,
        strides: Sequence[int] | None = None,
    ) -> OpenclTensor:
        """An engine's own memory as a tensor, to adopt it (F4) or to write into it; nothing is copied.

        ``memory``: a ``pyopencl.Buffer`` of the backend's context, sub-buffers too, with ``shape`` and ``dtype``, and
        ``offset`` and ``strides`` in bytes (dense); or a ``pyopencl.array.Array``, which says them itself. The tensor
        keeps the memory alive.

        Raises ``TypeError`` for other objects, ``ValueError`` for what does not lie within the memory.
        """
        from slotline_opencl.wrap import wrap

        return wrap(self._made.runtime, memory, shape, dtype, offset, strides)

    def on_stream(self, stream: Any) -> AbstractContextManager[int]:
        """Inside, ``stream`` is this thread's current stream."""
        return self._made.runtime.on_stream(self.stream(stream))

    def record(self, stream: Any = None) -> Event:
        """An event behind what is queued on ``stream`` now, an engine's own kernels too."""
        return self._event(self.stream(stream))

    def queue(self, stream: Any = None) -> Any:
        """The ``pyopencl.CommandQueue`` of a stream, for an engine's own kernels; None: of the current one."""
        return self._made.runtime.lane(self.stream(stream)).queue

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._made.runtime.close()
