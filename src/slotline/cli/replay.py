"""``slotline replay``: a request trace into the buffers of a backend, checked row by row."""

from __future__ import annotations

import enum
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from slotline.bench.html import require_plots
from slotline.bench.reports import replay_page
from slotline.cli import console
from slotline.cli.options import (
    BlockSize,
    Json,
    MaxChunkTokens,
    MaxModelLen,
    MaxNumSeqs,
    Method,
    MtpLevels,
    NumBlocks,
    NumDraftTokens,
    SpecMethod,
    batch_config,
    require_memory,
)
from slotline.core.backend import Backend
from slotline.core.errors import ConfigError
from slotline.core.registry import load_backend
from slotline.replay.driver import ReplayOptions, ReplayResult, replay_layout
from slotline.replay.driver import replay as run_replay
from slotline.replay.formats import TraceRow
from slotline.replay.traces import count_rows, read_trace, synthetic

LOAD = "Load"
CHECKS = "Checks"


class Role(enum.StrEnum):
    MIXED = "mixed"
    SPLIT = "split"


def replay(
    trace: Annotated[
        Path | None, typer.Argument(help="A trace in Azure's CSV or Mooncake's JSON lines, told by its content.")
    ] = None,
    synthetic_requests: Annotated[
        int | None, typer.Option("--synthetic", min=1, help="Make a trace of N requests instead.", rich_help_panel=LOAD)
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first N rows.", rich_help_panel=LOAD)] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything drawn.", rich_help_panel=LOAD)] = 0,
    abort_rate: Annotated[
        float, typer.Option(help="Chance of each request to be given up on its way.", rich_help_panel=LOAD)
    ] = 0.0,
    condense_every: Annotated[
        int, typer.Option(min=0, help="Close the gaps between slots every N steps; 0: never.", rich_help_panel=LOAD)
    ] = 0,
    role: Annotated[
        Role,
        typer.Option(help="One batch, or a prefill batch that hands over to a decode batch.", rich_help_panel=LOAD),
    ] = Role.MIXED,
    max_num_seqs: MaxNumSeqs = 256,
    max_model_len: MaxModelLen = 8192,
    max_chunk_tokens: MaxChunkTokens = 2048,
    block_size: BlockSize = 64,
    num_blocks: NumBlocks = None,
    spec_method: Method = SpecMethod.NONE,
    num_draft_tokens: NumDraftTokens = None,
    mtp_levels: MtpLevels = None,
    acceptance: Annotated[
        float | None,
        typer.Option(
            help="Chance of each draft to be accepted, after those before it. (default: 0.7)",
            rich_help_panel="Speculation",
        ),
    ] = None,
    verify: Annotated[
        bool,
        typer.Option(
            "--verify",
            help="Compare all rows of all fields with the plain-Python reference after each step.",
            rich_help_panel=CHECKS,
        ),
    ] = False,
    order_seed: Annotated[
        int | None,
        typer.Option(help="Shuffle the tasks within each call; the digest must stay the same.", rich_help_panel=CHECKS),
    ] = None,
    record: Annotated[
        Path | None,
        typer.Option(
            help="Write a recording of everything that is done, see: slotline packets --help. It reads all buffers "
            "after each operation, so choose a --limit.",
            rich_help_panel=CHECKS,
        ),
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(
            help="Also write a page with plots: slots in use, time per insertion, bytes per step.", metavar="FILE.html"
        ),
    ] = None,
    redact: Annotated[bool, typer.Option(help="Hide the token ids in the recording.", rich_help_panel=CHECKS)] = True,
    backend: Annotated[str | None, typer.Option(help="Backend by name. (default: the settings, else auto)")] = None,
    framework: Annotated[
        str | None,
        typer.Option(
            help="Whose tensors: numpy, torch or paddle. The digest is the same. (default: the backend's own)"
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Drive a request trace through a continuous-batching scheduler and insert_tasks into a backend's buffers.

    The scheduler fills each step up to a budget of tokens, cuts long prompts into chunks, grows block tables, preempts
    the youngest request when blocks run out and resumes it later; results arrive one step late, as in an engine that
    overlaps the two. Requests longer than the model are refused and counted. A stand-in for the model draws tokens
    from few symbols, so that stop sequences really match. At its end each request's output is compared with plain
    generation, and with --verify every row of every field is compared after every step, and all packed arrays of
    each step and each draft level.

    With --role split each request changes sides as the bytes of a hand-over record, and the two sides compare their
    layouts before anything runs.

    The digest stands for everything that happened; it is the same on every run, for every --order-seed and for every
    --framework.

    Exit status: 0; 1 at the first difference, which is shown; 2 for bad usage or a trace that cannot be read.

    Examples: [bold]slotline replay --synthetic 2000 --verify[/bold],
    [bold]slotline replay trace.csv --role split --spec-method mtp --num-blocks 2000 --abort-rate 0.05[/bold],
    [bold]slotline replay --synthetic 200 --verify --framework torch[/bold]
    """
    if (trace is None) == (synthetic_requests is None):
        raise ConfigError("give either a TRACE or --synthetic N, see: slotline replay --help")
    if acceptance is not None and spec_method is SpecMethod.NONE:
        raise ConfigError("--acceptance has no effect with --spec-method none; choose ngram, suffix or mtp")
    if record is not None and role is Role.SPLIT:
        raise ConfigError("--record takes one batch, and --role split makes two; leave one of the options out")
    config = batch_config(
        max_num_seqs=max_num_seqs,
        max_model_len=max_model_len,
        max_chunk_tokens=max_chunk_tokens,
        block_size=block_size,
        num_blocks=num_blocks,
        spec_method=spec_method,
        num_draft_tokens=num_draft_tokens,
        mtp_levels=mtp_levels,
    )
    options = ReplayOptions(
        abort_rate=abort_rate,
        condense_every=condense_every,
        acceptance=0.7 if acceptance is None else acceptance,
        split=role is Role.SPLIT,
        verify=verify,
        order_seed=order_seed,
        seed=seed,
        series=report is not None,
        record=record,
        redact=redact,
    )
    roles = ("prefill", "decode") if options.split else ("mixed",)
    require_memory([replay_layout(replace(config, role=role)) for role in roles], copies=1 + options.verify)
    if report is not None:
        require_plots()
    device = load_backend(backend, framework=framework)
    rows, total = _rows(trace, synthetic_requests, limit, seed)
    with _progress(total) as progress:
        result = run_replay(rows, config, device, options, progress)
    told = _report(f"synthetic:{synthetic_requests}" if trace is None else str(trace), device, result)
    if report is not None:
        replay_page(told, result.series, report)
    if as_json:
        console.print_json(told)
    else:
        _show(told, result, verify)
    if result.mismatch is not None:
        m = result.mismatch
        at = f", cell {m.cell}" if m.cell is not None else ""
        console.complain(
            f"first difference: slot {m.slot}, request {m.request_id}, field {m.field}{at}: "
            f"expected {m.expected}, got {m.got}",
            kind="mismatch",
        )
        raise typer.Exit(1)


def _rows(path: Path | None, count: int | None, limit: int | None, seed: int) -> tuple[Iterator[TraceRow], int]:
    """The rows, and how many they are. A file is read and checked once before the replay begins."""
    if path is None:
        assert count is not None
        total = min(count, limit or count)
        return synthetic(total, seed), total
    return islice(read_trace(path), limit), count_rows(path, limit)


@contextmanager
def _progress(total: int) -> Iterator[Any]:
    """A progress bar on stderr, if someone is looking."""
    if not sys.stderr.isatty():
        yield None
        return
    columns = (
        TextColumn("requests"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn()
    )  # fmt: skip
    with Progress(*columns, console=console.err(), transient=True) as progress:
        task = progress.add_task("requests", total=total)
        yield lambda done: progress.update(task, completed=done)


def _report(trace: str, backend: Backend, result: ReplayResult) -> dict[str, Any]:
    return {
        "trace": trace,
        "backend": backend.name,
        "framework": backend.framework,
        "requests": result.requests,
        "refused": result.refused,
        "steps": result.steps,
        "tasks": result.tasks,
        "mismatches": result.mismatches,
        "insert_us": result.insert_us,
        "seconds": result.seconds,
        "stats": result.stats,
        "digest": result.digest,
    }


def _show(report: dict[str, Any], result: ReplayResult, verify: bool) -> None:
    out = console.out()
    table = Table(show_header=False, title=Text(f"replay of {report['trace']}"))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row("backend", f"{report['backend']} ({report['framework']})")
    table.add_row("requests", f"{result.requests:,}; {result.refused:,} refused, {result.aborted:,} given up")
    table.add_row("steps", f"{result.steps:,}")
    table.add_row("tasks", ", ".join(f"{kind} {count:,}" for kind, count in result.tasks.items()))
    times = ", ".join(f"{name} {us:,.0f} µs" for name, us in result.insert_us.items())
    table.add_row("one insertion", times)
    table.add_row("bytes", console.human_bytes(result.stats["bytes"]))
    table.add_row("counters", ", ".join(f"{k} {v:,}" for k, v in result.stats.items() if v and k != "bytes"))
    table.add_row("digest", result.digest)
    checked = "every row of every field after every step" if verify else "each request's output (rows: use --verify)"
    verdict = Text("no mismatch", style="green") if not result.mismatches else Text("MISMATCH", style="bold red")
    table.add_row("checked", Text.assemble(checked, ": ", verdict))
    out.print(table)
