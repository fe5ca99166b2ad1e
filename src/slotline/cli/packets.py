"""``slotline packets``: recordings across backends."""

from __future__ import annotations

import json
import sys
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from slotline.cli import console
from slotline.cli.options import Json, require_memory
from slotline.core import recorded
from slotline.core.errors import ConfigError
from slotline.core.playback import kind_of
from slotline.core.playback import verify as play_and_compare
from slotline.core.recording_file import Recording
from slotline.core.registry import load_backend

packets = typer.Typer(
    name="packets",
    help="Recordings: what was done to a batch, with its digest after each operation.",
    no_args_is_help=False,
    rich_markup_mode="rich",
)

File = Annotated[Path, typer.Argument(help="A recording, as slotline.record or slotline replay --record write it.")]


def _opened(path: Path) -> Recording:
    try:
        return Recording(path)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from error


@packets.command()
def show(
    file: File,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first N records.")] = None,
    as_json: Json = False,
) -> None:
    """List a recording's records: number, kind, what it holds, the digest after it.

    Exit status: 0; 2 for a file that is no whole recording. What lies before the broken part is listed (with --json
    nothing is).

    Example: [bold]slotline packets show azure.rec --limit 20[/bold]
    """
    recording = _opened(file)
    if as_json:
        for _ in islice(recording, limit):  # all of it first: what is no recording leaves stdout empty
            pass
        _write_json(file, recording, limit)
    else:
        _write_lines(recording, limit)


def _write_lines(recording: Recording, limit: int | None) -> None:
    """Line by line: a recording may have more records than fit into a table in memory."""
    write, head = sys.stdout.write, recording.head
    hidden = "token ids redacted" if head.redacted else "token ids as they were"
    write(f"layout {head.fingerprint}, slotline {head.version}, {hidden}\n")
    write(f"{'record':>7}  {'kind':<10}  {'digest':<16}  content\n")
    for number, entry in enumerate(islice(recording, limit), 1):
        told = ", ".join(f"{name} {value}" for name, value in content(entry.operation).items())
        write(f"{number:>7}  {kind_of(entry.operation):<10}  {entry.digest[:16]}  {told}".rstrip() + "\n")


def _write_json(file: Path, recording: Recording, limit: int | None) -> None:
    """One line, written record by record."""
    write, head = sys.stdout.write, recording.head
    report = {"file": str(file), "slotline": head.version, "redacted": head.redacted, "fingerprint": head.fingerprint}
    write(json.dumps(report)[:-1] + ', "records": [')
    for number, entry in enumerate(islice(recording, limit), 1):
        row = {"record": number, "kind": kind_of(entry.operation), **content(entry.operation), "digest": entry.digest}
        write((", " if number > 1 else "") + json.dumps(row))
    write("]}\n")


def content(operation: recorded.Operation) -> dict[str, Any]:
    """What there is to say of a record, without its arrays."""
    if isinstance(operation, recorded.Insert):
        kinds: dict[str, int] = {}
        for task in operation.tasks:
            kinds[task.kind] = kinds.get(task.kind, 0) + 1
        return {
            "requests": len(operation.requests),
            **kinds,
            "packet_bytes": operation.packet_bytes,
            "segments": operation.segments,
        }
    if isinstance(operation, recorded.Prepare):
        return {"step": operation.step, "rows": len(operation.rows), "num_tokens": operation.num_tokens}
    values = {n: getattr(operation, n) for n in operation.__struct_fields__}
    return {n: v for n, v in values.items() if not isinstance(v, bytes)}


@packets.command()
def verify(
    file: File,
    backend: Annotated[str, typer.Option(help="The backend to play it on.", metavar="NAME")],
    framework: Annotated[str | None, typer.Option(help="Whose tensors. (default: the backend's own)")] = None,
    vendor: Annotated[str | None, typer.Option(help="Whose device, where one name stands for several.")] = None,
    as_json: Json = False,
) -> None:
    """Play a recording on a backend and compare the digest after each record.

    At the first that differs the record, and the slot, field and cell of the first difference to NumPy's buffers are
    told.

    Exit status: 0; 1 at the first difference; 2 for bad usage or a file that is no whole recording.

    Example: [bold]slotline replay trace.csv --limit 300 --record azure.rec[/bold], then
    [bold]slotline packets verify azure.rec --backend opencl[/bold]
    """
    recording = _opened(file)
    require_memory([recording.layout], copies=2)
    device = load_backend(backend, framework=framework, vendor=vendor)
    found = play_and_compare(recording, device, load_backend("cpu", framework="numpy"))
    cell = found.difference
    report = {
        "file": str(file),
        "backend": device.name,
        "framework": device.framework,
        "records": found.records,
        "equal": found.record is None,
        "record": found.record,
        "kind": found.kind or None,
        "difference": None if cell is None else cell._asdict(),
        "refused": found.refused,
    }
    if as_json:
        console.print_json(report)
    elif found.record is None:
        console.out().print(Text(f"{found.records:,} records, every digest equal", style="green"))
    if found.record is None:
        return
    where = f"record {found.record} ({found.kind})"
    if found.refused is not None:
        said = f"{found.refused}; NumPy can play it, so {device.name} decided something else before"
    elif cell is None:
        said = f"{where}: {device.name} agrees with NumPy, so the recording itself differs; it was written by another "
        said += "slotline or on a wrong device, or something wrote past slotline's functions"
    else:
        slot = "" if cell.slot is None else f"slot {cell.slot}, "
        said = f"{where}: {slot}field {cell.field}, cell {cell.cell}: NumPy has {cell.left}, {device.name} {cell.right}"
    console.complain(said, kind="difference")
    raise typer.Exit(1)
