"""The kit fails on devices that are broken on purpose, each time naming the right rule."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from broken import BROKEN

HERE = Path(__file__).parent

# The state machine finds most of them as well, but shrinks for a minute; one device is left to it, below.
ONLY_RULES = ("-k", "not any_sequence")
# On this one everything fails, and takes its time to shrink.
FEWER = {"DoneTooEarly": ("--rules", "B9,F2,B3")}


def run_kit(kind: str, tmp_path: Path, *more: str) -> dict[str, Any]:
    report = tmp_path / "report.json"
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-q", str(HERE / "on_broken.py"), "-p", "no:cacheprovider",
               "-p", "slotline.testing.plugin", "-c", str(tmp_path / "pytest.ini"), "--rootdir", str(HERE),
               "--profile", "dev", "--conformance-json", str(report), *more]  # fmt: skip
    env = {**os.environ, "SLOTLINE_TEST_BROKEN": kind, "PYTHONPATH": str(HERE)}
    env.pop("PYTEST_ADDOPTS", None)
    done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=tmp_path, check=False)
    assert report.exists(), done.stdout[-2000:] + done.stderr[-2000:]
    found: dict[str, Any] = json.loads(report.read_text())
    return found


@pytest.mark.parametrize(("kind", "rule"), [(k.__name__, r) for k, r in BROKEN.items()])
def test_a_broken_device_is_named_by_its_rule(kind: str, rule: str, tmp_path: Path) -> None:
    found = run_kit(kind, tmp_path, *FEWER.get(kind, ONLY_RULES))
    failed = {name for name, verdict in found["rules"].items() if verdict == "fail"}
    assert rule in failed, f"{kind}: {sorted(failed)} failed, not {rule}"
    said = next(f["message"] for f in found["failures"] if rule in f["rules"])
    assert "assert" in said or "Error" in said, said
    assert len(failed) <= 6 or kind == "DropsOffset", sorted(failed)  # not everything at once
