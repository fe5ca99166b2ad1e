"""The programs in README and docs print what stands below them, and the README's commands are where the gate looks."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"


def blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", path.read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("name", ["README.md", "docs/steps.md", "docs/sim.md"])
def test_the_first_program_prints_the_first_output(name: str) -> None:
    program, output = blocks(ROOT / name, "python")[0], blocks(ROOT / name, "text")[0]
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == output


def test_the_first_two_commands_install_and_run() -> None:
    first, second = blocks(README, "sh")[:2]
    assert first.startswith("pip install") and "slotline replay" in first and "--verify" in first  # noqa: PT018
    assert second.startswith("pip install") and "pytest" in second  # noqa: PT018
    assert first.count("\n") == second.count("\n") == 1
