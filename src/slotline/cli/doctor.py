"""``slotline doctor``: what is installed, and what would be used."""

from __future__ import annotations

from typing import Any

import typer
from rich.table import Table
from rich.text import Text

from slotline.cli import console
from slotline.cli.options import Json
from slotline.core.errors import BackendUnavailable


def doctor(as_json: Json = False) -> None:
    """List every backend with its verdict and the reason, and say which one would be used.

    Each backend is probed in a process of its own, with a time limit, so a broken driver cannot take this command
    down. SLOTLINE_BACKEND, slotline.toml and the other settings count as they would for an engine.

    Exit status: 0; 1 if the backend that the settings ask for cannot be used; 2 for settings that make no sense.

    Example: [bold]slotline doctor --json[/bold]
    """
    from slotline import __version__
    from slotline.core.registry import list_backends, selected_backend

    backends = list_backends()
    selected: str | None = None
    try:
        selected = selected_backend()
    except BackendUnavailable as error:
        console.complain(str(error))
    report: dict[str, Any] = {
        "version": __version__,
        "backends": [
            {
                "name": b.name,
                "vendor": b.vendor,
                "usable": b.usable,
                "reason": b.reason,
                "versions": dict(b.versions),
                "details": dict(b.details),
                "priority": b.priority,
                "distribution": b.distribution,
            }
            for b in backends
        ],
        "selected": selected,
    }
    if as_json:
        console.print_json(report)
    else:
        _show(report)
    if selected is None:
        raise typer.Exit(1)


def _show(report: dict[str, Any]) -> None:
    out = console.out()
    table = Table(
        "backend",
        "usable",
        "why not, or versions and details",
        "priority",
        "from",
        title=f"slotline {report['version']}",
    )
    for b in report["backends"]:
        said = ", ".join(
            [f"{name} {version}" for name, version in b["versions"].items()]
            + [f"{name}: {detail}" for name, detail in b["details"].items()]
        )
        name = b["name"] + (f" ({b['vendor']})" if b["vendor"] else "")
        verdict = Text("yes", style="green") if b["usable"] else Text("no", style="red")
        priority = "by name" if b["priority"] is None else str(b["priority"])
        table.add_row(name, verdict, Text(b["reason"] or said), priority, b["distribution"])
    out.print(table)
    out.print(Text(f"selected: {report['selected'] or 'none'}"))
