"""Everything that slotline raises on purpose.

SlotlineError
├── TaskError            tasks that were refused; ``.errors`` lists every fault
├── LayoutError          a field or a tensor that does not fit the table
├── ConfigError          a setting or a value of BatchConfig
├── BackendUnavailable   a backend asked for that cannot be used (an ImportError too)
├── DeviceError          a device call that failed
└── PacketError          bytes from outside that are not a packet of this layout
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple


class SlotlineError(Exception):
    """The root of all errors that slotline raises on purpose."""


class Fault(NamedTuple):
    """One reason for which a task was refused (rule I1)."""

    request_id: str
    field: str
    """The attribute of the task, request or sampling parameters that is at fault."""
    value: Any
    """The offending element or count."""
    bound: Any
    """The limit that it breaks."""


class TaskError(SlotlineError):
    """Tasks were refused, and nothing was written.

    ``errors`` holds one ``Fault`` (request_id, field, value, bound) for each fault, ascending by request id.
    """

    def __init__(self, errors: Sequence[Fault], hints: Sequence[str] = ()) -> None:
        self.errors: tuple[Fault, ...] = tuple(errors)
        self.hints: tuple[str, ...] = tuple(hints)
        super().__init__(self._text())

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.errors, self.hints)

    def _text(self, shown: int = 10) -> str:
        lines = []
        for number, fault in enumerate(self.errors[:shown]):
            line = f"request {fault.request_id!r}: {fault.field} is {_short(fault.value)}, bound {_short(fault.bound)}"
            if number < len(self.hints) and self.hints[number]:
                line += f" ({self.hints[number]})"
            lines.append(line)
        if len(self.errors) > shown:
            lines.append(f"and {len(self.errors) - shown} more, see .errors")
        return "; ".join(lines) + ". Nothing was written."


class LayoutError(SlotlineError):
    """A field, a dimension, a dtype or an adopted tensor that does not fit the layout."""


class ConfigError(SlotlineError):
    """A setting, an environment variable, a settings file or a value of ``BatchConfig`` that cannot be used."""


class BackendUnavailable(SlotlineError, ImportError):
    """A backend that was asked for cannot be used; the cause is chained."""


class DeviceError(SlotlineError):
    """A call to a device failed. ``code`` is the native number, ``code_name`` its name where it is known."""

    def __init__(self, backend: str, operation: str, code: int | None, code_name: str | None, detail: str = "") -> None:
        self.backend, self.operation, self.code, self.code_name, self.detail = (
            backend,
            operation,
            code,
            code_name,
            detail,
        )
        number = "" if code is None else f" with {code}" + (f" ({code_name})" if code_name else " (unknown code)")
        super().__init__(f"{backend}: {operation} failed{number}" + (f": {detail}" if detail else ""))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.backend, self.operation, self.code, self.code_name, self.detail)


class PacketError(SlotlineError):
    """Bytes that are not a packet for this layout; nothing was written."""


def nearest(name: str, known: Iterable[str]) -> str:
    """``"; did you mean 'x'?"`` for the known name that is nearest, else an empty text."""
    found = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {found[0]!r}?" if found else ""


def _short(value: object, limit: int = 80) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."
