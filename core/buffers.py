"""Buffers: the tensors of a layout on a backend, host fields and mirrors, and how operations reach them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from slotline.core.backend import DONE, Backend, Event
from slotline.core.errors import LayoutError
from slotline.core.host_buffers import HostBuffers, side_by_side
from slotline.core.layout import BufferLayout, numpy_dtype
from slotline.core.namespace import NUMPY, put
from slotline.core.packet import Packet
from slotline.core.scalars import place
from slotline.core.standard import mtp_layout, target_layout
from slotline.core.stats import Stats
from slotline.core.strided import cells_apart, shadow
from slotline.core.trust import device_work

BESIDE = "\n"
"""How the names begin of what is launched beside fields; no field's name, which is printable, begins so."""
View = Callable[[Any, Any], Any]
"""``view(namespace, array)``: the array in its standard shape."""


class _StepPlan(NamedTuple):
    """The tensors of one step function by key, made once: a batch never changes them."""

    reads: dict[str, Any]
    writes: dict[str, Any]
    views: dict[str, View]
    twins: dict[str, str]


class Buffers:
    """What a batch keeps in memory.

    ``tensors``: by field, tensors of the framework; ``hosts``: the memory of host fields as arrays; ``mirrors``: host
    copies of mirrored fields.
    """

    def __init__(self, layout: BufferLayout, backend: Backend, stats: Stats, adopted: dict[str, Any]) -> None:
        self.layout, self.backend, self.stats = layout, backend, stats
        self.hosts: dict[str, NDArray[Any]] = {}
        self.tensors = self._allocate(adopted)
        self.mirrors = self._hosts([f.name for f in layout if f.residency == "mirrored"])
        names = layout.names
        self._device = backend.bind(layout, [self.tensors[n] if layout[n].on_device else None for n in names])
        self._host = HostBuffers(layout, [self.mirrors.get(n, self.hosts.get(n)) for n in names])
        self._on_device = [layout[n].on_device for n in names]
        self._standard = target_layout(layout.config)
        if layout.config.spec_method == "mtp":
            self._standard |= mtp_layout(layout.config)
        self._plans: dict[str, _StepPlan] = {}

    def _allocate(self, adopted: dict[str, Any]) -> dict[str, Any]:
        layout = self.layout
        for name, tensor in adopted.items():
            if layout[name].on_device:
                self.backend.check(layout, name, tensor)
            else:
                self.hosts[name] = self._adopted_host(name, tensor)
        self._require_apart(adopted)
        # In the order of groups of scalars, so that their vectors may lie side by side.
        new_fields = sorted((f for f in layout if f.name not in adopted), key=place)
        fresh = self.backend.allocate(layout, [f.name for f in new_fields if f.on_device])
        new = self._hosts([f.name for f in new_fields if not f.on_device])
        self.hosts |= new
        return {**fresh, **{name: self.backend.host_tensor(array) for name, array in new.items()}, **adopted}

    def _adopted_host(self, name: str, tensor: Any) -> NDArray[Any]:
        shape, dtype = self.layout.shape(name), numpy_dtype(self.layout[name].dtype)
        try:
            array = self.backend.host_view(tensor)
        except TypeError as error:
            raise LayoutError(f"field {name!r}: {error}; needed: a host array of {dtype} {shape}") from None
        if (array.shape, array.dtype) != (shape, dtype):
            got = f"{array.dtype} {array.shape}"
            raise LayoutError(f"field {name!r}: got {got}, needed: a host array of {dtype} {shape}")
        return array

    def _require_apart(self, adopted: dict[str, Any]) -> None:
        """``LayoutError`` if two cells of the adopted tensors are one, within a tensor or of two fields."""
        seen: dict[str, NDArray[Any]] = {}
        for name, tensor in adopted.items():
            memory = self.hosts[name] if name in self.hosts else shadow(self.backend.inspect(tensor))
            if name in self.hosts and not memory.flags.writeable:
                raise LayoutError(f"field {name!r}: the array is read-only")
            if not cells_apart(memory.shape, memory.strides, memory.itemsize):
                raise LayoutError(f"field {name!r}: the tensor has several cells in one place; copy it first")
            for other, theirs in seen.items():
                if np.may_share_memory(memory, theirs) and np.shares_memory(memory, theirs, max_work=-1):
                    raise LayoutError(f"fields {other!r} and {name!r} cannot share memory")
            seen[name] = memory

    def _hosts(self, names: Sequence[str]) -> dict[str, NDArray[Any]]:
        """New host arrays."""
        specs = [(self.layout.shape(n), numpy_dtype(self.layout[n].dtype)) for n in names]
        return dict(zip(names, side_by_side(specs), strict=True))

    def apply(self, packet: Packet, stream: Any) -> Event:
        """Write a packet to the device, and its host part to host fields and mirrors at once.

        The device first: where it fails, nothing has changed.
        """
        device = packet.on_device(self._on_device)
        event = self.backend.apply(device, self._device, stream=stream, stats=self.stats) if len(device) else DONE
        self._host.apply(packet)
        return event

    def fill_all(self, operation: str) -> None:
        """Every cell of every field to its fill."""
        fills = {f.name: f.fill for f in self.layout}

        def run(_xp: Any, writes: Mapping[str, Any]) -> None:
            for name, array in writes.items():  # not every framework can write into a tensor without axes
                (array if array.ndim else array[None])[...] = fills[name]

        self.run_on({name: name for name in fills}, run, operation)

    def run_on(
        self,
        names: Mapping[str, str],
        run: Callable[..., None],
        operation: str,
        given: Mapping[str, NDArray[Any]] | None = None,
    ) -> None:
        """Run ``run(namespace, arrays, **given)`` on the fields ``names`` (argument: field): device, host, mirrors."""
        layout, given, xp = self.layout, given or {}, self.backend.namespace
        device = {k: self.tensors[n] for k, n in names.items() if layout[n].on_device}
        if device:

            def step(reads: Any, writes: Any) -> None:
                run(xp, writes, **reads)

            step.__qualname__ = operation  # for reports
            with device_work(self.backend, operation):
                self.backend.launch(step, self.backend.upload(given, operation, self.stats), device, stats=self.stats)
        host = {
            k: self.mirrors[n] if n in self.mirrors else self.hosts[n] for k, n in names.items() if layout[n].on_host
        }
        if host:
            run(NUMPY, host, **given)

    def run_step(
        self,
        run: Callable[[Any, Any, Any], None],
        what: str,
        *,
        reads: Iterable[str] = (),
        writes: Iterable[str] = (),
        given: Mapping[str, Any] | None = None,
        held: Mapping[str, Any] | None = None,
        changed: Mapping[str, Any] | None = None,
        made: Sequence[tuple[str, tuple[int, ...], str]] = (),
        live: str | None = None,
    ) -> dict[str, Any]:
        """Run ``run(namespace, reads, writes)`` on the fields with these keys, in their standard shapes.

        ``given``: arrays beside them that are read, uploaded if they are on the host; ``held``: tensors that are read;
        ``changed``: tensors that are changed in place. ``made`` (name, shape, dtype): new
        tensors, which ``run`` writes whole; they are returned. ``live``: the given array whose row 0 is at least 0 for
        the slots whose twins are brought up to what was written (M6).
        """
        plan = self._plans.get(what)
        if plan is None:
            plan = self._plans[what] = self._plan(what, tuple(reads), tuple(writes))
        hosts = {key: array for key, array in (given or {}).items() if isinstance(array, np.ndarray)}
        beside = {**(given or {}), **self.backend.upload(hosts, what, self.stats), **(held or {})}
        new = self.backend.empty(made)
        xp = self.backend.namespace

        kept = changed or {}
        outside = (*kept, *new)  # ``step`` may run late, when the caller has taken ``new`` apart

        def step(device_reads: Any, device_writes: Any) -> None:
            def shaped(arrays: Mapping[str, Any], keys: Iterable[str]) -> dict[str, Any]:
                return {key: plan.views[key](xp, arrays[key]) if key in plan.views else arrays[key] for key in keys}

            fields = shaped(device_writes, plan.writes)
            read = shaped(device_reads, plan.reads) | {key: device_reads[BESIDE + key] for key in beside}
            run(xp, read, fields | {key: device_writes[BESIDE + key] for key in outside})
            if live is not None:
                lives = read[live][0] >= 0
                for twin, key in plan.twins.items():
                    put(xp, fields[twin], lives, fields[key])

        step.__qualname__ = what  # for reports
        with device_work(self.backend, what):
            self.backend.launch(
                step,
                plan.reads | {BESIDE + key: array for key, array in beside.items()},
                plan.writes | {BESIDE + key: array for key, array in {**kept, **new}.items()},
                stats=self.stats,
                fills=tuple(BESIDE + key for key in new),
            )
        return new

    def _plan(self, what: str, reads: tuple[str, ...], writes: tuple[str, ...]) -> _StepPlan:
        self.require((*reads, *writes), what)
        twins = {f.key: f.twin_of for f in self.layout if f.twin_of in writes}
        tensors = {f.key: self.tensors[f.name] for f in self.layout}
        return _StepPlan(
            {key: tensors[key] for key in reads},
            {key: tensors[key] for key in (*writes, *twins)},
            {key: view for key in (*reads, *writes, *twins) if (view := self._view_of(key)) is not None},
            {twin: key for twin, key in twins.items() if key is not None},
        )

    def _view_of(self, key: str) -> View | None:
        """How a buffer is seen with the slots first and the standard shape, whatever ``replace`` made of it (F3).

        None: as it is. ``LayoutError`` where that needs a copy.
        """
        field = self.layout.by_key(key)
        assert field is not None
        axis, shape = field.slot_axis or 0, self.layout.shape(field.name)
        plain = self._standard.by_key(field.twin_of or key)
        rows = (shape[axis], *shape[:axis], *shape[axis + 1 :])
        want = rows if plain is None else self._standard.shape(plain.name)
        if not axis and rows == want:
            return None
        index = _fit(rows, want)
        if index is not None:
            return lambda xp, array: (xp.moveaxis(array, axis, 0) if axis else array)[index]
        if math.prod(rows) == math.prod(want) and not axis and self._is_dense(field.name):
            return lambda xp, array: xp.reshape(array, want)
        raise LayoutError(f"field {field.name!r}: shape {shape} cannot be seen as {want} without a copy")

    def _is_dense(self, name: str) -> bool:
        info = self.backend.inspect(self.tensors[name])
        dense = numpy_dtype(info.dtype).itemsize
        for size, stride in zip(reversed(info.shape), reversed(info.strides), strict=True):
            if size > 1 and stride != dense:
                return False
            dense *= size
        return True

    def require(self, keys: tuple[str, ...], what: str) -> None:
        """``LayoutError`` if the layout lacks a field that a step function works on."""
        missing = [key for key in keys if self.layout.by_key(key) is None]
        if missing:
            raise LayoutError(f"{what} needs the fields {', '.join(missing)}, which this layout lacks")


def _fit(rows: tuple[int, ...], want: tuple[int, ...]) -> tuple[Any, ...] | None:
    """The index by which a buffer of shape ``rows``, slots first, is seen as ``want``; None if there is none.

    Axes of length 1 come and go, and the cells of a row of one axis may be followed by more.
    """
    longer = len(want) == 2

    def rest(i: int, j: int) -> tuple[Any, ...] | None:
        if i == len(rows) and j == len(want):
            return ()
        steps: list[tuple[Any, int, int]] = []
        if i < len(rows) and j < len(want) and (rows[i] == want[j] or (longer and j == 1 and rows[i] > want[j])):
            steps.append((slice(0, want[j]), i + 1, j + 1))
        if i and i < len(rows) and rows[i] == 1:
            steps.append((0, i + 1, j))
        if j and j < len(want) and want[j] == 1:
            steps.append((None, i, j + 1))
        for entry, to_i, to_j in steps:
            found = rest(to_i, to_j)
            if found is not None:
                return (entry, *found)
        return None

    return rest(0, 0)
