"""``slotline new-backend``: a plugin project that installs, is found, and passes the kit at once."""

from __future__ import annotations

import keyword
import os
import re
import shlex
import tempfile
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from string import Template
from typing import Annotated

import typer
from rich.text import Text

from slotline.cli import console
from slotline.cli.options import Json
from slotline.core.discovery import RESERVED, discover
from slotline.core.errors import ConfigError

LONGEST_NAME = 40
FILES = {
    "pyproject.toml": "pyproject.toml",
    "README.md": "README.md",
    ".gitignore": "gitignore",
    "src/{module}/__init__.py": "init.py",
    "src/{module}/backend.py": "backend.py",
    "src/{module}/py.typed": "",
    "tests/test_conformance.py": "test_conformance.py",
}
"""Each file of a project, and the template that it comes from; none: an empty file."""


def new_backend(
    name: Annotated[str, typer.Argument(help="The backend's name, as load_backend will know it.", metavar="NAME")],
    folder: Annotated[Path, typer.Argument(help="A new or empty folder.", metavar="DIR")],
    as_json: Json = False,
) -> None:
    """Write a plugin project for a device.

    It starts as host memory, so it installs, is found by slotline doctor and passes slotline conformance as it is; its
    comments say which methods to replace, in which order. docs/write-a-backend.md goes through it.

    Exit status: 0; 2 for a name that cannot be used, or a folder that is not empty.

    Example: [bold]slotline new-backend mydevice slotline-mydevice[/bold]
    """
    names = {
        "name": name,
        "distribution": f"slotline-{name.replace('_', '-')}",
        "module": f"slotline_{name}",
        "class_name": "".join(part.capitalize() for part in name.split("_")) + "Backend",
    }
    _check(name, names)
    written = _write(folder, names)
    if as_json:
        console.print_json({"name": name, "folder": str(folder), "files": written})
        return
    out = console.out()
    for path in written:
        out.print(Text(str(folder / path)), soft_wrap=True)
    install = shlex.join(["pip", "install", "-e", f"{folder}[test]"])
    out.print(Text(f"\nnext:\n  {install}\n  slotline doctor\n  slotline conformance {name}"), soft_wrap=True)
    out.print(Text(f"then edit {folder / 'src' / names['module'] / 'backend.py'}"), soft_wrap=True)


def _check(name: str, names: dict[str, str]) -> None:
    """``ConfigError`` for a name that no backend can have, or that something installed has."""
    if not re.fullmatch("[a-z][a-z0-9]*(_[a-z0-9]+)*", name) or len(name) > LONGEST_NAME:
        guess = re.sub("[^a-z0-9]+", "_", name.lower()).strip("_")[:LONGEST_NAME].rstrip("_")
        hint = f"; did you mean {guess!r}?" if re.match("[a-z]", guess) and guess != name else ""
        allowed = f"lower-case letters, digits and single _ between them, a letter first, {LONGEST_NAME} at most"
        raise ConfigError(f"NAME is {name!r}, allowed: {allowed}{hint}")
    if keyword.iskeyword(name) or name in RESERVED:
        why = "a word of Python" if keyword.iskeyword(name) else "reserved for slotline itself"
        raise ConfigError(f"NAME is {name!r}, which is {why}; choose another")
    plugin = discover().plugins.get(name)
    if plugin is not None:
        raise ConfigError(f"NAME is {name!r}, which {plugin.origin} brings already; choose another, or uninstall it")
    if find_spec(names["module"]) is not None:
        what = f"the module {names['module']}"
        raise ConfigError(f"NAME is {name!r}, but {what} is installed already; choose another, or uninstall it")


def _write(folder: Path, names: dict[str, str]) -> list[str]:
    """The whole project or nothing: it is made beside its place and moved there in one step."""
    place = Path(os.path.realpath(folder))  # a link's end; and a relative path means the same until all is done
    try:
        _require_free(folder, place)
        with tempfile.TemporaryDirectory(
            prefix=".slotline-new-", dir=place.parent, ignore_cleanup_errors=True
        ) as beside:
            made = Path(beside, "project")
            for pattern, template in FILES.items():
                path = made / pattern.format(**names)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(Template(_text(template)).substitute(names), "utf-8")
            made.replace(place)  # takes the place of an empty folder, and of nothing else
    except OSError as error:
        raise ConfigError(f"DIR {folder}: {error.strerror or error}; nothing was written") from error
    return [pattern.format(**names) for pattern in FILES]


def _require_free(folder: Path, place: Path) -> None:
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise ConfigError(f"DIR {folder} is there and not an empty folder; choose a new one, nothing was written")
    if place.exists() and place.samefile(Path.cwd()):
        raise ConfigError(f"DIR {folder} is the folder that you are in; choose a new one, nothing was written")
    if not place.parent.is_dir():
        raise ConfigError(f"DIR {folder}: there is no folder {place.parent}; make it first")


def _text(template: str) -> str:
    return (files("slotline.cli") / "templates" / f"{template}.template").read_text("utf-8") if template else ""
