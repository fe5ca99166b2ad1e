"""Runtime: the dozen calls by which a device with streams is driven; ``core.streamed`` is written against them.

Streams, events and addresses are whole numbers, as in C. No call waits for queued work unless it says so. A failure
raises ``DeviceError``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from enum import IntEnum
from typing import Any


class Copy(IntEnum):
    """Which way a copy goes."""

    HOST_TO_DEVICE = 1
    DEVICE_TO_HOST = 2
    DEVICE_TO_DEVICE = 3


class Runtime(ABC):
    """One device's streams, events, memory and copies."""

    addresses: bool = True
    """It copies to and from any address. Without, only within what it allocated: tensors then go by the framework."""

    def tensor_at(self, address: int, nbytes: int) -> Any:
        """Own memory of the device as a uint8 tensor of the framework; where the framework applies packets."""
        raise NotImplementedError(f"{type(self).__name__} has no tensors; packets are applied by a kernel")

    def on_device(self) -> AbstractContextManager[Any]:
        """Inside, the device is this thread's current one, for calls that go past this interface."""
        return nullcontext()

    # -- streams

    @abstractmethod
    def current_stream(self) -> int:
        """The stream that the framework works on now, in this thread."""

    @abstractmethod
    def create_stream(self) -> int:
        """A new stream that orders itself with no other."""

    @abstractmethod
    def destroy_stream(self, stream: int) -> None:
        """Give a stream back; what is queued on it still runs."""

    @abstractmethod
    def is_capturing(self, stream: int) -> bool:
        """A graph is being captured from the stream."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait on the host until all streams are empty."""

    # -- events

    @abstractmethod
    def create_event(self) -> int:
        """A new event, without timing."""

    @abstractmethod
    def destroy_event(self, event: int) -> None: ...

    @abstractmethod
    def record(self, event: int, stream: int) -> None:
        """``event`` becomes the point behind all that is queued on ``stream`` now."""

    @abstractmethod
    def wait(self, stream: int, event: int) -> None:
        """What is queued on ``stream`` from now on runs after the point of ``event``."""

    @abstractmethod
    def is_done(self, event: int) -> bool:
        """The point has passed."""

    @abstractmethod
    def sync_event(self, event: int) -> None:
        """Wait on the host until the point has passed."""

    # -- memory

    @abstractmethod
    def allocate(self, nbytes: int) -> int:
        """Device memory, aligned to 256 bytes."""

    @abstractmethod
    def free(self, address: int) -> None:
        """Give device memory back once nothing queued uses it; may wait for that."""

    @abstractmethod
    def allocate_host(self, nbytes: int) -> int:
        """Page-locked host memory, aligned to 64 bytes. ``DeviceError`` where there is none."""

    @abstractmethod
    def free_host(self, address: int) -> None: ...

    def host_written(self, address: int, nbytes: int) -> None:  # noqa: B027  (real devices need no telling)
        """The host is about to write staging memory; a simulated device looks whether a copy still reads it."""

    def host_read(self, address: int, nbytes: int) -> None:  # noqa: B027  (real devices need no telling)
        """The host is about to read staging memory; a simulated device looks whether the copy into it has landed."""

    def released(self, address: int, nbytes: int) -> None:  # noqa: B027  (real devices need no telling)
        """The staging memory is free for others; a simulated device poisons it."""

    # -- copies

    @abstractmethod
    def copy(self, dst: int, src: int, nbytes: int, way: Copy, stream: int) -> None:
        """Queue a copy of ``nbytes`` bytes. Host memory may be read or written any time until the stream has passed."""

    @abstractmethod
    def copy_2d(
        self, dst: int, dst_pitch: int, src: int, src_pitch: int, width: int, height: int, way: Copy, stream: int
    ) -> None:
        """Queue a copy of ``height`` rows of ``width`` bytes; rows begin ``pitch`` bytes apart, at least ``width``."""
