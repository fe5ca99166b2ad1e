"""Request traces: files in the Azure and Mooncake formats, and synthetic ones. Streams, in bounded memory.

A file's format is told by its content, never by its name. Rows keep the order of the file; arrival times are read and
checked, but the replay is as fast as slots allow.
"""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from slotline.replay.formats import LineFault, Parse, TraceError, TraceRow, recognise

__all__ = ["LINE_LIMIT", "TraceError", "TraceRow", "count_rows", "read_trace", "synthetic"]

LINE_LIMIT = 1 << 20
"""Bytes of the longest line; a longer one is refused before it is read whole."""


def read_trace(path: str | Path) -> Iterator[TraceRow]:
    """The rows of a trace file, read as they are asked for. Raises ``TraceError``."""
    number = 0
    try:
        _require_file(Path(path))
        parse: Parse | None = None
        empty = True
        with Path(path).open("rb") as file:
            while raw := file.readline(LINE_LIMIT + 1):
                number += 1
                line = _text(raw, first=number == 1)
                if not line:
                    continue
                if parse is None:
                    parse, is_header = recognise(line)
                    if is_header:
                        continue
                row = parse(line)
                empty = False
                yield row
        if parse is None:
            number = 0
            raise LineFault("the file is empty, needed: a trace in Azure's CSV or Mooncake's JSON lines")
        if empty:
            raise LineFault("nothing stands behind the header, needed: at least one request")
    except LineFault as fault:
        raise TraceError(f"{path}:{number}: {fault}" if number else f"{path}: {fault}") from None
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL character
        raise TraceError(f"{path}: {getattr(error, 'strerror', None) or error}") from error


def count_rows(path: str | Path, limit: int | None = None) -> int:
    """Read and check a whole trace, or its first ``limit`` rows, and count them. Raises ``TraceError``."""
    count = 0
    for _ in read_trace(path):
        count += 1
        if count == limit:
            break
    return count


def synthetic(count: int, seed: int) -> Iterator[TraceRow]:
    """``count`` requests: lognormal lengths (medians 400 and 60 tokens), Poisson arrivals (20 a second)."""
    rng = np.random.default_rng([seed, 0x51071])
    clock = 0.0
    for _ in range(count):
        prompt, output = np.exp(rng.normal((np.log(400.0), np.log(60.0)), (1.0, 0.8)))
        yield TraceRow(clock, int(np.clip(prompt, 1, 4096)), int(np.clip(output, 1, 1024)), None)
        clock += float(rng.exponential(1 / 20))


def _require_file(path: Path) -> None:
    mode = path.stat().st_mode
    if stat.S_ISDIR(mode):
        raise LineFault("is a directory, needed: a trace file")
    if not stat.S_ISREG(mode):
        raise LineFault("is not a regular file, needed: a trace file")


def _text(raw: bytes, first: bool) -> str:
    if len(raw) > LINE_LIMIT:
        raise LineFault(f"the line is longer than {LINE_LIMIT} bytes")
    if b"\0" in raw:
        raise LineFault("the line holds a NUL byte; this is no text file")
    try:
        return raw.decode("utf-8-sig" if first else "utf-8").strip()
    except UnicodeDecodeError as error:
        raise LineFault(f"byte {error.start + 1} of the line is not UTF-8") from None
