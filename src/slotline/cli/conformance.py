"""``slotline conformance``: the kit on an installed backend, with a verdict for each rule."""

from __future__ import annotations

import enum
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from slotline.cli import console
from slotline.cli.options import Json
from slotline.core.discovery import discover, require_known
from slotline.core.errors import ConfigError
from slotline.core.settings import load_settings

USAGE_ERROR = 4
"""pytest's status for a run that did not begin."""
NEEDED = ("pytest", "hypothesis", "pytest_timeout")
STYLES = {"pass": "green", "fail": "bold red", "skip": "dim"}


class Profile(enum.StrEnum):
    DEV = "dev"
    CI = "ci"
    THOROUGH = "thorough"


def conformance(
    name: Annotated[str, typer.Argument(help="An installed backend.", metavar="NAME")],
    framework: Annotated[str | None, typer.Option(help="Whose tensors. (default: the backend's own)")] = None,
    vendor: Annotated[str | None, typer.Option(help="Whose device, where one name stands for several.")] = None,
    profile: Annotated[Profile, typer.Option(help="Examples of each property: 20, 100 or 2,000.")] = Profile.DEV,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of all examples.")] = None,
    rules: Annotated[
        str | None, typer.Option(help="Only the tests of these rules, with commas between: W1,W4.", metavar="RULES")
    ] = None,
    known_failures: Annotated[
        Path | None, typer.Option(help='A TOML file of test_name = "reason". One that passes is an error.')
    ] = None,
    junit: Annotated[Path | None, typer.Option(help="Also write the tests as JUnit XML.")] = None,
    as_json: Json = False,
) -> None:
    """Run slotline's conformance kit on a backend and say rule by rule whether it holds.

    What the backend does not declare in its abilities is skipped, with that reason; what it declares is tested. For
    each rule that fails, the smallest failing example is shown, and where to look. The tests' own output goes to
    stderr.

    With --json: {backend, passed, failed, skipped, rules: {W1: "pass", ...}, failures, skip_reasons}.

    Exit status: 0 if nothing failed; 1 if a rule does not hold; 2 for bad usage, or a backend that cannot be used.

    Examples: [bold]slotline conformance cpu[/bold],
    [bold]slotline conformance opencl --profile ci --junit report.xml[/bold]
    """
    missing = [n for n in NEEDED if importlib.util.find_spec(n) is None]
    if missing:
        raise ConfigError(f"the kit needs {' and '.join(missing)}; install them with: pip install 'slotline\\[test]'")
    chosen = load_settings({"backend": name, "framework": framework, "vendor": vendor})
    require_known(chosen.backend, discover(chosen.allowed_plugins).plugins, "NAME")
    if len(chosen.backend) != 1:
        raise ConfigError(f"NAME is {name!r}, allowed: one installed backend, see: slotline doctor")
    options = {"--backend": chosen.backend[0], "--framework": framework, "--vendor": vendor, "--profile": profile.value,
               "--hypothesis-seed": seed, "--rules": rules, "--known-failures": _absolute(known_failures),
               "--junitxml": _absolute(junit)}  # fmt: skip
    found = _run({k: str(v) for k, v in options.items() if v is not None})
    if as_json:
        console.print_json(found)
    else:
        _show(found)
    if found["failed"]:
        raise typer.Exit(1)


def _absolute(path: Path | None) -> Path | None:
    return None if path is None else path.absolute()


def _run(options: dict[str, str]) -> dict[str, Any]:
    """The kit in a process with settings of its own, so that those of a project around it have no say."""
    with tempfile.TemporaryDirectory(prefix="slotline-conformance-") as folder:
        report = Path(folder, "report.json")
        Path(folder, "pytest.ini").write_text("[pytest]\naddopts = -p no:cacheprovider\ntimeout = 600\n")
        command = [sys.executable, "-m", "pytest", "-q", "--pyargs", "slotline.testing.conformance",
                   "-p", "slotline.testing.plugin", "--rootdir", folder, "-c", str(Path(folder, "pytest.ini")),
                   "--no-header", "--tb=short", "--conformance-json", str(report)]  # fmt: skip
        command += [part for item in options.items() for part in item]
        env = {k: v for k, v in os.environ.items() if k not in ("PYTEST_ADDOPTS", "PYTEST_PLUGINS")}
        env["HYPOTHESIS_STORAGE_DIRECTORY"] = folder
        done = subprocess.run(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        console.err().print(done.stdout, markup=False, highlight=False, end="")
        if not report.exists() or done.returncode == USAGE_ERROR:
            last = [line for line in done.stdout.splitlines() if line.strip()]
            said = next((line for line in last if line.startswith("ERROR: ")), last[-1] if last else "no output")
            raise ConfigError(said.removeprefix("ERROR: "))
        found: dict[str, Any] = json.loads(report.read_text("utf-8"))
    if not found["rules"]:
        raise ConfigError(f"the kit ran no test (pytest ended with {done.returncode}); its output is above")
    return found


def _show(found: dict[str, Any]) -> None:
    from slotline.testing.rules import RULES  # only now: the kit needs pytest

    table = Table(title=Text(f"conformance of {found['backend']}"))
    table.add_column("rule", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("what it is about", overflow="fold")
    for name, verdict in found["rules"].items():
        table.add_row(name, Text(verdict, style=STYLES[verdict]), RULES[name].title)
    out = console.out()
    out.print(table)
    skipped: dict[str, list[str]] = {}
    for name, reasons in found["skip_reasons"].items():
        for reason in reasons:
            skipped.setdefault(reason, []).append(name)
    for reason, names in skipped.items():
        out.print(Text(f"skipped of {', '.join(names)}: {reason}"), soft_wrap=True)
    for failure in found["failures"]:
        names = failure["rules"]
        out.print(Text(f"\n{' '.join(names)}: {failure['test']}", style="bold red"))
        out.print(Text(failure["message"]))
        for name in names:
            out.print(Text(f"{name}, what to do: {RULES[name].advice}", style="yellow"))
    out.print(Text(f"\n{found['passed']} passed, {found['failed']} failed, {found['skipped']} skipped"))
