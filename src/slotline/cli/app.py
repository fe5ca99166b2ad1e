"""The command ``slotline``, and how it ends: 0 well, 1 a check failed, 2 bad usage or bad input."""

from __future__ import annotations

import contextlib
import io
import os
import sys
import warnings
from typing import Annotated, Any

import typer

from slotline.cli import bench, conformance, doctor, layout, new_backend, replay
from slotline.cli.console import complain
from slotline.cli.packets import packets
from slotline.core.errors import DeviceError, SlotlineError, TaskError

BROKEN_PIPE = 128 + 13
INTERRUPTED = 128 + 2

app = typer.Typer(
    name="slotline",
    help="Puts the tasks of an LLM engine's scheduler into its device buffers, as one transaction and one packet.",
    no_args_is_help=False,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _flowing(doc: str | None) -> str:
    """A docstring with each paragraph on one line, so that the terminal's width breaks it."""
    return "\n\n".join(" ".join(part.split()) for part in (doc or "").split("\n\n"))


COMMANDS = (doctor.doctor, layout.layout, replay.replay, bench.bench, conformance.conformance, new_backend.new_backend)
for _command in COMMANDS:
    app.command(_command.__name__.replace("_", "-"), help=_flowing(_command.__doc__))(_command)

app.add_typer(packets)


def _print_version(wanted: bool) -> None:
    if wanted:
        from slotline import __version__

        typer.echo(f"slotline {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


def run(args: list[str] | None = None) -> int:
    """Run the command line. Returns the exit status; no error that has a cause outside ends in a traceback."""
    warnings.showwarning = _show_warning
    _open_streams()
    usage_error: type[Exception] = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")
    try:
        status = app(args, prog_name="slotline", standalone_mode=False)
        sys.stdout.flush()
        if status == INTERRUPTED:  # newer typers turn Ctrl-C into this status, older ones into Abort
            raise KeyboardInterrupt
        return status if isinstance(status, int) else 0
    except (BrokenPipeError, SystemExit):  # typer and rich turn a closed pipe into SystemExit(1), a failed check
        _silence(sys.stdout)
        return BROKEN_PIPE
    except OSError as error:  # a full disk behind stdout; the files that commands read have errors of their own
        _silence(sys.stdout)
        complain(f"cannot write: {error.strerror or error}")
        return 2
    except (KeyboardInterrupt, typer.Abort):
        complain("interrupted")
        return INTERRUPTED
    except MemoryError as error:
        complain(f"not enough memory ({error}); choose smaller sizes".replace(" ()", ""))
        return 2
    except SlotlineError as error:
        complain(str(error))
        return 1 if isinstance(error, (TaskError, DeviceError)) else 2  # 1: the core refused what must be right
    except usage_error as error:
        return _complain_of_usage(error)


def _complain_of_usage(error: Any) -> int:
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "slotline"
    text = " ".join(error.format_message().split()) or "no command given"
    complain(f"{text.rstrip('.')}; see: {command} --help")
    return 2


def _show_warning(message: Warning | str, category: type[Warning], *_where: Any, **_more: Any) -> None:
    complain(str(message), kind="warning" if category is not DeprecationWarning else "deprecated")


def _open_streams() -> None:
    """Standard streams that were closed lead nowhere; ones that cannot say a character say its number."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115  (open until the process ends)
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _silence(stream: Any) -> None:
    """Nobody reads: let the interpreter's own flush at its end go nowhere."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
