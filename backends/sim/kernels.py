"""An engine's own kernels and host memory on the simulated device: what they touch, and if wanted what they do."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from slotline.backends.sim.host import HostBuffer
from slotline.backends.sim.machine import Machine
from slotline.backends.sim.memory import POISON
from slotline.backends.sim.tensor import SimTensor, inside
from slotline.core import values
from slotline.core.device import Download, Event

if TYPE_CHECKING:
    from slotline.backends.sim import SimBackend
    from slotline.core.streamed import StreamedBackend


class EngineKernels:
    """Queues kernels that stand for an engine's own, so that the detector sees what they touch."""

    def __init__(self, backend: SimBackend) -> None:
        self._backend = backend

    def kernel(
        self,
        name: str,
        fn: Callable[..., None] | None = None,
        *,
        reads: Sequence[SimTensor] = (),
        writes: Sequence[SimTensor] = (),
        stream: Any = None,
    ) -> Event:
        """Queue one kernel on ``stream``: ``fn(*arrays)``, the arrays of ``reads``, then of ``writes``.

        It runs late, on the memory itself, and must touch nothing else. None: it only counts as touching them.
        ``TypeError`` for what is not a tensor of this device.
        """
        backend, machine = self._backend, self._backend.machine
        for tensor in (*reads, *writes):
            backend.inspect(tensor)
        ins, outs = [read_only(inside(t)) for t in reads], [inside(t) for t in writes]

        def run() -> None:
            if fn is not None:
                fn(*ins, *outs)

        handle = backend.stream(stream)
        machine.enqueue(
            handle,
            f"kernel {name!r}",
            run,
            [machine.array(a) for a in ins if a.size],
            [machine.array(a) for a in outs if a.size],
        )
        return backend.record(handle)

    def host_buffer(self, shape: tuple[int, ...], dtype: str, name: str = "staging") -> HostBuffer:
        """Page-locked host memory for the engine's own copies."""
        return HostBuffer(self._backend, shape, dtype, name)

    def name(self, tensor: SimTensor, name: str) -> None:
        """What the memory of ``tensor`` is called in reports."""
        self._backend.inspect(tensor)
        tensor.machine.name(tensor.pointer, name, tensor.strides[0] if tensor.ndim else 0)

    def read(self, buffer: SimTensor, rows: Any = None, stream: Any = None) -> Download:
        """A kernel on ``stream`` that reads ``rows`` of ``buffer`` (a slice, a number, numbers; None: all).

        ``.array()`` of what it gives is what the kernel saw; only that waits.
        """
        self._backend.inspect(buffer)
        found: list[NDArray[Any]] = []
        parts = _parts(buffer, rows)

        def run(*arrays: NDArray[Any]) -> None:
            found.append(np.stack(arrays) if np.ndim(rows) and not isinstance(rows, slice) else arrays[0].copy())

        return _Seen(self.kernel("read", run, reads=parts, stream=stream), found)

    def write(self, buffer: SimTensor, rows: Any = None, source: Any = 0, stream: Any = None) -> Event:
        """A kernel on ``stream`` that writes ``source``, as it is now, into each of ``rows`` of ``buffer`` (W2, W3)."""
        self._backend.inspect(buffer)
        parts = _parts(buffer, rows)
        blocks = [values.from_host(source, part.dtype.name, part.shape) for part in parts]

        def run(*arrays: NDArray[Any]) -> None:
            for array, block in zip(arrays, blocks, strict=True):
                array[...] = block

        return self.kernel("write", run, writes=parts, stream=stream)


def queue_launch(
    backend: StreamedBackend,
    machine: Machine,
    fn: Callable[..., None],
    reads: Mapping[str, Any],
    writes: Mapping[str, Any],
    stream: int,
    fills: Collection[str],
) -> Event:
    """A step function as one kernel: it touches all cells of its tensors, those in ``fills`` without reading them."""
    for tensor in (*reads.values(), *writes.values()):
        backend.inspect(tensor)
    ins = {key: read_only(inside(t)) for key, t in reads.items()}
    outs = {key: inside(t) for key, t in writes.items()}

    def run() -> None:
        for key in fills:  # it must write them whole
            outs[key].reshape(-1).view(np.uint8)[...] = POISON
        fn(ins, outs)

    changed = [a for key, a in outs.items() if key not in fills]
    machine.enqueue(
        stream,
        f"step function {getattr(fn, '__qualname__', 'fn')!r}",
        run,
        [machine.array(a) for a in (*ins.values(), *changed) if a.size],
        [machine.array(a) for a in outs.values() if a.size],
    )
    return backend.transfers.events.record(stream)


class _Seen(Download):
    """What a kernel saw, once it has run."""

    def __init__(self, event: Event, found: list[NDArray[Any]]) -> None:
        self._event, self._found = event, found

    @property
    def is_done(self) -> bool:
        return self._event.is_done

    def array(self) -> NDArray[Any]:
        self._event.sync()
        return self._found[0]


def _parts(buffer: SimTensor, rows: Any) -> list[SimTensor]:
    if rows is None:
        return [buffer]
    if isinstance(rows, slice):
        return [buffer[rows]]
    return [buffer[int(row)] for row in np.atleast_1d(np.asarray(rows))]


def read_only(array: NDArray[Any]) -> NDArray[Any]:
    """The same memory; a kernel that writes what it said it would read fails."""
    view = array.view()
    view.flags.writeable = False
    return view
