"""Step functions on arrays that belong to no batch: an engine's own buffers, or plain NumPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from slotline.core import live
from slotline.core.namespace import NUMPY
from slotline.core.trust import device_work

Dims = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Argument:
    """An array that a function was given, and the shape that it must have.

    Names stand for any length; "K+1" is one more than "K".
    """

    array: Any
    dims: Dims
    bool_: bool = False
    """It holds truth values; without, whole numbers."""
    least: int = 0
    """How long its last axis must be."""


def run_alone(
    what: str,
    run: Callable[[Any, Any, Any], None],
    given: Mapping[str, Argument],
    made: Mapping[str, tuple[Dims, str]],
) -> dict[str, Any]:
    """Run ``run(namespace, reads, writes)`` where the given arrays live; the new arrays ``made`` (dims, dtype).

    A dtype that names arguments ("a, b") means theirs if they agree and can hold -1, else int64.

    ``ValueError`` naming the argument for a shape or a dtype that does not fit; ``TypeError`` for something that is
    neither a NumPy array nor a tensor of a loaded backend, or of two backends at once.
    """
    arrays = {key: argument.array for key, argument in given.items()}
    tensors = {key: a for key, a in arrays.items() if not isinstance(a, np.ndarray)}
    backend = None
    if tensors:
        first = next(iter(tensors))
        try:
            backend = live.owner(tensors[first])
            infos = {key: backend.inspect(a) for key, a in tensors.items()}
        except TypeError as error:
            raise TypeError(f"{what}: {error}; allowed: NumPy arrays, or tensors of one loaded backend") from None
    sizes: dict[str, int] = {}
    dtypes: dict[str, str] = {}
    for key, argument in given.items():
        seen = infos[key] if key in tensors else argument.array
        dtypes[key] = seen.dtype if isinstance(seen.dtype, str) else seen.dtype.name
        _require(what, key, argument, tuple(seen.shape), dtypes[key], sizes)
    specs = [
        (key, tuple(d if isinstance(d, int) else sizes[d] for d in dims), _dtype(dtype, dtypes))
        for key, (dims, dtype) in made.items()
    ]
    if backend is None:
        out: dict[str, Any] = {key: np.empty(shape, dtype) for key, shape, dtype in specs}
        run(NUMPY, arrays, out)
        return out
    hosts = {key: a for key, a in arrays.items() if key not in tensors}
    reads = {**tensors, **backend.upload(hosts, what)}
    out = backend.empty(specs)
    xp = backend.namespace
    with device_work(backend, what):
        backend.launch(lambda r, w: run(xp, r, w), reads, out, fills=tuple(out))
    return out


def _dtype(said: str, dtypes: Mapping[str, str]) -> str:
    found = {dtypes.get(name, name) for name in said.split(", ")}
    (one,) = found if len(found) == 1 else ("int64",)
    return "int64" if one.startswith("uint") else one


def _require(
    what: str, key: str, argument: Argument, shape: tuple[int, ...], dtype: str, sizes: dict[str, int]
) -> None:
    dims = argument.dims
    for d in dims:
        if isinstance(d, str) and d.endswith("+1") and d[:-2] in sizes:
            sizes.setdefault(d, sizes[d[:-2]] + 1)
    want = tuple(sizes.get(d, d) if isinstance(d, str) else d for d in dims)
    if len(shape) != len(dims) or any(isinstance(w, int) and w != n for w, n in zip(want, shape, strict=True)):
        text = ", ".join(str(d) if d == w else f"{d}={w}" for d, w in zip(dims, want, strict=True))
        raise ValueError(f"{what}: {key} has shape {list(shape)}, needed: [{text}]")
    if shape[-1] < argument.least:
        raise ValueError(f"{what}: {key} has shape {list(shape)}, needed: {dims[-1]} of at least {argument.least}")
    for d, n in zip(dims, shape, strict=True):
        if isinstance(d, str):
            sizes.setdefault(d, n)
    if (dtype == "bool") != argument.bool_ or not (argument.bool_ or "int" in dtype):
        raise ValueError(f"{what}: {key} is {dtype}, allowed: {'bool' if argument.bool_ else 'whole numbers'}")
