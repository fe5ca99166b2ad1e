"""torch 2.4 and newer: finding it, and its array namespace."""

from __future__ import annotations

import functools
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slotline.compat.frameworks import find, versioned
from slotline.core.errors import BackendUnavailable

OLDEST = (2, 4)
_CARRIERS = {"bfloat16": np.int16, "uint16": np.int16, "uint32": np.int32, "uint64": np.int64}
"""What brings a dtype over that not every release takes from NumPy."""
_MAKING = ("arange", "asarray", "empty", "full", "linspace", "ones", "zeros")
"""Functions of the namespace that make a tensor out of none."""


def require() -> ModuleType:
    """torch, imported now. ``BackendUnavailable`` if it is missing, broken or older than 2.4."""
    return versioned(find("torch", "torch"), "torch", OLDEST)


def version() -> str:
    return str(require().__version__)


def from_numpy(array: NDArray[Any]) -> Any:
    """A CPU tensor over the memory of ``array``. No copy."""
    torch, name = require(), array.dtype.name
    with torch.inference_mode(False):  # a tensor made in it could not be written outside of it
        if name in _CARRIERS:
            return torch.from_numpy(array.view(_CARRIERS[name])).view(getattr(torch, name))
        return torch.from_numpy(array)


def narrow(tensor: Any, dtype: Any) -> Any:
    """Float64 ``tensor`` in a float of less than 32 bits, rounded once; torch goes by float32 and would round twice.

    The float32 on the way is rounded to odd: its last bit says whether anything was cut off.
    """
    torch = require()
    middle = tensor.to(torch.float32)
    back = middle.to(torch.float64)
    bits = middle.view(torch.int32)
    beyond = back.abs() > tensor.abs()  # rounded away from zero: one step back
    bits = (bits - beyond.to(torch.int32)) | 1
    inexact = (back != tensor) & ~tensor.isnan()
    return torch.where(inexact, bits.view(torch.float32), middle).to(dtype)


def namespace(device: Any = None) -> Any:
    """The array API standard's functions (array-api-compat) and those of ``slotline.core.namespace``.

    ``device``: where those that make a tensor out of none make it; None: torch's default.
    """
    torch = require()
    standard: Any = import_module("array_api_compat.torch")

    unsigned = {
        getattr(torch, f"u{n}"): getattr(torch, n) for n in ("int16", "int32", "int64") if hasattr(torch, f"u{n}")
    }

    def where(condition: Any, x: Any, y: Any) -> Any:
        """One branch may be a Python number: it takes the other's dtype, as the standard says since 2024."""
        if not isinstance(x, torch.Tensor):
            x = torch.full((), x, dtype=y.dtype, device=y.device)  # of the host it would be copied over, with a wait
        elif not isinstance(y, torch.Tensor):
            y = torch.full((), y, dtype=x.dtype, device=x.device)
        return torch.where(condition, *_promoted(x, y))

    def _promoted(x: Any, y: Any) -> tuple[Any, Any]:
        """torch itself gives a tensor without axes no say in the dtype."""
        if x.dtype != y.dtype:
            dtype = torch.promote_types(x.dtype, y.dtype)
            return x.to(dtype), y.to(dtype)
        return x, y

    def argmax(x: Any, axis: int | None = None, keepdims: bool = False) -> Any:
        """The first of the greatest; masks too, which torch refuses."""
        return standard.argmax(x.to(torch.int8) if x.dtype == torch.bool else x, axis=axis, keepdims=keepdims)

    def take_along(x: Any, index: Any, axis: int) -> Any:
        """``x`` at ``index`` along ``axis``. A new tensor."""
        return torch.take_along_dim(x, index.to(torch.int64), axis)

    def scatter_rows(array: Any, index: Any, values: Any, mask: Any) -> None:
        """In place: ``array[s, index[s, j]] = values[s, j]`` where ``mask[s, j]``."""
        at = index.to(torch.int64)
        array.scatter_(1, at, torch.where(mask, values.to(array.dtype), array.gather(1, at)))

    def searchsorted(sorted_1d: Any, values: Any, side: str = "left") -> Any:
        """Where ``values`` belong in an ascending vector, int64."""
        # It wants one dtype, and warns of views, which it would copy too.
        vector, wanted = (t.contiguous() for t in _promoted(sorted_1d, values))
        return torch.searchsorted(vector, wanted, side=side)

    def put_rows(array: Any, rows: Any, values: Any, axis: int) -> None:
        """In place: row ``rows[i]`` along ``axis`` becomes row ``i`` of ``values``."""
        bits = unsigned.get(array.dtype)  # of these torch only has the names; as signed numbers they can be moved
        values = values.to(array.dtype)
        if bits is not None:
            array, values = array.view(bits), values.view(bits)
        array.index_copy_(axis, rows.to(torch.int64), values)

    def take(x: Any, indices: Any, axis: int | None = None) -> Any:
        bits = unsigned.get(x.dtype)
        return standard.take(x, indices, axis=axis) if bits is None else take(x.view(bits), indices, axis).view(x.dtype)

    functions = (where, argmax, take, take_along, scatter_rows, searchsorted, put_rows)
    names = {name: getattr(standard, name) for name in dir(standard) if not name.startswith("_")}
    if device is not None:
        names |= {name: functools.partial(names[name], device=device) for name in _MAKING}
    return SimpleNamespace(**names | {f.__name__: f for f in functions})


def device_module(kind: str) -> Any:
    """``torch.cuda``, ``torch.xpu`` and the like. ``BackendUnavailable`` if this torch has none of that name."""
    found = getattr(require(), kind, None)
    if found is None:
        raise BackendUnavailable(f"torch {version()} has no device {kind!r}; install torch's build for it")
    return found
