"""Devices that break one rule each, as drivers and backends do. ``BROKEN`` says which rule the kit must name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from late import LateApplier, LateBackend, LateRuntime, LateTensor, LateTensors
from numpy.typing import NDArray

from slotline.device import DONE, Copy, Event, Image, Stats, TensorInfo


class IgnoresStrides(LateBackend):
    """Writes a view as if it were dense."""

    def _put(self, dst: Any, info: TensorInfo, address: int, way: Copy, stream: int) -> None:
        nbytes = int(np.prod(info.shape)) * np.dtype(info.dtype).itemsize
        self.runtime.copy(info.pointer, address, nbytes, way, stream)


class DropsOffset(LateBackend):
    """Writes a view from its buffer's first cell on."""

    def make_tensors(self, runtime: LateRuntime) -> LateTensors:
        class Tensors(LateTensors):
            def inspect(self, tensor: Any) -> TensorInfo | None:
                info = super().inspect(tensor)
                base = tensor.array.base if info is not None else None
                if info is None or base is None:
                    return info
                return replace(info, pointer=int(base.__array_interface__["data"][0]))

        return Tensors(runtime)


def contiguous(dst: Any, src: Any) -> bool:
    """A write that a shortcut takes: an array of the same dtype and shape into a dense tensor."""
    if not isinstance(dst, LateTensor) or not isinstance(src, np.ndarray):
        return False
    a = dst.array
    return bool(src.dtype == a.dtype and src.shape == a.shape and src.flags.c_contiguous and a.flags.c_contiguous)


def address_of(array: NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])


class ReadsSourceLate(LateBackend):
    """Copies straight from the caller's memory, which it keeps alive, whenever the copy comes to run."""

    def async_set_value(self, dst: Any, src: Any, *, stream: Any = None) -> Event:
        if not contiguous(dst, src):
            return super().async_set_value(dst, src, stream=stream)
        handle = self.stream(stream)
        self.runtime.copy(address_of(dst.array), address_of(src), src.nbytes, Copy.HOST_TO_DEVICE, handle)
        event = self._event(handle)
        self.transfers.retain(event, (dst, src))
        return event


class KeepsTheLast(LateBackend):
    """Has one staging block for each source buffer, so several writes from one buffer all land with its last value."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.blocks: dict[int, NDArray[Any]] = {}

    def async_set_value(self, dst: Any, src: Any, *, stream: Any = None) -> Event:
        if not contiguous(dst, src):
            return super().async_set_value(dst, src, stream=stream)
        block = self.blocks.get(address_of(src))
        if block is None or block.nbytes != src.nbytes:
            block = self.blocks[address_of(src)] = np.empty_like(src)
        block[...] = src
        handle = self.stream(stream)
        self.runtime.copy(address_of(dst.array), address_of(block), src.nbytes, Copy.HOST_TO_DEVICE, handle)
        event = self._event(handle)
        self.transfers.retain(event, (dst, block))
        return event


class Blocks(LateBackend):
    """Waits for queued work before it writes."""

    def async_set_value(self, dst: Any, src: Any, *, stream: Any = None) -> Event:
        self.runtime.synchronize()
        return super().async_set_value(dst, src, stream=stream)


class Overtakes(LateBackend):
    """Writes at once, whatever is queued to read before."""

    def async_set_value(self, dst: Any, src: Any, *, stream: Any = None) -> Event:
        if isinstance(src, LateTensor) or not isinstance(dst, LateTensor):
            return super().async_set_value(dst, src, stream=stream)
        event = super().async_set_value(LateTensor(dst.array.copy()), src, stream=stream)  # all of its checks
        dst.array[...] = src
        return event


class Truncates(LateBackend):
    """Sends whole numbers as 32 bits."""

    def _set_block(
        self, dst: Any, info: TensorInfo, block: NDArray[Any], stream: int, operation: str, stats: Stats
    ) -> Event:
        if block.dtype == np.int64:
            block = block.astype(np.int32).astype(np.int64)
        return super()._set_block(dst, info, block, stream, operation, stats)


class Moves(LateBackend):
    """Gives a tensor that is written whole new memory."""

    def async_set_value(self, dst: Any, src: Any, *, stream: Any = None) -> Event:
        event = super().async_set_value(dst, src, stream=stream)
        if dst.array.base is None:
            event.sync()
            self.kept = dst.array  # what is queued still uses it
            dst.array = dst.array.copy()
        return event


class LosesWhenFull(LateBackend):
    """Drops a write for which the ring has no room."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.pending: list[tuple[Event, int]] = []

    def _set_block(
        self, dst: Any, info: TensorInfo, block: NDArray[Any], stream: int, operation: str, stats: Stats
    ) -> Event:
        self.pending = [(event, n) for event, n in self.pending if not event.is_done]
        if self.pending and sum(n for _, n in self.pending) + block.nbytes > self.staging_bytes:
            return DONE
        event = super()._set_block(dst, info, block, stream, operation, stats)
        self.pending.append((event, block.nbytes))
        return event


class DoneTooEarly(LateBackend):
    """Says of every event that it has passed."""

    def make_runtime(self) -> LateRuntime:
        class Runtime(LateRuntime):
            def is_done(self, event: int) -> bool:
                return True

            def sync_event(self, event: int) -> None:
                pass

            def free(self, address: int) -> None:
                pass  # what is queued still uses it, or the process would die of it

            free_host = free

        return Runtime()

    def make_tensors(self, runtime: LateRuntime) -> LateTensors:
        class Tensors(LateTensors):
            kept: ClassVar[list[LateTensor]] = []

            def empty(self, shape: tuple[int, ...], dtype: str) -> LateTensor:
                self.kept.append(super().empty(shape, dtype))
                return self.kept[-1]

        return Tensors(runtime)

    def make_applier(self, tensors: LateTensors) -> LateApplier:
        class Applier(LateApplier):
            def image_at(self, address: int, image: Image) -> NDArray[Any]:
                return image.to_bytes()  # a wrong one would write anywhere

        return Applier(tensors, self.late)


BROKEN = {
    IgnoresStrides: "W1",
    DropsOffset: "W1",
    ReadsSourceLate: "W4",
    KeepsTheLast: "W4",
    Blocks: "W6",
    Overtakes: "W5",
    Truncates: "W3",
    Moves: "W8",
    LosesWhenFull: "W6",
    DoneTooEarly: "B9",
}
