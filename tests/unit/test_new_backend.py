"""``slotline new-backend``: the project is found, passes the kit, and nothing is ever overwritten (rules B1, B8)."""

from __future__ import annotations

import errno
import json
import os
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from test_cli import one_line, refused, shell, slotline

import slotline as sl
from slotline.cli import new_backend

ROOT = Path(__file__).parents[2]


def installed(project: Path, name: str) -> dict[str, str]:
    """As if it were installed: its modules on the path, with the metadata that its pyproject.toml asks for."""
    told = tomllib.loads((project / "pyproject.toml").read_text())
    info = project / "src" / f"slotline_{name}-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {told['project']['name']}\nVersion: 0.1.0\n")
    points = told["project"]["entry-points"]["slotline.backends"]
    (info / "entry_points.txt").write_text(
        "[slotline.backends]\n" + "".join(f"{n} = {target}\n" for n, target in points.items())
    )
    return {"PYTHONPATH": str(project / "src")}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    done = slotline("new-backend", "my_device", str(tmp_path / "plugin"), "--json")
    assert done.returncode == 0, done.stderr
    assert "src/slotline_my_device/backend.py" in one_line(done)["files"]
    return tmp_path / "plugin"


def test_a_new_project_is_found_and_passes_the_kit_at_once(project: Path) -> None:
    env = installed(project, "my_device")
    rows = one_line(slotline("doctor", "--json", env=env))["backends"]
    (mine,) = [row for row in rows if row["name"] == "my_device"]
    assert mine["usable"]
    done = slotline("conformance", "my_device", "--json", env=env)
    found = one_line(done)
    assert (done.returncode, found["failed"], found["failures"]) == (0, 0, [])
    assert "W3" not in found["skip_reasons"]  # bfloat16 is there as soon as slotline.device is imported
    own = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "c01 or c02 or c11"],
        cwd=project, env={**os.environ, **env, "PYTEST_ADDOPTS": ""}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert own.returncode == 0, own.stdout


def test_one_broken_hook_is_red_and_says_what_to_do(project: Path) -> None:
    """The walk of docs/write-a-backend.md."""
    env, path = installed(project, "my_device"), project / "src" / "slotline_my_device" / "backend.py"
    right = "at = tensor.offset + offset\n        tensor.memory"
    assert right in path.read_text()
    path.write_text(path.read_text().replace(right, "at = offset\n        tensor.memory"))
    done = slotline("conformance", "my_device", "--rules", "W1", env=env)
    assert done.returncode == 1
    assert "the view does not hold what was written" in done.stdout
    assert "W1, what to do: a view is written by its strides and its offset" in done.stdout
    found = json.loads(slotline("conformance", "my_device", "--rules", "W1", "--json", env=env).stdout)
    assert found["rules"] == {"W1": "fail"}


@pytest.mark.parametrize("name", ["my_device", "d" * new_backend.LONGEST_NAME])
def test_the_generated_code_is_typed_and_clean(name: str, tmp_path: Path) -> None:
    """By the project's own settings, and by those of this repository."""
    project, ours = tmp_path / "plugin", str(ROOT / "pyproject.toml")
    assert slotline("new-backend", name, str(project), "--json").returncode == 0
    for tool in (
        ["mypy"],
        ["ruff", "check", "."],
        ["ruff", "check", "--config", ours, "."],
        ["ruff", "format", "--check", "."],
        ["ruff", "format", "--config", ours, "--check", "."],
    ):
        pytest.importorskip(tool[0])
        env = {**os.environ, "MYPYPATH": os.pathsep.join(("src", str(ROOT / "src")))}
        done = subprocess.run(
            [sys.executable, "-m", *tool], cwd=project, env=env, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("cpu", "reserved"),
        ("auto", "reserved"),
        ("My-Device", "did you mean 'my_device'"),
        ("1st", "a letter first"),
        ("", "a letter first"),
        ("../up", "a letter first"),
        ("class", "a word of Python"),
        ("gerät", "lower-case letters"),
        ("dev_", "did you mean 'dev'"),  # slotline-dev- could not be installed
        ("a__b", "did you mean 'a_b'"),
        ("x" * 41, "40 at most"),
    ],
)
def test_names_that_cannot_be_used(name: str, words: str, tmp_path: Path) -> None:
    refused(slotline("new-backend", name, str(tmp_path / "plugin")), words)
    assert not list(tmp_path.iterdir())


