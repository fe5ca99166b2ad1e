"""Who may import whom, and that importing slotline touches no framework (rules B1, B2)."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FRAMEWORKS = {"torch", "paddle", "cuda", "triton", "pyopencl"}
ALLOWED_IN_CORE = {"numpy", "stevedore", "msgspec", "array_api_compat", "slotline"}


def imports(path: Path) -> set[str]:
    """Every module that a file imports, whole names."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            found.add(node.module or "")
    return found


def files(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def test_importing_slotline_imports_no_framework_and_no_backend() -> None:
    script = "import sys, slotline; print(*sorted(m for m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    modules = set(done.stdout.split())
    assert not {m for m in modules if m.split(".")[0] in FRAMEWORKS}
    assert not {m for m in modules if m.startswith("slotline.backends.")}
    assert not {"typer", "rich", "matplotlib", "hypothesis", "pytest"} & modules


@pytest.mark.parametrize("path", files("core"), ids=lambda p: p.name)
def test_core_is_device_neutral(path: Path) -> None:
    for name in imports(path):
        top = name.split(".")[0]
        assert top in sys.stdlib_module_names or top in ALLOWED_IN_CORE, f"{path.name} imports {name}"
        if top == "slotline":
            assert name.startswith("slotline.core"), f"{path.name} imports {name}"


@pytest.mark.parametrize("path", files("compat"), ids=lambda p: p.name)
def test_compat_imports_no_project_module_but_the_errors(path: Path) -> None:
    own = {n for n in imports(path) if n.startswith("slotline")}
    assert {n for n in own if not n.startswith("slotline.compat.")} <= {"slotline.core.errors", "slotline.compat"}


@pytest.mark.parametrize("path", files("backends"), ids=lambda p: str(p.relative_to(ROOT)))
def test_a_backend_imports_core_compat_and_what_backends_share_only(path: Path) -> None:
    own = {n for n in imports(path) if n.split(".")[0] == "slotline"}
    me = ".".join(("slotline", *path.relative_to(ROOT).parts[:2]))
    for name in own:
        assert name.startswith(("slotline.core", "slotline.compat", "slotline.backends.shared", me)), (
            f"{path} imports {name}"
        )


def test_the_face_reaches_backends_through_the_registry_only() -> None:
    for path in (ROOT / "src" / "slotline").glob("**/*.py"):
        if not {"core", "backends", "compat"} & set(path.relative_to(ROOT / "src" / "slotline").parts):
            assert not {n for n in imports(path) if n.startswith("slotline.backends")}, path


def test_only_compat_imports_cuda() -> None:  # C63
    for folder in ("core", "backends", "src/slotline/cli", "src/slotline/replay", "src/slotline/testing"):
        for path in files(folder):
            assert "cuda" not in {n.split(".")[0] for n in imports(path)}, path
