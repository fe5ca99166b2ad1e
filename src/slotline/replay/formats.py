"""One line of a trace to one row: the two formats, each strict."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, NamedTuple

import msgspec

from slotline.core.errors import SlotlineError, nearest

NUMBER_LIMIT = 2**31
AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")

_STAMP = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d{1,9})?(Z|[+-]\d\d:\d\d)?", re.ASCII)
_WHOLE = re.compile(r"-?\d{1,40}", re.ASCII)
_Whole = Annotated[int, msgspec.Meta(ge=0, le=NUMBER_LIMIT)]


class TraceError(SlotlineError):
    """A trace that cannot be read. The message begins with the file and, where there is one, the line."""


class LineFault(ValueError):
    """What is wrong with the line at hand; the reader adds file and line."""


class TraceRow(NamedTuple):
    """One request of a trace."""

    arrival: float
    """Seconds since the first row."""
    prompt_len: int
    output_len: int
    hash_ids: tuple[int, ...] | None
    """One id for each 512 tokens of the prompt; equal ids stand for equal tokens. None: the format has none."""


Parse = Callable[[str], TraceRow]


def recognise(line: str) -> tuple[Parse, bool]:
    """The parser for a trace that begins with ``line``, and whether that line is a header."""
    if line.startswith("{"):
        return _Mooncake().parse, False
    names = [name.strip() for name in _cells(line)]
    missing = [name for name in AZURE_COLUMNS if name not in names]
    if not missing and len(set(names)) == len(names):
        return _Azure(names).parse, True
    if len(missing) == len(AZURE_COLUMNS):
        raise LineFault(
            f"unknown format; a trace begins with the columns {','.join(AZURE_COLUMNS)} (Azure) or with a JSON object "
            "(Mooncake)"
        )
    if missing:
        raise LineFault(
            f"column {missing[0]} is missing{nearest(missing[0], names)}; needed: {', '.join(AZURE_COLUMNS)}"
        )
    raise LineFault("a column stands twice in the header")


class _Azure:
    """TIMESTAMP,ContextTokens,GeneratedTokens; other columns are let be."""

    def __init__(self, names: list[str]) -> None:
        self.names = names
        self.at = [names.index(name) for name in AZURE_COLUMNS]
        self.first: datetime | None = None

    def parse(self, line: str) -> TraceRow:
        cells = _cells(line)
        if len(cells) != len(self.names):
            raise LineFault(f"{len(cells)} fields, needed {len(self.names)}: {','.join(self.names)}")
        stamp, prompt, output = (cells[i].strip() for i in self.at)
        when = _time(stamp)
        if self.first is None:
            self.first = when
        return TraceRow(
            (when - self.first).total_seconds(),
            _whole("ContextTokens", prompt),
            _whole("GeneratedTokens", output),
            None,
        )


class _MooncakeRow(msgspec.Struct):
    timestamp: Annotated[float, msgspec.Meta(ge=0)]
    input_length: _Whole
    output_length: _Whole
    hash_ids: tuple[_Whole, ...]


class _Mooncake:
    """{"timestamp": ms, "input_length": n, "output_length": n, "hash_ids": [...]}; other keys are let be."""

    def __init__(self) -> None:
        self.first: float | None = None

    def parse(self, line: str) -> TraceRow:
        try:
            row = msgspec.json.decode(line, type=_MooncakeRow)
        except msgspec.ValidationError as error:
            raise LineFault(str(error)) from None
        except (msgspec.DecodeError, RecursionError) as error:
            raise LineFault(f"broken JSON: {error}") from None
        if self.first is None:
            self.first = row.timestamp
        return TraceRow((row.timestamp - self.first) / 1000, row.input_length, row.output_length, row.hash_ids)


def _cells(line: str) -> list[str]:
    try:
        return next(csv.reader([line], strict=True))
    except csv.Error as error:
        raise LineFault(f"broken CSV: {error}") from None


def _time(text: str) -> datetime:
    if not _STAMP.fullmatch(text):
        raise LineFault(f"TIMESTAMP is {_short(text)}, needed: a time such as 2023-11-16 18:17:03.9799600")
    try:
        when = datetime.fromisoformat(text)
    except ValueError as error:
        raise LineFault(f"TIMESTAMP is {_short(text)}: {error}") from None
    return when if when.tzinfo else when.replace(tzinfo=UTC)


def _whole(name: str, text: str) -> int:
    if not _WHOLE.fullmatch(text) or not 0 <= int(text) <= NUMBER_LIMIT:
        raise LineFault(f"{name} is {_short(text)}, allowed: a whole number from 0 to {NUMBER_LIMIT}")
    return int(text)


def _short(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")
