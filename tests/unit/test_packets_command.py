"""``slotline replay --record`` and ``slotline packets`` in processes of their own (rule R)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from recordings import joined, parts
from test_cli import one_line, refused, slotline

import slotline as sl

SIZES = ("--max-num-seqs", "8", "--max-model-len", "1024", "--spec-method", "mtp")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recording") / "run.rec"
    done = slotline("replay", "--synthetic", "12", *SIZES, "--record", str(path), "--json")
    assert done.returncode == 0, done.stderr
    assert one_line(done)["mismatches"] == 0
    return path


def test_a_recording_is_verified_on_another_backend(path: Path) -> None:
    done = slotline("packets", "verify", str(path), "--backend", "sim", "--json")
    found = one_line(done)
    assert (done.returncode, found["equal"], found["difference"]) == (0, True, None)
    assert found["records"] > 50
    plain = slotline("packets", "verify", str(path), "--backend", "cpu")
    assert (plain.returncode, plain.stdout) == (0, f"{found['records']:,} records, every digest equal\n")


def test_records_are_shown(path: Path) -> None:
    done = slotline("packets", "show", str(path), "--json")
    found = one_line(done)
    assert (done.returncode, found["redacted"]) == (0, True)
    first = found["records"][0]
    assert (first["record"], first["kind"], len(first["digest"])) == (1, "insert", 64)
    assert first["prefill"] >= 1
    assert {"insert", "prepare", "commit", "drafts", "taken"} <= {r["kind"] for r in found["records"]}
    few = slotline("packets", "show", str(path), "--limit", "3")
    assert few.returncode == 0
    assert "token ids redacted" in few.stdout


def test_a_recording_that_was_cut_off_is_shown_as_far_as_it_goes(path: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.rec"
    cut.write_bytes(path.read_bytes()[:-200])
    done = slotline("packets", "show", str(cut))
    assert done.returncode == 2
    assert "insert" in done.stdout
    assert done.stderr.startswith("slotline: error: ")
    refused(slotline("packets", "verify", str(cut), "--backend", "cpu", "--json"), "record")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("show", "no_such.rec"), "No such file"),
        (("show", "."), "Is a directory"),
        (("verify", "no_such.rec", "--backend", "cpu"), "No such file"),
        (("verify", "no_such.rec"), "--backend"),
        (("show",), "FILE"),
        (("steal",), "steal"),
    ],
)
def test_bad_usage(args: tuple[str, ...], words: str) -> None:
    done = slotline("packets", *args)
    assert done.returncode == 2
    assert done.stdout == ""
    assert words.lower() in done.stderr.lower()
    assert "Traceback" not in done.stderr


def test_a_pipe_is_not_waited_for_and_a_closed_one_is_no_error_of_the_file(path: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    refused(slotline("packets", "show", str(tmp_path / "pipe"), "--json"), "no regular file")
    shown = subprocess.Popen(
        [sys.executable, "-m", "slotline", "packets", "show", str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert shown.stdout is not None
    assert shown.stderr is not None
    shown.stdout.close()
    assert shown.stderr.read() == b""
    assert shown.wait() == 128 + 13
    shown.stderr.close()


def test_nothing_in_a_file_reaches_the_terminal_as_it_is(path: Path, tmp_path: Path) -> None:
    (magic, head), *rest = parts(path.read_bytes())
    hostile = tmp_path / "hostile.rec"
    hostile.write_bytes(joined([(magic, head | {"version": "\x1b]0;mine\x07"}), *rest]))
    refused(slotline("packets", "show", str(hostile)), "version")
    entry = rest[0][1] | {"digest": "[/red]\x1b[2J"}
    hostile.write_bytes(joined([(magic, head), (rest[0][0], entry)]))
    for command in (("show", "--json"), ("verify", "--backend", "cpu", "--json")):
        done = slotline("packets", command[0], str(hostile), *command[1:])
        refused(done, "record 1")
        assert "\x1b" not in done.stderr


def test_a_head_of_absurd_sizes_is_refused_before_memory_is_taken(path: Path, tmp_path: Path) -> None:
    (magic, head), *rest = parts(path.read_bytes())
    small = sl.BatchConfig(**head["config"] | {"max_num_seqs": 2**31 - 1})
    head |= {"config": head["config"] | {"max_num_seqs": 2**31 - 1}, "fields": [],
             "fingerprint": sl.BufferLayout(small, []).fingerprint}  # fmt: skip
    (tmp_path / "x").write_bytes(joined([(magic, head), *rest]))
    refused(slotline("packets", "verify", str(tmp_path / "x"), "--backend", "cpu", "--json"), "tables of its slots")


def test_a_full_disk_ends_a_replay_with_a_line(path: Path) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this system has no /dev/full")
    refused(slotline("replay", "--synthetic", "2", *SIZES, "--record", "/dev/full", "--json"), "No space left")


def test_what_is_no_recording_and_what_cannot_be_recorded(tmp_path: Path, path: Path) -> None:
    for content in (b"", b"SLPK" * 100, b"\0" * 100):
        (tmp_path / "x").write_bytes(content)
        refused(slotline("packets", "show", str(tmp_path / "x"), "--json"), "recording")
    refused(slotline("replay", "--synthetic", "2", "--role", "split", "--record", str(tmp_path / "y")), "--record")
    refused(slotline("packets", "verify", str(path), "--backend", "no_such"), "unknown backend")
    refused(slotline("replay", "--synthetic", "2", "--record", str(tmp_path / "no" / "y")), "No such file")
