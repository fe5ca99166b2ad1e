"""``slotline new-backend``: a plugin project that installs, is found, and passes the kit at once."""

from __future__ import annotations

import keyword
import os
import shutil
import sys
import tempfile
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Annotated

import typer
from rich.text import Text

from slotline.cli import console
from slotline.cli.options import Json
from slotline.core.discovery import RESERVED, discover
from slotline.core.errors import ConfigError

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
    _check(name)
    names = {
        "name": name,
        "distribution": f"slotline-{name.replace('_', '-')}",
        "module": f"slotline_{name}",
        "class_name": "".join(part.capitalize() for part in name.split("_")) + "Backend",
    }
    written = _write(folder, names)
    if as_json:
        console.print_json({"name": name, "folder": str(folder), "files": written})
        return
    out = console.out()
    for path in written:
        out.print(Text(str(folder / path)), soft_wrap=True)
    shown = f"'{folder}'" if " " in str(folder) else str(folder)
    out.print(Text(f"\nnext:\n  pip install -e '{folder}[test]'\n  slotline doctor\n  slotline conformance {name}"))
    out.print(Text(f"then edit {shown}/src/{names['module']}/backend.py"), soft_wrap=True)


def _check(name: str) -> None:
    if not (name.isidentifier() and name.isascii() and name == name.lower() and not name.startswith("_")):
        hint = name.lower().replace("-", "_").replace(" ", "_")
        good = f"; did you mean {hint!r}?" if hint != name and hint.isidentifier() and hint.isascii() else ""
        raise ConfigError(f"NAME is {name!r}, allowed: lower-case letters, digits and _, a letter first{good}")
    if keyword.iskeyword(name) or name in RESERVED:
        why = "a word of Python" if keyword.iskeyword(name) else "reserved for slotline itself"
        raise ConfigError(f"NAME is {name!r}, which is {why}; choose another")
    plugin = discover().plugins.get(name)
    if plugin is not None:
        raise ConfigError(f"NAME is {name!r}, which {plugin.origin} brings already; choose another, or uninstall it")


def _write(folder: Path, names: dict[str, str]) -> list[str]:
    """The whole project or nothing: it is made beside its place and moved there."""
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise ConfigError(f"DIR {folder} is there and not an empty folder; choose a new one, nothing was written")
        parent = folder.absolute().parent
        if not parent.is_dir():
            raise ConfigError(f"DIR {folder}: there is no folder {parent}; make it first")
        templates = files("slotline.cli") / "templates"
        made = Path(tempfile.mkdtemp(prefix=".slotline-new-", dir=parent))
        try:
            for pattern, template in FILES.items():
                path = made / pattern.format(**names)
                path.parent.mkdir(parents=True, exist_ok=True)
                source = (templates / f"{template}.template").read_text("utf-8") if template else ""
                path.write_text(Template(source).substitute(names), "utf-8")
            made.chmod(0o777 & ~_umask())
            if folder.exists():
                folder.rmdir()
            os.replace(made, folder)
        except BaseException:
            shutil.rmtree(made, ignore_errors=True)
            raise
    except OSError as error:
        raise ConfigError(f"DIR {folder}: {error.strerror or error}; nothing was written") from error
    return [pattern.format(**names) for pattern in FILES]


def _umask() -> int:
    if sys.platform == "win32":
        return 0
    mask = os.umask(0)
    os.umask(mask)
    return mask
