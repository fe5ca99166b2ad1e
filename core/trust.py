"""A plugin's hooks while they run: what they raise and what they give back is held to the interface (rules W9, B7).

Everything here ends in ``DeviceError``, which names the backend, the operation and, for a wrong answer, the hook with
what it must give back.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

from slotline.core.device import Download, Event, TensorInfo
from slotline.core.errors import DeviceError, SlotlineError
from slotline.core.field import DTYPES

if TYPE_CHECKING:
    from slotline.core.backend import Backend

PASSED = (SlotlineError, MemoryError, AssertionError)
"""What is as it should be: errors raised on purpose, the host's memory, and the verdict of a test."""


class device_work:
    """Inside, whatever a device or its framework raises becomes ``DeviceError``, the cause chained (W9)."""

    __slots__ = ("_backend", "_operation")

    def __init__(self, backend: Backend, operation: str) -> None:
        self._backend, self._operation = backend, operation

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, _at: TracebackType | None) -> None:
        if isinstance(error, Exception) and not isinstance(error, PASSED):
            failed(self._backend, self._operation, error)


def failed(backend: Backend, operation: str, error: Exception) -> NoReturn:
    """``error`` again where it is one of ``PASSED``, else as ``DeviceError``."""
    if isinstance(error, PASSED):
        raise error
    raise DeviceError(backend.name, operation, None, None, f"{type(error).__name__}: {error}") from error


def _wrong(backend: Backend, hook: str, got: str, needed: str) -> NoReturn:
    detail = f"{type(backend).__name__}.{hook} returned {got}, needed: {needed}; mend the backend"
    raise DeviceError(backend.name, hook.lstrip("_"), None, None, detail)


def event_of(backend: Backend, hook: str, got: Any) -> Event:
    """``got``, the answer of a hook that has queued work."""
    if not isinstance(got, Event):
        needed = "a slotline.Event (slotline.device.DONE where nothing is queued)"
        _wrong(backend, hook, type(got).__name__, needed)
    return got


def download_of(backend: Backend, got: Any) -> Download:
    """``got``, the answer of ``_download``."""
    if not isinstance(got, Download):
        _wrong(backend, "_download", type(got).__name__, "a slotline.Download")
    return got


def tensors_of(backend: Backend, got: Any, specs: Sequence[Any]) -> list[Any]:
    """``got``, the answer of ``_allocate``: a tensor for each of ``specs``."""
    needed = f"a list of {len(specs)} tensors, one for each (name, shape, dtype)"
    if not isinstance(got, (list, tuple)):
        _wrong(backend, "_allocate", type(got).__name__, needed)
    if len(got) != len(specs):
        _wrong(backend, "_allocate", f"{len(got)} tensors", needed)
    return list(got)


def bytes_of(backend: Backend, got: Any, nbytes: int) -> memoryview:
    """``got``, the answer of ``_read``: ``nbytes`` bytes."""
    try:
        view = memoryview(got).cast("B")
    except TypeError:
        _wrong(backend, "_read", type(got).__name__, f"{nbytes} bytes")
    if view.nbytes != nbytes:
        _wrong(backend, "_read", f"{view.nbytes} bytes", f"{nbytes} bytes, as many as were asked for")
    return view


def info_of(backend: Backend, got: Any) -> TensorInfo | None:
    """``got``, the answer of ``_inspect``."""
    if got is not None and not isinstance(got, TensorInfo):
        _wrong(backend, "_inspect", type(got).__name__, "a slotline.TensorInfo, or None for what is no tensor of it")
    return got


def require_info(backend: Backend, info: TensorInfo) -> None:
    """``DeviceError`` naming the part of a tensor's description that is of a wrong type; looked at once a tensor."""

    def numbers(value: Any) -> bool:
        return isinstance(value, tuple) and all(type(n) is int for n in value)

    for part, value, right, needed in (
        ("shape", info.shape, numbers(info.shape), "a tuple of whole numbers"),
        ("strides", info.strides, numbers(info.strides), "a tuple of whole numbers, in bytes"),
        ("dtype", info.dtype, info.dtype in DTYPES, f"one of {', '.join(DTYPES)}"),
        ("pointer", info.pointer, type(info.pointer) is int, "a whole number, the address of the first cell"),
    ):
        if not right:
            _wrong(backend, "_inspect", f"a TensorInfo with {part} {value!r}", needed)
    if len(info.shape) != len(info.strides):
        got = f"a TensorInfo with {len(info.shape)} axes and {len(info.strides)} strides"
        _wrong(backend, "_inspect", got, "a stride for each axis")


def require_part(backend: Backend, part: Any, kind: type) -> None:
    """``TypeError`` unless ``part``, which a backend with streams starts with, is a ``kind``."""
    if not isinstance(part, kind):
        got = f"{type(backend).__name__}.start was given {type(part).__name__}"
        raise TypeError(f"{got}, needed: a subclass of {kind.__module__}.{kind.__name__}")
