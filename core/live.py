"""The backends in use, and which of them a tensor belongs to."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from slotline.core.errors import DeviceError

if TYPE_CHECKING:
    from slotline.core.backend import Backend
    from slotline.core.device import Event

_live: weakref.WeakValueDictionary[int, Backend] = weakref.WeakValueDictionary()
"""In the order of their making."""


def enter(backend: Backend) -> None:
    """``backend`` is in use from now on, until it is dropped or closed."""
    _live[id(backend)] = backend


def leave(backend: Backend) -> None:
    """``backend`` is not in use any more."""
    _live.pop(id(backend), None)


def owner(tensor: Any) -> Backend:
    """The loaded backend whose tensor it is; ``TypeError`` if there is none, ``DeviceError`` if one cannot say."""
    live = [b for ref in _live.valuerefs() if (b := ref()) is not None]  # a copy: other threads may load backends (W10)
    broken: DeviceError | None = None
    for backend in live:
        try:
            if backend._seen(tensor) is not None:
                return backend
        except DeviceError as error:  # one that is broken does not take another's tensor away (B7)
            broken = broken or error
    if broken is not None:
        raise broken
    names = ", ".join(sorted({f"{b.name} ({b.framework})" for b in live}))
    names = names or "none is loaded; call slotline.load_backend() and keep what it gives"
    raise TypeError(f"{type(tensor).__name__} is not a tensor of a loaded backend ({names})")


def async_set_value(dst: Any, src: Any, *, stream: Any = None) -> Event:
    """Write ``src`` into ``dst``, a device tensor of a loaded backend or any view of it (rules W1 to W10).

    ``src``: a number, nested lists, a NumPy array, a host tensor of the framework or a device tensor, broadcast as in
    NumPy assignment. A host source is read before the call returns.

    Raises ``TypeError`` for a destination or a source of an unknown type, ``ValueError`` for a value that the
    destination's dtype cannot hold or a shape that does not fit; nothing is written then.
    """
    return owner(dst).async_set_value(dst, src, stream=stream)
