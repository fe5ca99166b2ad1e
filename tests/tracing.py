"""Arrays that note every operation of a step function with the shape of its result, and refuse to show a value (L2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import slotline as sl

Trace = list[tuple[str, tuple[int, ...], str]]
OPERATORS = (
    "add", "radd", "sub", "rsub", "mul", "rmul", "floordiv", "mod", "and", "rand", "or", "ror", "xor", "eq", "ne", "lt",
    "le", "gt", "ge", "invert", "neg", "getitem", "setitem",
)  # fmt: skip
REFUSED = ("bool", "int", "float", "index", "iter", "array", "contains")


class Traced:
    """An array on a device that has to be asked for nothing."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, value: Any, trace: Trace) -> None:
        self._value, self._trace = value, trace

    def __getattr__(self, name: str) -> Any:
        if name in ("shape", "dtype", "ndim"):
            return getattr(self._value, name)
        raise AttributeError(f"a step function asks an array for {name!r}; the namespace has functions for that")

    def __len__(self) -> int:
        return len(self._value)


def _operator(name: str) -> Callable[..., Any]:
    def run(self: Traced, *args: Any) -> Any:
        return noted(self._trace, name, getattr(self._value, name), args, {})

    return run


def _refusal(name: str) -> Callable[..., Any]:
    def refuse(self: Traced, *_: Any) -> NoReturn:
        raise AssertionError(f"a step function reads a value on the host ({name})")

    return refuse


for _name in OPERATORS:
    setattr(Traced, f"__{_name}__", _operator(f"__{_name}__"))
for _name in REFUSED:
    setattr(Traced, f"__{_name}__", _refusal(f"__{_name}__"))


class TracedNamespace:
    """A namespace whose functions take and give traced arrays."""

    def __init__(self, namespace: Any, trace: Trace) -> None:
        self._namespace, self._trace = namespace, trace

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._namespace, name)
        if isinstance(found, type) or not callable(found):
            return found
        return lambda *args, **kwargs: noted(self._trace, name, found, args, kwargs)


def noted(trace: Trace, name: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    result = function(*plain(args), **plain(kwargs))
    if result is NotImplemented:
        return result
    if hasattr(result, "shape"):
        trace.append((name, tuple(result.shape), str(result.dtype)))
    else:
        trace.append((name, (), ""))
    return traced(result, trace)


def traced(value: Any, trace: Trace) -> Any:
    if isinstance(value, (tuple, list)):
        return type(value)(traced(v, trace) for v in value)
    return Traced(value, trace) if hasattr(value, "shape") and not isinstance(value, Traced) else value


def plain(value: Any) -> Any:
    if isinstance(value, Traced):
        return value._value
    if isinstance(value, (tuple, list)):
        return type(value)(plain(v) for v in value)
    if isinstance(value, slice):
        assert not any(isinstance(v, Traced) for v in (value.start, value.stop, value.step)), "a slice of data"
    if isinstance(value, Mapping):
        return {key: plain(v) for key, v in value.items()}
    return value


def tracing_backend(framework: str) -> tuple[sl.Backend, Trace]:
    """The default device whose ``launch`` hands out traced arrays, and the trace that they write."""
    backend, trace = sl.load_backend("cpu", framework=framework), Trace()
    space, own = TracedNamespace(backend.namespace, trace), type(backend)

    def launch(self: Any, fn: Any, reads: Any, writes: Any, *args: Any, **kwargs: Any) -> Any:
        def run(r: Any, w: Any) -> None:
            fn(*({key: traced(a, trace) for key, a in arrays.items()} for arrays in (r, w)))

        return own.launch(self, run, reads, writes, *args, **kwargs)

    backend.__class__ = type("TracingBackend", (own,), {"namespace": property(lambda self: space), "launch": launch})
    return backend, trace
