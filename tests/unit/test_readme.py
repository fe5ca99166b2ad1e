"""The README's program prints what the README says, and its commands are where the gate looks for them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

README = (Path(__file__).parents[2] / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def test_the_first_program_prints_the_first_output() -> None:
    done = subprocess.run([sys.executable, "-c", blocks("python")[0]], capture_output=True, text=True, check=True)
    assert done.stdout == blocks("text")[0]


def test_the_first_two_commands_install_and_run() -> None:
    first, second = blocks("sh")[:2]
    assert first.startswith("pip install") and "slotline replay" in first and "--verify" in first  # noqa: PT018
    assert second.startswith("pip install") and "pytest" in second  # noqa: PT018
    assert first.count("\n") == second.count("\n") == 1
