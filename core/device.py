"""The nouns of a device: what it can do, whether it is there, a tensor as it is seen, a point in a stream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True, slots=True)
class Abilities:
    """What a device can do (B12). Cautious: what is not declared is not used."""

    streams: bool = False
    """It has streams and events; without, every call has happened when it returns."""
    pinned_memory: bool = False
    async_upload: bool = False
    packed_apply: bool = False
    array_namespace: bool = False
    """Its tensors have an array-API namespace, so step functions run on them where they are."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Probe:
    """Whether a backend can be used here, why not, and the versions it found (B3)."""

    usable: bool
    reason: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    details: Mapping[str, str] = field(default_factory=dict)
    """What else ``doctor`` says of it: its staging memory, how packets are applied, the device's name."""
    raised: bool = False
    """The probe raised instead of answering; ``Backend.probe`` says so."""
    by_name_only: bool = False
    """What was found is no accelerator (a CPU behind OpenCL, say), whatever rank the class declares (B5)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorInfo:
    """A tensor as seen by its backend. ``strides`` in bytes, ``place`` as text such as ``"cpu"``."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    place: str
    pointer: int


class Event:
    """A point in a stream. This one has already passed: the event of a device without streams."""

    @property
    def is_done(self) -> bool:
        return True

    def sync(self) -> None:
        """Wait on the host until the point has passed."""

    def wait(self, stream: Any = None) -> None:
        """Let ``stream`` wait for the point, without the host."""


class Download:
    """A copy on its way to the host. This one has landed."""

    def __init__(self, array: NDArray[Any]) -> None:
        self._array = array

    @property
    def is_done(self) -> bool:
        """The copy has landed; ``array`` will not wait."""
        return True

    def array(self) -> NDArray[Any]:
        """What the tensor held when the copy came to it in the stream; waits for that."""
        return self._array


DONE = Event()
