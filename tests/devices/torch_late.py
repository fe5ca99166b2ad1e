"""A device of torch's (its slot PrivateUse1, filled from Python) over host memory, whose copies run late.

A copy with ``non_blocking=True`` stays pending until its stream, an event behind it or the device is waited for, or a
kernel comes behind it in its stream. Everything else runs at once, on the CPU. Importing this registers the device for
the whole process, so tests use it in a process of its own.
"""

# Without torch installed, its classes are of no type:
# mypy: disable-error-code="misc,no-any-return"

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils import backend_registration

aten: Any = torch.ops.aten
torch_any: Any = torch


class Stream:
    """A queue of copies."""

    _numbers = itertools.count(7)

    def __init__(self, device: Any = None) -> None:
        self.device = torch.device("late:0")
        self.stream_id = next(self._numbers)
        self.queue: deque[Callable[[], None]] = deque()
        self.queued = self.done = 0
        module.streams.append(self)

    def put(self, task: Callable[[], None]) -> None:
        self.queue.append(task)
        self.queued += 1

    def run_to(self, number: int) -> None:
        while self.done < number:
            self.queue.popleft()()
            self.done += 1

    def wait_event(self, event: Event) -> None:
        stream, number = event.stream, event.number
        if stream is not None:
            self.put(lambda: stream.run_to(number))

    def synchronize(self) -> None:
        self.run_to(self.queued)


class Event:
    """A place in a stream."""

    def __init__(self) -> None:
        self.stream: Stream | None = None
        self.number = 0

    def record(self, stream: Stream) -> None:
        self.stream, self.number = stream, stream.queued

    def query(self) -> bool:
        return self.stream is None or self.stream.done >= self.number

    def synchronize(self) -> None:
        if self.stream is not None:
            self.stream.run_to(self.number)


class Module:
    """What stands as ``torch.late``."""

    def __init__(self) -> None:
        self.streams: list[Any] = []
        self.current: Any = None
        self.Stream, self.Event = Stream, Event

    def start(self) -> None:
        self.current = Stream()

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return True

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return 1

    def _is_in_bad_fork(self) -> bool:
        return False

    def manual_seed_all(self, seed: int) -> None:
        pass

    def current_stream(self, device: Any = None) -> Any:
        return self.current

    @contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    def synchronize(self, device: Any = None) -> None:
        for stream in list(self.streams):
            stream.synchronize()

    @property
    def pending(self) -> int:
        return sum(stream.queued - stream.done for stream in self.streams)


module = Module()


class LateTensor(torch.Tensor):
    """A tensor of the device; ``raw`` is the CPU tensor that holds its memory, with the true strides."""

    raw: torch.Tensor
    __torch_function__ = torch_any._C._disabled_torch_function_impl

    def view(self, *shape: Any) -> torch.Tensor:  # torch makes its own tensor, without ``raw``, for another dtype
        return wrap(self.raw.view(*shape))

    def data_ptr(self) -> int:
        return self.raw.data_ptr()

    def stride(self, *dim: Any) -> Any:  # type: ignore[override,unused-ignore]
        return self.raw.stride(*dim)

    def untyped_storage(self) -> Any:
        return self.raw.untyped_storage()

    def is_contiguous(self, *arguments: Any, **options: Any) -> bool:
        return self.raw.is_contiguous()


def wrap(raw: torch.Tensor) -> LateTensor:
    made = torch_any._C._acc.create_empty_tensor(tuple(raw.shape), raw.dtype)
    made.__class__ = LateTensor
    made.raw = raw
    _memory[made._cdata] = raw
    found: LateTensor = made
    return found


_memory: dict[int, torch.Tensor] = {}
"""By torch's own object: some of torch's calls give back another Python object, without class and attribute."""


def raw_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.raw if isinstance(tensor, LateTensor) else _memory[tensor._cdata]  # type: ignore[attr-defined,unused-ignore]


