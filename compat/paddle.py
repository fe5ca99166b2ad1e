"""paddle 3.x: finding it, and its tensors over NumPy's memory. Its array namespace: ``paddle_namespace``."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slotline.compat.frameworks import find, versioned

OLDEST = (3, 0)


def require() -> ModuleType:
    """paddle, imported now. ``BackendUnavailable`` if it is missing, broken or older than 3.0."""
    return versioned(find("paddle", "paddle"), "paddle", OLDEST)


def version() -> str:
    return str(require().__version__)


def from_numpy(array: NDArray[Any]) -> Any:
    """A tensor over the memory of ``array``, which it keeps alive. No copy."""
    paddle = require()
    from_dlpack = paddle.utils.dlpack.from_dlpack
    if array.dtype.name == "bfloat16":  # NumPy's DLPack does not know it
        return from_dlpack(array.view(np.int16)).view("bfloat16")
    return from_dlpack(array)


def namespace() -> Any:
    """The array namespace: the functions of the standard that step functions use, and ours beside them."""
    from slotline.compat.paddle_namespace import make

    return make(require())


def narrow(tensor: Any, dtype: Any) -> Any:
    """``tensor`` in ``dtype``; float64 into a float of less than 32 bits is rounded once, by a float32 to odd."""
    paddle = require()
    if tensor.dtype != paddle.float64 or dtype not in (paddle.float16, paddle.bfloat16):
        return paddle.cast(tensor, dtype)
    middle = paddle.cast(tensor, paddle.float32)
    back = paddle.cast(middle, paddle.float64)
    beyond = paddle.cast(back.abs() > tensor.abs(), paddle.int32)  # rounded away from zero: one step back
    bits = paddle.bitwise_or(middle.view("int32") - beyond, paddle.ones_like(beyond))
    inexact = paddle.logical_and(back != tensor, paddle.logical_not(paddle.isnan(tensor)))
    return paddle.cast(paddle.where(inexact, bits.view("float32"), middle), dtype)


def device_count(kind: str) -> int | None:
    """Devices of a kind that this paddle sees; None: it is not built for them."""
    paddle = require()
    if kind == "gpu":
        return int(paddle.device.cuda.device_count()) if paddle.is_compiled_with_cuda() else None
    if kind == "xpu":
        return int(paddle.device.xpu.device_count()) if paddle.is_compiled_with_xpu() else None
    if kind not in list(paddle.device.get_all_custom_device_type()):
        return None
    return sum(str(name).split(":")[0] == kind for name in paddle.device.get_available_custom_device())


def foreign_stream(handle: int, kind: str, device: str) -> Any:
    """A stream of paddle's around a native handle; ``ValueError`` where this paddle cannot make one."""
    paddle = require()
    wrap = getattr(paddle.device, "get_stream_from_external", None)  # 3.3 and newer, CUDA only
    if kind != "gpu" or wrap is None:
        raise ValueError(f"stream {handle} is none of paddle's on {device}; pass paddle's own stream object")
    return wrap(handle, device)


def make_event(device: str) -> Any:
    """A new event of the current device; until 3.2 it took the device."""
    paddle = require()
    try:
        return paddle.device.Event()
    except TypeError:
        return paddle.device.Event(device)
