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