def _on_cpu(operation: Any, arguments: Any, options: Any, *, touches: bool = True) -> Any:
    """Run on the memory itself; results share memory where the operation's do.

    ``touches``: it looks at the cells, so what its stream holds runs before.
    """
    if touches:
        module.current.synchronize()
    known: dict[int, torch.Tensor] = {}

    def opened(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.device.type == "late":
            raw = raw_of(value)
            known[id(raw)] = value
            return raw
        if isinstance(value, torch.device):
            return torch.device("cpu")
        if isinstance(value, (list, tuple)):
            return type(value)(opened(v) for v in value)
        return value

    def closed(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return known[id(value)] if id(value) in known else wrap(value)
        if isinstance(value, (list, tuple)):
            return type(value)(closed(v) for v in value)
        return value

    opened_arguments = [opened(a) for a in arguments]
    for at, told in enumerate(operation._schema.arguments[: len(arguments)]):
        if str(told.type) == "Tensor" and isinstance(opened_arguments[at], (bool, int, float)):
            opened_arguments[at] = torch.tensor(opened_arguments[at])  # a number that torch had wrapped
    opened_options = {k: opened(v) for k, v in options.items()}
    if any(told.name == "device" for told in operation._schema.arguments):
        opened_options["device"] = torch.device("cpu")
    with torch.device("cpu"):
        return closed(operation(*opened_arguments, **opened_options))


def _fallback(operation: Any, *arguments: Any, **options: Any) -> Any:
    return _on_cpu(operation, arguments, options)


def _copy_(dst: torch.Tensor, src: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    into, out_of = (raw_of(t) if t.device.type == "late" else t for t in (dst, src))

    def run() -> None:  # the memory is read now, and not before
        into.copy_(out_of)

    if non_blocking:
        module.current.put(run)
    else:
        module.synchronize()
        run()
    return dst


# Operations that torch composes of others by strides, which only ``raw`` knows.
_VIEWS = (
    "slice.Tensor select.int as_strided view view.dtype _reshape_alias transpose.int permute unsqueeze squeeze.dim "
    "expand alias detach movedim.int movedim.intlist empty.memory_format empty_strided new_empty empty_like"
)
_KERNELS = (
    "arange arange.start arange.start_step full zeros ones scalar_tensor reshape clone index_put_ index_put "
    "_index_put_impl_ zeros_like ones_like full_like _to_copy _unsafe_view searchsorted.Tensor"
)
_kept: list[Any] = []


def register() -> None:
    """Make it a device of torch's by the name ``late``."""
    backend_registration._setup_privateuseone_for_python_backend("late", module)  # type: ignore[attr-defined,unused-ignore]
    module.start()
    library: Any = torch.library
    # torch would compose these of an empty result that their out= form resizes, which a wrapper cannot be.
    has_kernel = torch_any._C._dispatch_has_kernel_for_dispatch_key
    composed = [
        name.removeprefix("aten::")
        for name in torch_any._C._dispatch_get_all_op_names()
        if name.startswith("aten::")
        and "out" not in name.partition(".")[2]
        and not name.partition(".")[0].endswith("_")
        and has_kernel(name, "CompositeExplicitAutogradNonFunctional")
    ]
    own = {*_VIEWS.split(), *_KERNELS.split()}
    for names, touches in ((_VIEWS.split(), False), (_KERNELS.split(), True), (set(composed) - own, True)):
        for name in names:
            packet, _, overload = name.partition(".")
            operation = getattr(getattr(aten, packet), overload or "default")

            def run(*arguments: Any, _op: Any = operation, _touches: bool = touches, **options: Any) -> Any:
                return _on_cpu(_op, arguments, options, touches=_touches)

            library.impl(f"aten::{name}", "privateuseone")(run)
    library.impl("aten::copy_", "privateuseone")(_copy_)
    everything = library.Library("_", "IMPL")
    everything.fallback(_fallback, "PrivateUse1")
    _kept.append(everything)
