"""``slotline conformance`` on real plugins: output, exit status, what it says of bad input (rules B, O)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

PLUGINS = Path(__file__).parents[1] / "plugins"


def conformance(*args: str, plugins: tuple[str, ...] = (), cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("SLOTLINE_", "PYTEST_"))}
    path = os.pathsep.join(str(PLUGINS / p) for p in plugins)
    return subprocess.run(
        [sys.executable, "-m", "slotline", "conformance", *args],
        capture_output=True, text=True, env={**clean, "PYTHONPATH": path}, cwd=cwd, check=False,
    )  # fmt: skip


def one_line(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.stdout.count("\n") == 1, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_the_whole_kit_on_the_smallest_plugin() -> None:
    done = conformance("hostmem", "--json", plugins=("hostmem",))
    found = one_line(done)
    assert done.returncode == 0, done.stderr[-3000:]
    assert (found["backend"], found["failed"]) == ("hostmem", 0)
    assert found["passed"] > 70
    assert found["rules"]["W1"] == "pass"
    assert "does not declare streams" in done.stderr or found["skip_reasons"]


def test_a_table_rule_by_rule(tmp_path: Path) -> None:
    done = conformance("cpu", "--rules", "w1, W8", "--junit", "out.xml", "--seed", "7", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "conformance of cpu" in done.stdout
    assert "a write moves no buffer" in done.stdout
    assert "W4" not in done.stdout
    cases = ET.parse(tmp_path / "out.xml").getroot().iter("testcase")
    rules = {p.get("value") for case in cases for p in case.iter("property")}
    assert rules == {"W1", "W8"}
    assert [p.name for p in tmp_path.iterdir()] == ["out.xml"]  # nothing else is left behind


def test_b12_what_is_not_declared_is_skipped_with_that_reason() -> None:
    found = one_line(conformance("cpu", "--rules", "W5,W6", "--json"))
    assert any("does not declare streams (B12)" in why for why in found["skip_reasons"]["W6"])
    assert found["skipped"] > 0


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("no_such",), "unknown backend 'no_such'"),
        (("cpu,sim",), "one installed backend"),
        (("missingpackage",), "cannot be imported"),
        (("cpu", "--rules", "W99"), "unknown rule W99"),
        (("cpu", "--rules", ","), "unknown rule"),
        (("cpu", "--framework", "jax"), "jax"),
        (("cpu", "--profile", "quick"), "--profile"),
        (("cpu", "--seed", "-1"), "--seed"),
        (("cpu", "--known-failures", "no_such.toml"), "no_such.toml"),
    ],
)
def test_bad_usage_is_status_2_and_one_clear_line(args: tuple[str, ...], words: str, tmp_path: Path) -> None:
    done = conformance(*args, plugins=("missing_package",), cwd=tmp_path)
    assert done.returncode == 2, done.stdout
    assert done.stdout == ""
    last = [line for line in done.stderr.splitlines() if line.startswith("slotline: error: ")]
    assert len(last) == 1, done.stderr
    assert words in last[0]
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("text", "status", "words"),
    [
        ('test_no_such = "why"\n', 2, "has no test 'test_no_such'"),
        ('test_c11_a_write_moves_nothin = "why"\n', 2, "did you mean 'test_c11_a_write_moves_nothing'"),
        ('test_c11_a_write_moves_nothing = ""\n', 2, "needed: the reason"),
        ("not toml", 2, "known.toml"),
        ('test_c11_a_write_moves_nothing = "it moves"\n', 1, "it moves"),  # it passes, so it is no failure any more
    ],
)
def test_known_failures_that_are_none_are_errors(text: str, status: int, words: str, tmp_path: Path) -> None:
    (tmp_path / "known.toml").write_text(text)
    done = conformance("cpu", "--rules", "W8", "--known-failures", "known.toml", cwd=tmp_path)
    assert done.returncode == status, done.stderr
    assert words in done.stdout + done.stderr


def test_the_kit_by_pytest_alone(tmp_path: Path) -> None:
    plain = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    kit = [*plain, "--pyargs", "slotline.testing.conformance"]
    command = [*kit, "-p", "slotline.testing.plugin", "--backend", "cpu", "--rules", "W8,B10", "--profile", "dev"]
    env = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=env, check=False)
    assert done.returncode == 0, done.stdout
    assert "slotline's rules" in done.stdout
    without = subprocess.run(kit, capture_output=True, text=True, cwd=tmp_path, env=env, check=False)
    assert "--backend NAME" in without.stdout
