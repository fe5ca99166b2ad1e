"""Backend: what a device implements (rules B9 to B12, W).

Public methods check and count; a device writes the underscored hooks of ``core.hooks``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

import slotline.core.strided as strided
import slotline.core.values as values
from slotline.core import arguments, live, trust
from slotline.core.device import DONE, Abilities, Download, Event, Probe, TensorInfo
from slotline.core.errors import BackendUnavailable, DeviceError, LayoutError, nearest
from slotline.core.hooks import Hooks
from slotline.core.layout import BufferLayout, numpy_dtype
from slotline.core.stats import Stats
from slotline.core.streams import stream_handle
from slotline.core.trust import device_work

if TYPE_CHECKING:
    from slotline.core.packet import Packet


class Backend(Hooks):
    """A device: memory, copies, streams. One object for each device in use.

    Subclasses set ``name`` and ``abilities`` and write the hooks. Never give a backend ``__len__`` or ``__bool__``:
    the plugin loader takes a falsy object for a missing one.
    """

    name: ClassVar[str]
    vendor: str | None = None
    vendors: ClassVar[tuple[str, ...]] = ()
    """Makers that the one name stands for, each probed on its own; which one is meant must be clear (B6)."""
    priority: ClassVar[int | None] = None
    """Rank for the choice of "auto"; None: only by name (B5)."""
    frameworks: ClassVar[tuple[str, ...]] = ("numpy",)
    device_count: ClassVar[int | None] = None
    """How many devices there are, where it is always the same number; None: the probe asks the driver."""
    abilities: Abilities = Abilities()

    def __init__(
        self,
        *,
        framework: str | None = None,
        vendor: str | None = None,
        device: int = 0,
        staging_bytes: int = arguments.DEFAULT_STAGING_BYTES,
    ) -> None:
        self.require_offered(framework=framework, vendor=vendor, device=device)
        self.staging_bytes = arguments.staging_bytes(staging_bytes)
        self.framework = framework or self.frameworks[0]
        self.vendor = vendor or self.vendor
        self.device = device
        self.stats = Stats()
        live.enter(self)

    # -- finding out

    @classmethod
    def rank(cls, vendor: str | None) -> int | None:
        """The priority where ``vendor``, one of ``vendors``, makes the device: Kunlun answers other probes too (B5)."""
        return cls.priority

    @classmethod
    def not_offered(cls, *, framework: str | None, vendor: str | None, device: int) -> dict[str, str]:
        """What of these it never has, on any machine: by the argument's name, with what is allowed (C).

        None stands for its own framework, and for any vendor.
        """
        vendors = cls.vendors or ((cls.vendor,) if cls.vendor else ())
        out: dict[str, str] = {}
        for key, got, known in (("framework", framework, cls.frameworks), ("vendor", vendor, vendors)):
            if got is not None and got not in known:
                allowed = f"{', '.join(known)}{nearest(got, known)}" if known else "none, leave it out"
                out[key] = f"has no {key} {got!r}, allowed: {allowed}"
        if cls.device_count is not None and not 0 <= device < cls.device_count:
            allowed = "0" if cls.device_count == 1 else f"0 to {cls.device_count - 1}"
            out["device"] = f"has no device {device}, allowed: {allowed}"
        return out

    @classmethod
    def require_offered(cls, *, framework: str | None, vendor: str | None, device: int) -> None:
        """``BackendUnavailable`` for the first of ``not_offered``."""
        for problem in cls.not_offered(framework=framework, vendor=vendor, device=device).values():
            raise BackendUnavailable(f"backend {cls.name!r} {problem}")

    @classmethod
    def ask(cls, *, framework: str | None = None, vendor: str | None = None, device: int = 0) -> Probe:
        """``probe`` that lets the device's own exceptions through, for a backend that was asked for by name (B4)."""
        cls.require_offered(framework=framework, vendor=vendor, device=device)
        found = cls._probe(framework=framework, vendor=vendor, device=device)
        if not isinstance(found, Probe):
            raise TypeError(f"{cls.__name__}._probe returned {type(found).__name__}, needed: slotline.Probe")
        return found

    @classmethod
    def probe(cls, *, framework: str | None = None, vendor: str | None = None, device: int = 0) -> Probe:
        """Whether the device can be used here. Never raises; leaves no state behind (B3)."""
        try:
            return cls.ask(framework=framework, vendor=vendor, device=device)
        except BackendUnavailable as error:
            return Probe(usable=False, reason=str(error))
        except Exception as error:  # noqa: BLE001  (a vendor's probe may raise anything; B3 turns it into a verdict)
            return Probe(usable=False, reason=f"probe failed: {type(error).__name__}: {error}", raised=True)

    def inspect(self, tensor: Any) -> TensorInfo:
        """Shape, strides, dtype and place of a tensor of this backend; ``TypeError`` for any other object."""
        info = self._seen(tensor)
        if info is None:
            raise TypeError(f"{self._named(tensor)} is not a tensor of backend {self.name!r} ({self.framework})")
        return info

    def _seen(self, tensor: Any) -> TensorInfo | None:
        """``_inspect``, its answer checked."""
        try:
            return trust.info_of(self, self._inspect(tensor))
        except Exception as error:  # noqa: BLE001  (it is raised again, as what W9 says)
            trust.failed(self, "inspect", error)

    def _named(self, tensor: Any) -> str:
        """What an object is, for a message."""
        kind = type(tensor)
        top = kind.__module__.split(".")[0]
        name = f"{top}.{kind.__name__}" if hasattr(tensor, "shape") else kind.__name__
        problem = self._why_not(tensor)
        return f"{name} ({problem})" if problem else name

    def _destination(self, tensor: Any) -> TensorInfo:
        """``inspect`` of what is to be written; ``ValueError`` if it must not be."""
        info = self.inspect(tensor)
        problem = self._why_not_written(tensor)
        if problem:
            raise ValueError(f"the destination is {problem}")
        return info

    def stream(self, stream: Any = None) -> int:
        """The handle of ``stream`` in any form of B9; 0 where the device has no streams, whatever the handle."""
        stream_handle(stream)
        return 0

    def new_stream(self) -> Any:
        """A new stream that orders itself with no other, as ``stream=`` takes it (B9).

        ``DeviceError`` where the device has none: there every call has happened when it returns.
        """
        raise DeviceError(self.name, "new_stream", None, None, "the device has no streams; leave stream= out")

    # -- memory

    def allocate(self, layout: BufferLayout, names: Sequence[str]) -> dict[str, Any]:
        """Device tensors for the fields ``names``, called once for a layout (B10). Their content is undefined."""
        tensors = self.empty([(n, layout.shape(n), layout[n].dtype) for n in names])
        for name, tensor in tensors.items():
            self.check(layout, name, tensor)
        return tensors

    def check(self, layout: BufferLayout, name: str, tensor: Any) -> None:
        """``LayoutError`` unless ``tensor`` fits the field ``name`` in shape, dtype and place (F4)."""
        shape, dtype = layout.shape(name), layout[name].dtype
        self._require_dtype(name, dtype)
        info = self._seen(tensor)
        if info is None:
            needed = f"a {self.framework} tensor of {dtype} {shape} of backend {self.name!r}"
            raise LayoutError(f"field {name!r}: got {self._named(tensor)}, needed: {needed}")
        trust.require_info(self, info)
        if (info.shape, info.dtype) != (shape, dtype):
            raise LayoutError(f"field {name!r}: got {info.dtype} {info.shape}, needed: {dtype} {shape}")
        problem = self._why_not_written(tensor)
        if problem:
            raise LayoutError(f"field {name!r}: the tensor is {problem}")

    def read(self, tensor: Any, operation: str = "read", stats: Stats | None = None) -> NDArray[Any]:
        """A host copy of ``tensor`` after all queued work; a host synchronisation, counted."""
        info = self.inspect(tensor)
        out: NDArray[Any] = np.empty(info.shape, numpy_dtype(info.dtype))
        for offset, cells in strided.segments(info.shape, info.strides, out.itemsize, out.strides):
            nbytes = cells * out.itemsize
            with device_work(self, operation):
                data = trust.bytes_of(self, self._read(tensor, offset[0], nbytes), nbytes)
            strided.bytes_of(out)[offset[1] : offset[1] + nbytes] = np.frombuffer(data, np.uint8)
        for counter in ("device_to_host", "host_synchronisations") if self.abilities.streams else ("device_to_host",):
            (stats or self.stats).add(counter, operation)
        return out

    def empty(self, specs: Sequence[tuple[str, tuple[int, ...], str]]) -> dict[str, Any]:
        """New tensors by name, for each (name, shape, dtype). Their content is undefined.

        ``ValueError`` for a name that stands twice or a size below 0, ``TypeError`` for a size that is no whole number.
        """
        checked = [(name, arguments.shape(name, shape), dtype) for name, shape, dtype in specs]
        names = [name for name, _, _ in checked]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise ValueError(f"tensor {twice!r} stands {names.count(twice)} times, allowed: once; give it another name")
        with device_work(self, "allocate"):
            return dict(zip(names, trust.tensors_of(self, self._allocate(checked), checked), strict=True))

    def host_tensor(self, array: NDArray[Any]) -> Any:
        """``array``, contiguous, as the framework's own CPU tensor over the same memory: what a host field is (F2)."""
        return self._host_tensor(array)

    def host_view(self, tensor: Any) -> NDArray[Any]:
        """The memory of a host tensor of the framework, or a NumPy array itself; ``TypeError`` for anything else."""
        array = self._host_source(tensor)
        if not isinstance(array, np.ndarray):
            raise TypeError(f"{type(tensor).__name__} is not a host array, nor a CPU tensor of {self.framework}")
        return array

    def download(self, tensor: Any, operation: str = "download", stats: Stats | None = None) -> Download:
        """Start one copy of ``tensor`` to the host, in the order of the stream (L6)."""
        self.inspect(tensor)
        with device_work(self, operation):
            return trust.download_of(self, self._download(tensor, operation, stats or self.stats))

    # -- writing

    def async_set_value(self, dst: Any, src: Any, *, stream: Any = None) -> Event:
        """Write ``src`` into the view ``dst`` (rules W). ``src`` may be changed or freed at once."""
        info = self._destination(dst)
        self.stream(stream)
        source = self._seen(src)
        if source is None:
            block = values.from_host(self._host_source(src), info.dtype, info.shape)
        else:
            values.check_device_source(source.dtype, info.dtype)
            block = values.from_host(self.read(src, "async_set_value"), info.dtype, info.shape, checked=False)
        self.stats.add("transfers", "async_set_value")
        self.stats.add("bytes", "async_set_value", block.nbytes)
        with device_work(self, "async_set_value"):
            return trust.event_of(self, "_set", self._set(dst, info, block, stream))

    def bind(self, layout: BufferLayout, buffers: Sequence[Any]) -> Any:
        """``buffers``, for ``apply``, with what the device needs to know of them found out once."""
        return buffers

    def apply(self, packet: Packet, buffers: Any, *, stream: Any = None, stats: Stats | None = None) -> Event:
        """Write a packet into ``buffers``, the tensors of the layout's fields in order (None: not on the device).

        What ``bind`` gave may be passed instead: it is quicker.
        """
        self.stream(stream)
        counted = stats or self.stats
        counted.add("transfers", packet.operation)
        counted.add("bytes", packet.operation, packet.nbytes)
        counted.add("kernels", packet.operation)
        with device_work(self, packet.operation):
            return trust.event_of(self, "_apply", self._apply(packet, buffers, stream))

    def launch(
        self,
        fn: Callable[..., None],
        reads: Mapping[str, Any],
        writes: Mapping[str, Any],
        stream: Any = None,
        stats: Stats | None = None,
        fills: Collection[str] = (),
    ) -> Event:
        """Run ``fn(reads, writes)`` on mappings of arrays of ``namespace``, in the order of the stream (B11).

        ``fn`` changes the arrays of ``writes`` in place; those named in ``fills`` it writes whole, so that what they
        held need not be read. Here: by copies to the host and back, counted.
        """
        return trust.event_of(self, "_launch", self._launch(fn, reads, writes, stream, stats or self.stats, fills))

    @functools.cached_property
    def namespace(self) -> Any:
        """The array namespace of what ``launch`` hands to its function: see ``core.namespace``."""
        return self._namespace()

    def upload(
        self, arrays: Mapping[str, NDArray[Any]], operation: str = "upload", stats: Stats | None = None
    ) -> dict[str, Any]:
        """Host arrays as ``launch`` takes them beside tensors; they may be changed or freed at once."""
        if not self.abilities.array_namespace:  # launch runs on the host
            return {name: array.copy() for name, array in arrays.items()}
        for array in arrays.values():
            (stats or self.stats).add("transfers", operation)
            (stats or self.stats).add("bytes", operation, array.nbytes)
        with device_work(self, operation):
            return {name: self._upload(array) for name, array in arrays.items()}

    def synchronize(self) -> None:
        """Wait on the host until all queued work is done."""
        with device_work(self, "synchronize"):
            self._synchronize()

    def close(self) -> None:
        """Give back what the device holds; the object cannot be used afterwards."""
        live.leave(self)


__all__ = ["DONE", "Abilities", "Backend", "Download", "Event", "Probe", "TensorInfo"]
