"""The commands of ``slotline``, and what becomes of their errors."""

from __future__ import annotations

import os
import sys
import warnings
from typing import Annotated

import typer

import slotline as sl
from slotline.cli import doctor, layout, replay
from slotline.cli.output import complain

app = typer.Typer(
    name="slotline",
    help="Puts the tasks of an LLM engine's scheduler into its device buffers, as one transaction and one packet.\n\n"
    "Every command takes --json: exactly one line on stdout, all else on stderr. Exit status: 0 good, "
    "1 a check failed, 2 bad usage or bad input.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("doctor")(doctor.doctor)
app.command("layout")(layout.layout)
app.command("replay")(replay.replay)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"slotline {sl.__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def run(arguments: list[str] | None = None) -> int:
    """Run a command; its exit status. Errors that slotline raises on purpose are one line, never a traceback."""
    warnings.showwarning = _one_line
    try:
        result = app(args=arguments, standalone_mode=True)
    except SystemExit as leaving:
        code = leaving.code
        return code if isinstance(code, int) else 0 if code is None else 2
    except sl.SlotlineError as error:
        complain(str(error))
        return 2
    except BrokenPipeError:
        # The reader went away (`slotline layout | head`): nobody is left to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return result if isinstance(result, int) else 0


def _one_line(message: Warning | str, category: type[Warning], *_rest: object, **_more: object) -> None:
    complain(f"{category.__name__}: {message}")