def test_a_name_that_is_installed_already(tmp_path: Path) -> None:
    plugins = Path(__file__).parents[1] / "plugins"
    done = slotline("new-backend", "hostmem", str(tmp_path / "x"), env={"PYTHONPATH": str(plugins / "hostmem")})
    refused(done, "brings already")


def test_a_module_that_is_installed_already(tmp_path: Path) -> None:
    (tmp_path / "slotline_taken.py").write_text("")
    done = slotline("new-backend", "taken", str(tmp_path / "x"), env={"PYTHONPATH": str(tmp_path)})
    refused(done, "the module slotline_taken is installed already")


def test_nothing_is_overwritten_and_nothing_is_left_half_done(tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    (there / "mine.txt").write_text("mine")
    refused(slotline("new-backend", "mydevice", str(there)), "not an empty folder")
    refused(slotline("new-backend", "mydevice", str(there / "mine.txt")), "not an empty folder")
    refused(slotline("new-backend", "mydevice", str(tmp_path / "no" / "such")), "make it first")
    assert [p.name for p in tmp_path.rglob("*")] == ["there", "mine.txt"]


@pytest.mark.parametrize("how", ["empty", "link", "new"])
def test_an_empty_folder_or_a_new_one_is_filled(how: str, tmp_path: Path) -> None:
    empty, folder = tmp_path / "empty", tmp_path / how
    empty.mkdir()
    if how == "link":
        folder.symlink_to("empty")
    assert slotline("new-backend", "mydevice", str(folder)).returncode == 0
    assert (folder / "pyproject.toml").exists()
    assert {p.name for p in tmp_path.iterdir()} == {"empty", how}
    (tmp_path / "plain").mkdir()
    assert folder.stat().st_mode == (tmp_path / "plain").stat().st_mode  # not one that only its maker may read


@pytest.mark.parametrize("folder", [".", "../here"])
def test_the_folder_that_one_is_in_is_refused_and_stays(folder: str, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    done = shell(f"new-backend mydevice {folder}", cwd=tmp_path / "here")
    refused(done, "is the folder that you are in")
    assert [p.name for p in tmp_path.rglob("*")] == ["here"]


def test_a_disk_that_fills_up_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[Path] = []
    write = Path.write_text

    def full(self: Path, *args: str) -> int:
        written.append(self)
        if len(written) == 4:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(self, *args)

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(sl.ConfigError, match="No space left on device; nothing was written"):
        new_backend.new_backend("mydevice", tmp_path / "plugin")
    assert list(tmp_path.iterdir()) == []


def test_what_to_type_next_is_quoted_for_the_shell(tmp_path: Path) -> None:
    done = slotline("new-backend", "mydevice", str(tmp_path / "it's here"))
    line = next(line for line in done.stdout.splitlines() if "pip install" in line)
    assert shlex.split(line) == ["pip", "install", "-e", f"{tmp_path}/it's here[test]"]


def test_every_template_is_packaged_and_used() -> None:
    folder = ROOT / "src" / "slotline" / "cli" / "templates"
    packaged = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["slotline"]
    there = set(folder.iterdir())
    assert there == {p for pattern in packaged for p in (ROOT / "src" / "slotline").glob(pattern) if p.parent == folder}
    assert {p.name for p in there} == {f"{name}.template" for name in new_backend.FILES.values() if name}
