"""Counting the framework calls of each step function.

Step functions get a namespace and arrays; here both are wrapped. Counted: each function of the namespace, each
operator, each indexing (read or write) and each method of an array that the step function itself uses. Not counted:
what a framework does inside one of them, shapes and dtypes. Tensors that are uploaded or made are counted apart.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

import slotline as sl
from slotline.core import mtp, stop

FRAMEWORKS = [name for name in ("numpy", "torch", "paddle") if importlib.util.find_spec(name) is not None]
OPERATORS = [
    f"__{name}__"
    for name in (
        "add", "radd", "sub", "rsub", "mul", "rmul", "floordiv", "mod", "and", "rand", "or", "ror", "xor", "rxor",
        "eq", "ne", "lt", "le", "gt", "ge", "invert", "neg", "getitem", "setitem",
    )
]  # fmt: skip


class Counter:
    """calls: framework calls; tensors: uploaded or newly made."""

    def __init__(self) -> None:
        self.calls = self.tensors = 0

    def wrap(self, value: Any) -> Any:
        """Arrays that count what is done with them; anything else as it is."""
        if isinstance(value, (tuple, list)):
            return type(value)(self.wrap(v) for v in value)
        is_array = hasattr(value, "shape") and hasattr(value, "dtype") and not isinstance(value, (Counted, np.generic))
        return Counted(value, self) if is_array else value

    def call(self, function: Callable[..., Any], args: Any, kwargs: Any = None) -> Any:
        self.calls += 1
        return self.wrap(function(*plain(args), **plain(kwargs or {})))


class Counted:
    """An array whose operators, indexing and methods are counted."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, value: Any, counter: Counter) -> None:
        self._value, self._counter = value, counter

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._value, name)
        if callable(found) and name not in ("dtype",):
            return lambda *args, **kwargs: self._counter.call(found, args, kwargs)
        return found

    def __len__(self) -> int:
        return len(self._value)


def _operator(name: str) -> Callable[..., Any]:
    def run(self: Counted, *args: Any) -> Any:
        return self._counter.call(getattr(self._value, name), args)

    return run


for _name in OPERATORS:
    setattr(Counted, _name, _operator(_name))


class CountedNamespace:
    """A namespace whose functions are counted."""

    def __init__(self, namespace: Any, counter: Counter) -> None:
        self._namespace, self._counter = namespace, counter

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._namespace, name)
        if isinstance(found, type) or not callable(found):
            return found
        return lambda *args, **kwargs: self._counter.call(found, args, kwargs)


def plain(value: Any) -> Any:
    """What was wrapped, wherever it lies."""
    if isinstance(value, Counted):
        return value._value
    if isinstance(value, (tuple, list)):
        return type(value)(plain(v) for v in value)
    if isinstance(value, Mapping):
        return {key: plain(v) for key, v in value.items()}
    return value


@contextmanager
def counting(backend: sl.Backend) -> Any:
    """A ``Counter`` of what step functions do on ``backend``."""
    counter, own = Counter(), type(backend)
    space_of_backend = CountedNamespace(backend.namespace, counter)

    class Counting(own):  # type: ignore[misc,valid-type]
        @property
        def namespace(self) -> Any:
            return space_of_backend

        def launch(self, fn: Any, reads: Any, writes: Any, *args: Any, **kwargs: Any) -> Any:
            def run(r: Any, w: Any) -> None:
                fn({k: counter.wrap(a) for k, a in r.items()}, {k: counter.wrap(a) for k, a in w.items()})

            return own.launch(self, run, reads, writes, *args, **kwargs)

        def upload(self, arrays: Any, *args: Any, **kwargs: Any) -> Any:
            counter.tensors += len(arrays)
            return own.upload(self, arrays, *args, **kwargs)

        def empty(self, specs: Any) -> Any:
            counter.tensors += len(specs)
            return own.empty(self, specs)

    alone = mtp.run_alone

    def run_alone(what: str, run: Any, given: Any, made: Any) -> Any:
        def counted(xp: Any, r: Any, w: Any) -> None:
            space = xp if isinstance(xp, CountedNamespace) else CountedNamespace(xp, counter)
            run(space, {k: counter.wrap(a) for k, a in r.items()}, {k: counter.wrap(a) for k, a in w.items()})

        return alone(what, counted, given, made)

    backend.__class__ = Counting
    mtp.run_alone = stop.run_alone = run_alone
    try:
        yield counter
    finally:
        backend.__class__ = own
        mtp.run_alone = stop.run_alone = alone


def count(make_batch: Callable[[str], sl.SlotBatch], framework: str, task: Callable[[str], Any]) -> dict[str, Any]:
    """{step function: {calls, tensors}} on one framework; ``task(name)``: a prefill for a request of that name."""
    batch = make_batch(framework)
    config, backend = batch.config, batch.backend
    size, width = config.max_num_seqs, config.num_drafts + 1
    sl.insert_tasks(batch, [task("a"), task("b")])
    found: dict[str, dict[str, int]] = {}

    def run(name: str, call: Callable[[], Any]) -> Any:
        with counting(backend) as counter:
            result = call()
        found[name] = {"calls": counter.calls, "tensors": counter.tensors}
        return result

    def given(array: Any) -> Any:
        return backend.upload({"array": np.array(array)})["array"] if framework != "numpy" else np.array(array)

    tokens, counts, drafts = (
        given(np.full((size, width), 9)), given(np.ones(size, np.int32)), given(np.full((size, width - 1), 8))
    )  # fmt: skip
    run("prepare_step(rows=...)", lambda: sl.prepare_step(batch, rows=["a"])).discard()
    run("ticket", batch.ticket).discard()
    step = run("prepare_step", lambda: sl.prepare_step(batch))
    run("commit_step", lambda: sl.commit_step(batch, step, tokens, counts))
    run("prepare_draft, level 1", lambda: sl.prepare_draft(batch, step, 1))
    if config.num_drafts > config.num_levels:
        level = config.num_levels + 1
        run("prepare_draft, level above M", lambda: sl.prepare_draft(batch, step, level, drafts[:, : level - 1]))
    run("commit_drafts", lambda: sl.commit_drafts(batch, step, drafts))
    run("fetch", lambda: batch.fetch(step).result())
    names = ("token_ids_all", "prompt_lens", "step_idx", "stop_seqs", "stop_seqs_len", "min_dec_len", "max_dec_len",
             "ignore_eos")  # fmt: skip
    rows = {name: batch[name] for name in names}
    run("match_stop", lambda: sl.match_stop(tokens, counts, **rows, eos_token_ids=config.eos_token_ids))
    run("verify_greedy", lambda: sl.verify_greedy(drafts, tokens))
    run("mtp_next_tokens", lambda: sl.mtp_next_tokens(drafts, drafts))
    return found
