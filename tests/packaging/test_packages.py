"""What is packaged is what is there."""

from __future__ import annotations

import tomllib
from importlib.metadata import entry_points
from pathlib import Path

import slotline as sl

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def folders() -> set[str]:
    found = set()
    for top, name in (("src/slotline", "slotline"), *((n, f"slotline.{n}") for n in ("core", "backends", "compat"))):
        for init in (ROOT / top).rglob("__init__.py"):
            parts = init.parent.relative_to(ROOT / top).parts
            if name == "slotline" and parts and parts[0] in ("core", "backends", "compat"):
                continue
            found.add(".".join((name, *parts)))
    return found


def test_the_list_of_packages_is_the_folders_on_disk() -> None:
    assert set(PROJECT["tool"]["setuptools"]["packages"]) == folders()


def test_the_links_are_relative() -> None:
    for name in ("core", "backends", "compat"):
        link = ROOT / "src" / "slotline" / name
        assert link.is_symlink()
        assert link.readlink() == Path("../..") / name


def test_what_an_engine_needs_is_four_libraries() -> None:
    names = {d.split(">")[0] for d in PROJECT["project"]["dependencies"]}
    assert names == {"numpy", "stevedore", "msgspec", "array-api-compat"}


def test_our_backends_are_entry_points() -> None:
    declared = PROJECT["project"]["entry-points"]["slotline.backends"]
    ours = {e.name: e.value for e in entry_points(group="slotline.backends") if e.dist and e.dist.name == "slotline"}
    assert ours == declared


def test_all_is_the_public_names() -> None:
    public = {n for n in vars(sl) if not n.startswith("_") and type(vars(sl)[n]).__name__ != "module"}
    assert set(sl.__all__) - {"__version__"} == public - {"PackageNotFoundError", "version"}


def test_required_files_are_there() -> None:
    for name in ("LICENSE", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "constraints.txt", "src/slotline/py.typed"):
        assert (ROOT / name).is_file(), name
