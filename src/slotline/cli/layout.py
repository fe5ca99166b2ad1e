"""``slotline layout``: the one table, its bytes, a picture."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

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
)
from slotline.core.errors import ConfigError
from slotline.core.layout import BufferLayout
from slotline.core.standard import mtp_layout, target_layout


class Role(enum.StrEnum):
    MIXED = "mixed"
    PREFILL = "prefill"
    DECODE = "decode"


class TokenDtype(enum.StrEnum):
    INT64 = "int64"
    INT32 = "int32"


class Hybrid(enum.StrEnum):
    NGRAM = "ngram"
    SUFFIX = "suffix"


def layout(
    max_num_seqs: MaxNumSeqs = 256,
    max_model_len: MaxModelLen = 8192,
    max_chunk_tokens: MaxChunkTokens = 2048,
    block_size: BlockSize = 64,
    num_blocks: NumBlocks = None,
    spec_method: Method = SpecMethod.NONE,
    num_draft_tokens: NumDraftTokens = None,
    mtp_levels: MtpLevels = None,
    role: Annotated[Role, typer.Option(help="Which half of a prefill/decode split it is.")] = Role.MIXED,
    token_dtype: Annotated[TokenDtype, typer.Option(help="Dtype of token ids.")] = TokenDtype.INT64,
    hidden_size: Annotated[int | None, typer.Option(help="Width of the hidden state handed to MTP.")] = None,
    hybrid: Annotated[Hybrid | None, typer.Option(help="A second way to draft beside MTP.")] = None,
    multimodal: Annotated[bool, typer.Option("--multimodal", help="With the multimodal fields.")] = False,
    without: Annotated[list[str] | None, typer.Option(help="Leave out a group of fields; may be repeated.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Also draw the bytes into this PNG (needs matplotlib).")] = None,
    as_json: Json = False,
) -> None:
    """Show the buffers that a batch of these sizes has: every field with shape, dtype, fill, place and bytes.

    Groups for --without: penalties, bad_words, thinking, logprobs, engine, multimodal.

    Example: [bold]slotline layout --max-model-len 32768 --spec-method mtp[/bold]
    """
    config = batch_config(
        max_num_seqs=max_num_seqs,
        max_model_len=max_model_len,
        max_chunk_tokens=max_chunk_tokens,
        block_size=block_size,
        num_blocks=num_blocks,
        spec_method=spec_method,
        num_draft_tokens=num_draft_tokens,
        mtp_levels=mtp_levels,
        role=str(role),
        token_dtype=str(token_dtype),
        hidden_size=hidden_size,
        hybrid=None if hybrid is None else str(hybrid),
    )
    if hidden_size is not None and spec_method is not SpecMethod.MTP:
        raise ConfigError("--hidden-size has no effect without --spec-method mtp")
    table = target_layout(config, multimodal=multimodal)
    if spec_method is SpecMethod.MTP:
        table = table | mtp_layout(config)
    table = table.without(*(without or ()))
    if plot is not None:
        _plot(table, plot)
    if as_json:
        console.print_json({"nbytes": table.nbytes, "fingerprint": table.fingerprint, "fields": table.describe()})
    else:
        _show(table)


def _show(table: BufferLayout) -> None:
    out = console.out()
    rows = table.describe()
    most = max(row["nbytes"] for row in rows)
    view = Table(title="One row for each field")
    for heading in ("field", "shape", "dtype", "fill", "place", "group"):
        view.add_column(heading, no_wrap=True)
    view.add_column("bytes", justify="right", no_wrap=True)
    view.add_column("of the largest", no_wrap=True)
    for row in rows:
        view.add_row(
            row["name"],
            " x ".join(str(n) for n in row["shape"]),
            row["dtype"],
            str(row["fill"]),
            row["residency"],
            row["group"],
            console.human_bytes(row["nbytes"]),
            Text(console.bar(row["nbytes"] / most, 16, out)),
        )
    out.print(view)
    total = sum(row["nbytes"] for row in rows)
    for place in ("device", "mirrored", "host"):
        part = sum(row["nbytes"] for row in rows if row["residency"] == place)
        if part:
            line = f"{place:>9} {console.human_bytes(part):>11}  {console.bar(part / total, 60, out)}"
            out.print(Text(line))
    note = ", mirrors counted twice: " + console.human_bytes(table.nbytes) if table.nbytes != total else ""
    out.print(Text(f"    total {console.human_bytes(total):>11}{note}; {len(table)} fields, {table.fingerprint}"))


def _plot(table: BufferLayout, path: Path) -> None:
    try:
        import matplotlib
    except ImportError:
        raise ConfigError("--plot needs matplotlib; get it with: pip install 'slotline[cli]'") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows: list[dict[str, Any]] = sorted(table.describe(), key=lambda row: int(row["nbytes"]))
    figure, axes = pyplot.subplots(figsize=(9, 0.22 * len(rows) + 1), layout="constrained")
    axes.barh([row["name"] for row in rows], [row["nbytes"] for row in rows])
    axes.set_xscale("log")
    axes.set_xlabel("bytes")
    axes.tick_params(axis="y", labelsize=7)
    axes.set_title(f"{console.human_bytes(table.nbytes)} in {len(rows)} fields")
    try:
        figure.savefig(path, format="png", dpi=120)
    except OSError as error:
        raise ConfigError(f"--plot {path}: {error.strerror or error}") from None
    finally:
        pyplot.close(figure)
