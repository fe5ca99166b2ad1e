"""The rules that a device can get wrong, each with what to do if its tests fail; and how a test names its rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T", bound=Callable[..., Any])


class Rule(NamedTuple):
    title: str
    advice: str
    """Where to look, and what to change."""


RULES: dict[str, Rule] = {
    "W1": Rule(
        "destination views",
        "a view is written by its strides and its offset: _write counts from the view's own first cell, _set honours "
        "TensorInfo.strides (Runtime: copy_2d), and _inspect tells the view's own pointer",
    ),
    "W2": Rule(
        "sources in any layout",
        "take sources through core.values.from_host, as Backend.async_set_value does; a host tensor of the framework "
        "becomes an array in _host_source",
    ),
    "W3": Rule(
        "values are converted or refused",
        "write the block as it comes, in the destination's dtype and with all of its bytes",
    ),
    "W4": Rule(
        "the value at call time lands",
        "copy the source before the call returns (staging memory), and hold that copy until its event has passed",
    ),
    "W5": Rule(
        "order on a stream and across streams",
        "queue writes, reads and kernels on the stream that is given, and let Event.wait order two streams",
    ),
    "W6": Rule(
        "no wait for queued work; bounded staging memory",
        "call nothing that synchronises; wait only for the oldest block of a ring that is full, and never reuse one "
        "whose event has not passed",
    ),
    "W7": Rule(
        "an overlapping source is as if copied first",
        "copy a device source that overlaps its destination before you write",
    ),
    "W8": Rule("a write moves no buffer", "write into the tensor's own memory; never replace it"),
    "W9": Rule(
        "failures are DeviceErrors",
        "raise slotline.DeviceError(backend, operation, code, name) for a native failure",
    ),
    "W10": Rule(
        "several threads on disjoint destinations",
        "guard staging memory, streams and events that calls share by a lock",
    ),
    "I1": Rule("a refused call changes nothing", "write nothing before a packet is whole, and all of it then"),
    "I4": Rule(
        "one transfer and one kernel for a call",
        "declare packed_apply only if one kernel applies a whole packet, and count what is sent",
    ),
    "I6": Rule(
        "work before an insertion sees nothing of it, work behind it all",
        "queue the apply on the compute stream, behind the copy's event",
    ),
    "F2": Rule("host fields are tensors over the same memory", "_host_tensor must not copy"),
    "F4": Rule(
        "adopted tensors are used as they lie",
        "apply packets by each buffer's own address and strides; accept views in _inspect",
    ),
    "S4": Rule("swap and condense move whole rows", "check put_rows and take of the namespace, or _write with _read"),
    "S6": Rule("reset equals fresh, in the same memory", "fill the buffers where they are"),
    "L6": Rule(
        "a result is never from before its copy",
        "Download.array waits until the copy has landed; the copy takes its place in the stream when it is started",
    ),
    "B3": Rule("the probe answers and leaves nothing", "return slotline.Probe from _probe; hold no device open"),
    "B8": Rule(
        "the same bytes as the NumPy reference",
        "mend what the other rules show first; then follow the falsifying example step by step",
    ),
    "B9": Rule(
        "streams in every form, events that tell the truth",
        "give stream handles through core.streams; an event is done only when all that was queued before it is",
    ),
    "B10": Rule("one allocation call for a layout", "_allocate gives one tensor for each specification, in order"),
    "B11": Rule(
        "step functions run in the order of the stream",
        "launch runs fn on what the tensors hold at that point of the stream, and what it wrote is there afterwards",
    ),
    "B12": Rule(
        "abilities are declared and true",
        "declare in abilities only what the device does; leave the rest at its cautious default",
    ),
    "O": Rule("counters tell what happened", "count transfers, bytes and kernels in the stats that a call is given"),
}


def rule(*names: str, needs: str = "") -> Callable[[T], T]:
    """The rules that a test checks, and the ability without which it is skipped (B12)."""
    unknown = [n for n in names if n not in RULES]
    if unknown:
        raise ValueError(f"unknown rule {unknown[0]!r}, known: {', '.join(RULES)}")

    def mark(test: T) -> T:
        test.conformance_rules = names  # type: ignore[attr-defined]
        test.conformance_needs = needs  # type: ignore[attr-defined]
        return test

    return mark
