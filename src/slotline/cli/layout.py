"""``slotline layout``: the table of fields for a config, its bytes, and a picture of where they go."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

import slotline as sl
from slotline.cli.output import print_json, stdout

HELP = """Show the buffers that a config makes: name, shape, dtype, fill, place and bytes of each field.

The bars are shares of all bytes. --plot draws the same as an image file."""


def layout(
    max_num_seqs: Annotated[int, typer.Option(help="Slots.")] = 256,
    max_model_len: Annotated[int, typer.Option(help="Tokens of prompt and output together.")] = 8192,
    max_chunk_tokens: Annotated[int, typer.Option(help="Tokens of the longest prefill chunk.")] = 2048,
    block_size: Annotated[int, typer.Option(help="Tokens of one KV block.")] = 64,
    vocab_size: Annotated[int, typer.Option(help="Token ids.")] = 151_936,
    token_dtype: Annotated[str, typer.Option(help="int64 or int32.")] = "int64",
    spec_method: Annotated[str, typer.Option(help="none, ngram, suffix or mtp.")] = "none",
    num_draft_tokens: Annotated[int, typer.Option(help="Drafts of one step.")] = 3,
    mtp_levels: Annotated[int, typer.Option(help="MTP heads.")] = 1,
    hidden_size: Annotated[int | None, typer.Option(help="Width of the hidden state that MTP takes over.")] = None,
    role: Annotated[str, typer.Option(help="mixed, prefill or decode.")] = "mixed",
    multimodal: Annotated[bool, typer.Option("--multimodal", help="With the multimodal fields.")] = False,
    without: Annotated[list[str] | None, typer.Option(help="Leave a group out; may be given several times.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the picture into this file (png, svg, pdf).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One line of JSON: config, fields, nbytes, ...")] = False,
) -> None:
    config = sl.BatchConfig(
        max_num_seqs=max_num_seqs,
        max_model_len=max_model_len,
        max_chunk_tokens=max_chunk_tokens,
        block_size=block_size,
        vocab_size=vocab_size,
        token_dtype=token_dtype,
        spec_method=spec_method,
        num_draft_tokens=num_draft_tokens,
        mtp_levels=mtp_levels,
        hidden_size=hidden_size,
        role=role,
    )
    table = sl.target_layout(config, multimodal=multimodal)
    if spec_method == "mtp":
        table = table | sl.mtp_layout(config)
    table = table.without(*(without or ()))
    if plot is not None:
        draw(table, plot)
    if as_json:
        found = {"nbytes": table.nbytes, "fingerprint": table.fingerprint, "fields": table.describe()}
        print_json(found)
        return
    stdout.print(_rich_table(table))
    slots = config.max_num_seqs
    stdout.print(f"{len(table)} fields, {_size(table.nbytes)} in all, {_size(table.nbytes // slots)} a slot")
    stdout.print(f"fingerprint {table.fingerprint}")


layout.__doc__ = HELP


def _rich_table(table: sl.BufferLayout) -> Table:
    out = Table(box=None, header_style="bold", pad_edge=False)
    for heading, justify in (("field", "left"), ("shape", "left"), ("dtype", "left"), ("fill", "right"),
                             ("place", "left"), ("group", "left"), ("bytes", "right"), ("share", "left")):  # fmt: skip
        out.add_column(heading, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    rows = table.describe()
    most = max(row["nbytes"] for row in rows)
    for row in rows:
        shape = "x".join(str(n) for n in row["shape"])
        bar = "#" * round(24 * row["nbytes"] / most)
        cells = (row["name"], shape, row["dtype"], str(row["fill"]), row["residency"], row["group"])
        out.add_row(*cells, _size(row["nbytes"]), bar)
    return out


def _size(nbytes: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < 1024 or unit == "GiB":
            break
        nbytes /= 1024
    return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"


def draw(table: sl.BufferLayout, file: Path) -> None:
    """The fields as bars of bytes. ``ConfigError`` if matplotlib or the file cannot be used."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise sl.ConfigError("--plot needs matplotlib: pip install 'slotline[cli]'") from None
    rows: list[dict[str, Any]] = sorted(table.describe(), key=lambda r: r["nbytes"])
    figure = Figure(figsize=(8, 0.22 * len(rows) + 1), layout="constrained")
    axes = figure.add_subplot()
    axes.barh([r["name"] for r in rows], [r["nbytes"] for r in rows])
    axes.set_xscale("log")
    axes.set_xlabel("bytes")
    axes.tick_params(axis="y", labelsize=7)
    try:
        figure.savefig(file)
    except (OSError, ValueError) as error:
        raise sl.ConfigError(f"--plot {file}: {error}") from error
