"""The command line, in processes of its own: one line of JSON, exit status, help, no traceback."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

MAIN = "from slotline.__main__ import main; main()"


def slotline(*args: str, env: dict[str, str] | None = None, code: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code, *args] if code else [sys.executable, "-m", "slotline", *args]
    clean = {k: v for k, v in os.environ.items() if not k.startswith("SLOTLINE_") or "PROFILE" in k}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env={**clean, **(env or {})})


def one_line(done: subprocess.CompletedProcess[str]) -> Any:
    assert done.stdout.endswith("\n")
    assert done.stdout.count("\n") == 1
    return json.loads(done.stdout)


def refused(done: subprocess.CompletedProcess[str], words: str) -> None:
    """Status 2 and one clear line."""
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("slotline: error: ")
    assert words in done.stderr


def test_version_and_help() -> None:
    done = slotline("--version")
    assert (done.returncode, done.stdout.split()[0]) == (0, "slotline")
    for command in ("", "doctor", "layout", "replay"):
        done = slotline(*filter(None, [command]), "--help")
        assert done.returncode == 0
        assert "Usage: slotline" in done.stdout


def test_doctor() -> None:
    done = slotline("doctor", "--json")
    assert done.returncode == 0
    report = one_line(done)
    assert set(report) == {"version", "backends", "selected"}
    cpu = next(b for b in report["backends"] if b["name"] == "cpu")
    assert set(cpu) == {"name", "vendor", "usable", "reason", "versions", "details", "priority", "distribution"}
    assert cpu["usable"] is True
    assert "numpy" in cpu["versions"]
    assert "cpu" in slotline("doctor").stdout


def test_doctor_with_settings_that_make_no_sense() -> None:
    refused(slotline("doctor", "--json", env={"SLOTLINE_BACKEND": "typo"}), "typo")


def test_layout() -> None:
    done = slotline("layout", "--json", "--max-num-seqs", "8", "--max-model-len", "128", "--spec-method", "mtp")
    report = one_line(done)
    by_name = {f["name"]: f for f in report["fields"]}
    assert by_name["token_ids_all"]["shape"] == [8, 128]
    assert "mtp.input_ids" in by_name
    done = slotline("layout", "--without", "penalties")
    assert done.returncode == 0
    assert "token_ids_all" in done.stdout
    assert "penalty_score" not in done.stdout


def test_layout_plot(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "layout.png"
    assert slotline("layout", "--plot", str(picture), "--json").returncode == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    refused(slotline("layout", "--plot", str(tmp_path / "no" / "x.png")), "--plot")


def test_replay() -> None:
    args = ("replay", "--synthetic", "40", "--verify", "--json", "--max-num-seqs", "16", "--max-model-len", "5200")
    done = slotline(*args)
    assert done.returncode == 0
    assert done.stderr == ""
    report = one_line(done)
    assert list(report) == [
        "trace", "backend", "framework", "requests", "refused", "steps", "tasks", "mismatches", "insert_us", "seconds",
        "stats", "digest",
    ]  # fmt: skip
    assert (report["requests"], report["refused"], report["mismatches"]) == (40, 0, 0)
    assert set(report["tasks"]) == {"prefill", "decode", "preempt", "abort", "finish"}
    assert set(report["insert_us"]) == {"p50", "p90", "p99"}
    again = one_line(slotline(*args, "--order-seed", "5"))
    assert again["digest"] == report["digest"]


def test_replay_of_a_file_in_words(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "2023-11-16 18:17:03.9799600,9000,5\n" * 2)
    done = slotline("replay", str(trace), "--backend", "cpu", "--limit", "1")
    assert done.returncode == 0
    assert "0; 1 refused" in done.stdout
    assert "no mismatch" in done.stdout


_SABOTAGE = """
import slotline.core.commit as commit
put = commit.put
def skewed(xp, array, mask, value):
    put(xp, array, mask, value)
    if array.ndim == 1 and array.dtype == "int64" and array.flags.c_contiguous and mask.any():  # next_tokens
        array[mask] += 1
