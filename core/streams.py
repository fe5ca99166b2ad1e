"""Stream handles in every form that engines have them (rule B9), and points in a stream."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from slotline.core.device import Event

if TYPE_CHECKING:
    from slotline.core.runtime import Runtime

_ALLOWED = "a handle as a number, an object with __cuda_stream__, cuda_stream, ptr, value or __int__, or None"


def stream_handle(stream: Any) -> int | None:
    """The native handle of ``stream``; None, the current stream, stays None (B9).

    Takes int, NumPy integers, and objects with ``__cuda_stream__`` (a method or a tuple: version, handle),
    ``cuda_stream``, ``ptr``, ``value`` (a ctypes pointer) or ``__int__``. ``TypeError`` for anything else, flags
    and text included; ``ValueError`` for a negative number.
    """
    if stream is None:
        return None
    handle = _handle(stream)
    if handle < 0:
        raise ValueError(f"stream is {handle}, allowed: {_ALLOWED}")
    return handle


def _handle(stream: Any) -> int:
    if isinstance(stream, (bool, np.bool_, str, bytes, float, np.floating)):
        raise TypeError(f"stream is {stream!r}, allowed: {_ALLOWED}")
    if isinstance(stream, (int, np.integer)):
        return int(stream)
    protocol = getattr(stream, "__cuda_stream__", None)
    if protocol is not None:
        pair = protocol() if callable(protocol) else protocol
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise TypeError(f"__cuda_stream__ of {type(stream).__name__} gives {pair!r}, needed: (version, handle)")
        return int(pair[1])
    for name in ("cuda_stream", "ptr", "value"):
        found = getattr(stream, name, None)
        if isinstance(found, (int, np.integer)) and not isinstance(found, bool):
            return int(found)
        if name == "value" and hasattr(stream, "value") and found is None:  # a ctypes pointer that is NULL
            return 0
    if hasattr(stream, "__int__") and not isinstance(stream, np.ndarray):
        return int(stream)
    raise TypeError(f"stream is {type(stream).__name__}, allowed: {_ALLOWED}")


class EventPool:
    """Events of one runtime, used again once nobody holds them: making one costs more than a write."""

    def __init__(self, runtime: Runtime, stream_of: Callable[[Any], int | None] = lambda stream: None) -> None:
        self.runtime, self._stream_of = runtime, stream_of
        self._free: list[int] = []
        self._made: set[int] = set()
        self._lock = threading.RLock()  # events are dropped anywhere, also by the collector inside of ``record``

    def record(self, stream: int) -> StreamEvent:
        """The point behind all that is queued on ``stream`` now."""
        with self._lock:
            handle = self._free.pop() if self._free else None
        if handle is None:
            handle = self.runtime.create_event()
            with self._lock:
                self._made.add(handle)
        event = StreamEvent(self, handle)
        self.runtime.record(handle, stream)
        return event

    def handle(self, stream: Any) -> int:
        """The handle of ``stream`` in any form of B9, the framework's own streams too; None: the current one."""
        handle = self._stream_of(stream)
        if handle is None:
            handle = stream_handle(stream)
        return self.runtime.current_stream() if handle is None else handle

    def give_back(self, handle: int) -> None:
        with self._lock:
            if handle in self._made:  # not after ``close``
                self._free.append(handle)

    def close(self) -> None:
        """Destroy every event; those that are still held stay usable as events that have passed."""
        with self._lock:
            made, self._made, self._free = self._made, set(), []
        for handle in sorted(made):
            self.runtime.destroy_event(handle)

    def __contains__(self, handle: int) -> bool:
        return handle in self._made


class StreamEvent(Event):
    """A point in a stream; holds its native event until it is dropped."""

    __slots__ = ("_done", "_handle", "_pool")

    def __init__(self, pool: EventPool, handle: int) -> None:
        self._pool, self._handle, self._done = pool, handle, False

    @property
    def is_done(self) -> bool:
        if not self._done:
            self._done = self._handle not in self._pool or self._pool.runtime.is_done(self._handle)
        return self._done

    def sync(self) -> None:
        if not self._done and self._handle in self._pool:
            self._pool.runtime.sync_event(self._handle)
        self._done = True

    def wait(self, stream: Any = None) -> None:
        if not self._done and self._handle in self._pool:
            self._pool.runtime.wait(self._pool.handle(stream), self._handle)

    def __del__(self) -> None:
        self._pool.give_back(self._handle)
