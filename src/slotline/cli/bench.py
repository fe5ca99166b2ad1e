"""``slotline bench``: what slotline's calls cost beside plain ways of doing the same, in one run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from slotline.bench.html import require_plots
from slotline.bench.reports import bench_page
from slotline.bench.suites import GROUPS
from slotline.bench.timing import machine, measure
from slotline.cli import console
from slotline.cli.options import Json
from slotline.core.errors import ConfigError, nearest
from slotline.core.registry import load_backend


def bench(
    only: Annotated[
        str | None, typer.Option(help=f"Only these groups, with commas between: {', '.join(GROUPS)}.", metavar="GROUPS")
    ] = None,
    rounds: Annotated[int, typer.Option(min=3, help="Rounds of each measurement.")] = 15,
    backend: Annotated[str | None, typer.Option(help="Backend by name. (default: the settings, else auto)")] = None,
    framework: Annotated[str | None, typer.Option(help="Whose tensors. (default: the backend's own)")] = None,
    report: Annotated[Path | None, typer.Option(help="Also write a page with plots.", metavar="FILE.html")] = None,
    as_json: Json = False,
) -> None:
    """Measure what slotline's calls cost, each beside a plain way of doing the same.

    A case and its baselines run in turn in one process, round by round; medians count. The ratios can be compared
    between machines and from day to day, the microseconds cannot. Baselines: a plain copy (np.copyto, row by row) of
    the row bytes of every field of the layout, and the usual loop over requests and fields with slice assignments in
    the same framework.

    Timed is everything from ready arrays or lists on: SamplingParams, Request, task, validation, insertion.

    Exit status: 0; 2 for bad usage.

    Examples: [bold]slotline bench --only insertion,steps[/bold],
    [bold]slotline bench --framework torch --report bench.html[/bold]
    """
    chosen = list(GROUPS) if only is None else [g.strip() for g in only.split(",") if g.strip()]
    for group in chosen:
        if group not in GROUPS:
            raise ConfigError(f"--only: unknown group {group!r}, allowed: {', '.join(GROUPS)}{nearest(group, GROUPS)}")
    if not chosen:
        raise ConfigError(f"--only names no group, allowed: {', '.join(GROUPS)}")
    if report is not None:
        require_plots()
    device = load_backend(backend, framework=framework)
    results: list[dict[str, Any]] = []
    for group in chosen:
        with console.err().status(f"measuring {group}"):
            found = [measure(case, rounds).as_dict() for case in GROUPS[group](device)]
        results += found
        if not as_json:
            _show(group, found)
    told = {
        "backend": device.name,
        "framework": device.framework,
        "machine": machine(),
        "rounds": rounds,
        "results": results,
    }
    if report is not None:
        bench_page(told, report)
    if as_json:
        console.print_json(told)
    elif report is not None:
        console.out().print(Text(f"the page is in {report}"))


def _show(group: str, found: list[dict[str, Any]]) -> None:
    ratios = list(dict.fromkeys(k for row in found for k in row if k.startswith("ratio to ")))
    table = Table(title=Text(group))
    table.add_column("case")
    table.add_column("µs for each", justify="right")
    table.add_column("quartiles", justify="right")
    for name in ratios:
        table.add_column(name, justify="right")
    for row in found:
        low, high = row["us_quartiles"]
        cells = [f"{row[name]:.3g}" if name in row else "" for name in ratios]
        table.add_row(row["name"], f"{row['us']:,.2f}", f"{low:,.2f} to {high:,.2f}", *cells)
    console.out().print(table)