commit.put = skewed
"""


def test_a_difference_is_shown_and_is_status_1() -> None:
    done = slotline("replay", "--synthetic", "20", "--verify", "--json", code=_SABOTAGE + MAIN)
    assert done.returncode == 1
    assert one_line(done)["mismatches"] == 1
    assert done.stderr.startswith("slotline: mismatch: first difference: slot ")
    for word in ("request r", "field ", "expected ", "got "):
        assert word in done.stderr


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([], "Missing command"),
        (["frobnicate"], "frobnicate"),
        (["replay"], "either a TRACE or --synthetic"),
        (["replay", "x", "--synthetic", "3"], "either a TRACE or --synthetic"),
        (["replay", "--bogus"], "--bogus"),
        (["replay", "absent.csv"], "absent.csv: No such file"),
        (["replay", "."], "directory"),
        (["replay", "--synthetic", "0"], "--synthetic"),
        (["replay", "--synthetic", "many"], "--synthetic"),
        (["replay", "--synthetic", "3", "--backend", "nope"], "nope"),
        (["replay", "--synthetic", "3", "--framework", "abacus"], "abacus"),
        (["replay", "--synthetic", "3", "--role", "both"], "both"),
        (["replay", "--synthetic", "3", "--num-blocks", "3"], "num_blocks is 3, needed: at least 128"),
        (["replay", "--synthetic", "3", "--block-size", "0"], "block_size is 0"),
        (["replay", "--synthetic", "3", "--abort-rate", "1.5"], "abort_rate is 1.5, allowed: 0 to 1"),
        (["replay", "--synthetic", "3", "--abort-rate", "nan"], "abort_rate is nan"),
        (["replay", "--synthetic", "3", "--acceptance", "0.5"], "--acceptance has no effect"),
        (["replay", "--synthetic", "3", "--num-draft-tokens", "2"], "--num-draft-tokens has no effect"),
        (["replay", "--synthetic", "3", "--mtp-levels", "2"], "--mtp-levels has no effect"),
        (["replay", "--synthetic", "3", "--spec-method", "mtp", "--mtp-levels", "7"], "mtp_levels is 7"),
        (["replay", "--synthetic", "3", "--max-model-len", "2000000000"], "choose a smaller"),
        (["layout", "--without", "penalty"], "penalties"),
        (["layout", "--max-num-seqs", "-1"], "max_num_seqs is -1"),
    ],
)
def test_bad_usage(args: list[str], words: str) -> None:
    refused(slotline(*args), words)


def test_a_bad_line_of_a_trace(tmp_path: Path) -> None:
    trace = tmp_path / "trace.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,10,-5\n")
    refused(slotline("replay", str(trace), "--json"), f"{trace}:2: GeneratedTokens is '-5'")


@pytest.mark.parametrize("library", ["typer", "rich"])
def test_without_the_extra(library: str) -> None:
    done = slotline("doctor", code=f"import sys; sys.modules['{library}'] = None; {MAIN}")
    refused(done, "pip install 'slotline[cli]'")


@pytest.mark.parametrize("args", [["--help"], ["doctor", "--json"], ["layout"]])
def test_broken_pipe(args: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        command = [sys.executable, "-m", "slotline", *args]
        done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60)
    finally:
        os.close(writer)
    assert done.returncode == 128 + signal.SIGPIPE
    assert done.stderr == ""


def test_ctrl_c() -> None:
    """The interrupt comes from within, as the loop runs: no waiting for the right moment."""
    code = (
        "import os, signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "import slotline.replay.driver as d; turn = d._Loop.turn; "
        "d._Loop.turn = lambda self, i: os.kill(os.getpid(), signal.SIGINT) if i == 9 else turn(self, i); "
    )
    done = slotline("replay", "--synthetic", "50", "--json", code=code + MAIN)
    assert done.returncode == 128 + signal.SIGINT
    assert done.stdout == ""
    assert done.stderr.strip() == "slotline: error: interrupted"


@pytest.mark.parametrize("command", ["doctor --json", "layout", "replay --synthetic 3 --json"])
def test_a_full_disk_is_one_line_and_status_2(command: str) -> None:
    done = shell(f"{command} > /dev/full")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "cannot write" in done.stderr


@pytest.mark.parametrize(
    ("command", "status"), [("layout >&-", 0), ("doctor --json >&-", 0), ("replay nofile 2>&-", 2)]
)
def test_closed_streams_are_no_error_of_their_own(command: str, status: int) -> None:
    done = shell(command)
    assert (done.returncode, done.stdout, done.stderr) == (status, "", "")


def test_a_terminal_that_knows_ascii_only_gets_the_table_all_the_same() -> None:
    done = shell("PYTHONIOENCODING=ascii {} replay --synthetic 3")
    assert (done.returncode, done.stderr) == (0, "")
    assert "one insertion" in done.stdout


def test_a_trace_named_like_markup_is_shown_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "t["
    folder.mkdir()
    trace = folder / "b[red].csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,48,10\n")
    done = slotline("replay", str(trace))
    assert done.returncode == 0
    assert "b[red].csv" in "".join(done.stdout.split())


def test_a_pipe_in_the_place_of_the_settings_file_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "slotline.toml")
    done = shell("doctor", cwd=tmp_path)
    assert done.returncode == 2
    assert "it is no file" in done.stderr


def test_doctor_selects_what_a_replay_would_take(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('it is broken')")  # whether torch is installed or not
    done = shell(f"PYTHONPATH={tmp_path} SLOTLINE_FRAMEWORK=torch SLOTLINE_ALLOWED_PLUGINS= {{}} doctor --json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["selected"] is None


def test_a_huge_number_of_blocks_takes_no_memory() -> None:
    done = slotline("replay", "--synthetic", "3", "--num-blocks", "2000000000", "--json")
    assert (done.returncode, json.loads(done.stdout)["mismatches"]) == (0, 0)


def shell(command: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """A command line through the shell; ``{}`` stands for slotline, which comes first if it is not named."""
    program = f"{sys.executable} -m slotline"
    line = command.format(program) if "{}" in command else f"{program} {command}"
    return subprocess.run(["/bin/sh", "-c", line], capture_output=True, text=True, cwd=cwd, timeout=120, check=False)
