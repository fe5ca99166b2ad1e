"""Buffers: the tensors of a layout on a backend, host fields and mirrors, and how operations reach them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slotline.core.backend import DONE, Backend, Event
from slotline.core.errors import LayoutError
from slotline.core.layout import BufferLayout, numpy_dtype
from slotline.core.packet import Packet
from slotline.core.standard import target_layout
from slotline.core.stats import Stats


class Buffers:
    """What a batch keeps in memory. ``tensors``: by field; ``mirrors``: host copies of mirrored fields."""

    def __init__(self, layout: BufferLayout, backend: Backend, stats: Stats, adopted: dict[str, Any]) -> None:
        self.layout, self.backend, self.stats = layout, backend, stats
        self.tensors = self._allocate(adopted)
        self.mirrors = {f.name: self._host(f.name) for f in layout if f.residency == "mirrored"}
        names = layout.names
        self._device = [self.tensors[n] if layout[n].on_device else None for n in names]
        self._host_arrays = [self.mirrors.get(n, None if layout[n].on_device else self.tensors[n]) for n in names]
        self._device_fields = {i for i, a in enumerate(self._device) if a is not None}
        self._host_fields = {i for i, a in enumerate(self._host_arrays) if a is not None}
        self._standard = target_layout(layout.config)

    def _allocate(self, adopted: dict[str, Any]) -> dict[str, Any]:
        layout = self.layout
        for name, tensor in adopted.items():
            if layout[name].on_device:
                self.backend.check(layout, name, tensor)
            elif not isinstance(tensor, np.ndarray) or (tensor.shape, tensor.dtype) != (
                layout.shape(name),
                numpy_dtype(layout[name].dtype),
            ):
                raise LayoutError(f"field {name!r}: needed: a host array of {layout[name].dtype} {layout.shape(name)}")
        self._require_apart(adopted)
        fresh = self.backend.allocate(layout, [f.name for f in layout if f.on_device and f.name not in adopted])
        host = {f.name: self._host(f.name) for f in layout if not f.on_device and f.name not in adopted}
        return {**fresh, **host, **adopted}

    def _require_apart(self, adopted: dict[str, Any]) -> None:
        """``LayoutError`` if two cells of the adopted tensors are one: a stride of 0, or one tensor for two fields."""
        seen: dict[int, str] = {}
        for name, tensor in adopted.items():
            if isinstance(tensor, np.ndarray):
                pointer, strides, shape = tensor.__array_interface__["data"][0], tensor.strides, tensor.shape
                if not tensor.flags.writeable:
                    raise LayoutError(f"field {name!r}: the array is read-only")
            else:
                info = self.backend.inspect(tensor)
                pointer, strides, shape = info.pointer, info.strides, info.shape
            if any(s == 0 and n > 1 for s, n in zip(strides, shape, strict=True)):
                raise LayoutError(f"field {name!r}: a tensor of stride 0 has several cells in one place; copy it first")
            other = seen.setdefault(pointer, name)
            if other != name and tensor is adopted[other]:
                raise LayoutError(f"fields {other!r} and {name!r} cannot share one tensor")

    def _host(self, name: str) -> NDArray[Any]:
        return np.empty(self.layout.shape(name), numpy_dtype(self.layout[name].dtype))

    def apply(self, packet: Packet, stream: Any) -> Event:
        """Write a packet to the device, and its host part to host fields and mirrors at once."""
        packet.only(self._host_fields).apply(self._host_arrays)
        device = packet.only(self._device_fields)
        return self.backend.apply(device, self._device, stream=stream, stats=self.stats) if len(device) else DONE

    def fill_all(self, operation: str) -> None:
        """Every cell of every field to its fill."""
        fills = {f.name: f.fill for f in self.layout}

        def run(_reads: Any, writes: dict[str, NDArray[Any]]) -> None:
            for name, array in writes.items():
                array[...] = fills[name]

        self.run_on({name: name for name in fills}, run, operation)

    def run_on(self, names: Mapping[str, str], run: Callable[[Any, Any], None], operation: str) -> None:
        """Run ``run({}, arrays)`` on the fields ``names`` (argument: field), on the device, the host and mirrors."""
        layout = self.layout
        device = {k: self.tensors[n] for k, n in names.items() if layout[n].on_device}
        self.backend.launch(run, {}, device, stats=self.stats)
        host = {k: self.mirrors.get(n, self.tensors[n]) for k, n in names.items() if layout[n].on_host}
        if host:
            run({}, host)

    def run_step(
        self,
        run: Callable[[Any, Any], None],
        reads: tuple[str, ...],
        writes: tuple[str, ...],
        rows: NDArray[np.intp],
        what: str,
    ) -> None:
        """Run a step function on the fields with these keys, then bring the twins of ``rows`` up to them (M6)."""
        self.require((*reads, *writes), what)
        twins = {f.key: f.twin_of for f in self.layout if f.twin_of in writes}
        fields = {key: self.layout.by_key(key) for key in (*reads, *writes, *twins)}
        tensors = {key: self.tensors[f.name] for key, f in fields.items() if f is not None}

        def shaped(arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
            return {key: self._standard_view(key, array) for key, array in arrays.items()}

        def step(device_reads: Any, device_writes: Any) -> None:
            arrays = shaped(device_writes)
            run(shaped(device_reads), arrays)
            for twin, key in twins.items():
                assert key is not None
                arrays[twin][rows] = arrays[key][rows]

        self.backend.launch(
            step,
            {key: tensors[key] for key in reads},
            {key: tensors[key] for key in (*writes, *twins)},
            stats=self.stats,
        )

    def _standard_view(self, key: str, array: NDArray[Any]) -> NDArray[Any]:
        """A view of a buffer with the slots first and the standard shape, whatever ``replace`` made of it (F3)."""
        field = self.layout.by_key(key)
        assert field is not None
        rows = np.moveaxis(array, field.slot_axis or 0, 0)
        plain = self._standard.by_key(field.twin_of or key)
        if plain is None or rows.shape == self._standard.shape(plain.name):
            return rows
        shape = self._standard.shape(plain.name)
        if rows.size != int(np.prod(shape)):  # a row of one axis that got longer
            return rows.reshape(len(rows), -1)[:, : shape[1]] if rows.ndim > 2 else rows[:, : shape[1]]
        view = rows.reshape(shape)
        if not np.may_share_memory(view, array):
            raise LayoutError(f"field {field.name!r}: shape {array.shape} cannot be seen as {shape} without a copy")
        return view

    def require(self, keys: tuple[str, ...], what: str) -> None:
        """``LayoutError`` if the layout lacks a field that a step function works on."""
        missing = [key for key in keys if self.layout.by_key(key) is None]
        if missing:
            raise LayoutError(f"{what} needs the fields {', '.join(missing)}, which this layout lacks")
