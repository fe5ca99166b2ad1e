"""``slotline doctor``: what is installed, every backend with its verdict and reason, and which one is taken."""

from __future__ import annotations

import platform
from typing import Annotated, Any

import msgspec
import typer
from rich.table import Table

import slotline as sl
from slotline.cli.output import print_json, stderr, stdout
from slotline.core.registry import selected_backend

HELP = """Show every backend, whether it can be used here and why not, and which one "auto" takes.

Each backend is probed in a process of its own with a time limit (SLOTLINE_PROBE_TIMEOUT, 20 s), so a driver that
hangs or crashes is a line in the table. Exit status 1: the settings name a backend that cannot be used."""


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="One line of JSON: version, backends, selected.")] = False,
) -> None:
    backends = sl.list_backends()
    selected, problem = None, ""
    try:
        selected = selected_backend()
    except (sl.BackendUnavailable, sl.ConfigError) as error:
        problem = str(error)
    if as_json:
        print_json({"version": sl.__version__, "backends": [_plain(b) for b in backends], "selected": selected})
    else:
        stdout.print(f"slotline {sl.__version__}, Python {platform.python_version()}, {platform.machine()}")
        stdout.print(_table(backends, selected))
    if problem:
        stderr.print(f"no backend is selected: {problem}", markup=False)
        raise typer.Exit(1)


doctor.__doc__ = HELP


def _plain(info: sl.BackendInfo) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(info)
    del plain["broken"]
    return plain


def _table(backends: list[sl.BackendInfo], selected: str | None) -> Table:
    table = Table(box=None, header_style="bold", pad_edge=False)
    for heading in ("", "backend", "vendor", "usable", "priority", "from", "versions, or why not"):
        table.add_column(heading, overflow="fold")
    for b in backends:
        versions = ", ".join(f"{name} {version}" for name, version in b.versions.items())
        priority = "by name" if b.priority is None else str(b.priority)
        cells = ["*" if b.name == selected else "", b.name, b.vendor or "", "yes" if b.usable else "no", priority]
        table.add_row(*cells, b.distribution, versions if b.usable else b.reason.replace("[", r"\["))
    return table
