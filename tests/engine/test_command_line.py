"""The command line of the tiny engine: what is out of range, what does nothing, bytes, Ctrl-C; errors of one line."""

from __future__ import annotations

import ast
import itertools
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from examples.tiny_engine import processes
from examples.tiny_engine.__main__ import main
from examples.tiny_engine.options import BOUNDS, Options
from examples.tiny_engine.plain import greedy
from serving import models

FOLDER = Path(processes.__file__).parent


def ends(arguments: list[str]) -> int:
    """The exit status, by argparse or by main."""
    try:
        return main(arguments)
    except SystemExit as ended:
        return int(str(ended.code))


NUMBERS = [*BOUNDS, "chunk", "max_tokens", "num_prompts", "mtp_levels", "listen", "connect"]
MORE_THAN_THERE_IS = {("chunk", 10**9), ("chunk", 10**20), ("condense_every", 10**9), ("max_tokens", 10**9)}
"""Which is no error."""
OUT_OF_RANGE = [pair for pair in itertools.product(NUMBERS, (-1, 10**9, 10**20)) if pair not in MORE_THAN_THERE_IS]


@pytest.mark.parametrize(("flag", "value"), OUT_OF_RANGE)
def test_every_number_out_of_range_is_one_line(capsys: pytest.CaptureFixture[str], flag: str, value: int) -> None:
    shown = f"--{flag.replace('_', '-')}"
    more = {
        "listen": ["--role", "decode", "--prompt", "a"],
        "connect": ["--role", "prefill"],
        "num_prompts": ["--compare", "--max-tokens", "1"],
        "mtp_levels": ["--prompt", "a", "--spec-method", "mtp"],
        "num_draft_tokens": ["--prompt", "a", "--spec-method", "ngram"],
    }.get(flag, ["--prompt", "a"])
    assert ends([shown, str(value), *more]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    line = captured.err.splitlines()[-1]
    assert "error: " in line
    assert "prompts asked for" in line or flag in line.replace("-", "_")


@pytest.mark.parametrize(
    "wrong",
    [
        *({name: bound} for name, (low, high) in BOUNDS.items() for bound in (low - 1, high + 1)),
        {"block_size": 512, "num_blocks": 1 << 12},
        {"spec_method": "ngram", "mtp_levels": 1},
        {"num_draft_tokens": 2},
    ],
)
def test_options_out_of_range(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(wrong))}|mtp_levels"):
        replace(Options(), **wrong)


@pytest.mark.parametrize(
    ("arguments", "idle"),
    [
        (["--compare", "--stop", "a"], "--stop"),
        (["--compare", "--spec-method", "mtp"], "--spec-method"),
        (["--compare", "--num-draft-tokens", "2"], "--num-draft-tokens"),
        (["--compare", "--mtp-levels", "2"], "--mtp-levels"),
        (["--prompt", "a", "--listen", "7001"], "--listen"),
        (["--prompt", "a", "--num-prompts", "2"], "--num-prompts"),
        (["--role", "prefill", "--connect", "7001", "--prompt", "a"], "--prompt"),
        (["--role", "prefill", "--connect", "7001", "--stop", "a"], "--stop"),
    ],
)
def test_what_would_do_nothing_is_refused(capsys: pytest.CaptureFixture[str], arguments: list[str], idle: str) -> None:
    assert ends(arguments) == 2
    assert f"error: {idle} does nothing with " in capsys.readouterr().err


def test_any_bytes_can_be_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    text = b"\xff\xfe\x80abc"
    arguments = ["--prompt", text.decode(errors="surrogateescape"), "--stop", "\udcff", "--max-tokens", "5"]
    assert main([*arguments, "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    plain = greedy(models("numpy"), text, max_tokens=5, stop=(b"\xff",))
    assert (bytes(found["prompt_token_ids"]), found["token_ids"]) == (text, plain.tokens)
    assert main(arguments) == 0


@pytest.mark.parametrize(
    ("stop", "message"), [("", "[0] tokens"), ("x" * 43, "[43] tokens, allowed: at most 5 of 1 to 8")]
)
def test_a_stop_that_does_not_fit_is_explained(capsys: pytest.CaptureFixture[str], stop: str, message: str) -> None:
    assert main(["--prompt", "a", "--stop", stop]) == 2
    assert f"stop_seqs have {message}" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "at most 5, each of 1 to 8 bytes" in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("raised", "status", "line"),
    [(KeyboardInterrupt(), 130, "interrupted"), (MemoryError("x"), 2, "error: not enough memory for these sizes (x)")],
)
def test_what_ends_a_run_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, raised: BaseException, status: int, line: str
) -> None:
    def serve(*_: object) -> None:
        raise raised

    monkeypatch.setattr("examples.tiny_engine.__main__.serve", serve)
    for role in ("mixed", "split"):
        assert main(["--prompt", "a", "--role", role]) == status
        assert capsys.readouterr().err == f"{line}\n"


WITHOUT_TORCH = (
    "import runpy, sys; sys.modules['torch'] = None; sys.argv[0] = 'x'; runpy.run_module({!r}, run_name='__main__')"
)


@pytest.mark.parametrize(
    ("module", "arguments"),
    [("train", []), ("__main__", ["--prompt", "a", "--role", "split", "--framework", "torch"]),
     ("__main__", ["--compare", "--framework", "torch"])],
)  # fmt: skip
def test_a_framework_that_is_missing_is_said_once(module: str, arguments: list[str]) -> None:
    code = WITHOUT_TORCH.format(f"examples.tiny_engine.{module}")
    ended = subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=FOLDER.parents[1], capture_output=True, text=True, timeout=60
    )
    assert ended.returncode in (1, 2)
    assert len(ended.stderr.splitlines()) == 1
    assert ended.stderr.startswith("error: ")
    assert "torch" in ended.stderr


def test_no_decorator_comes_from_a_framework() -> None:
    """It would have no type where the framework is not installed, and mypy would refuse what it decorates."""
    for file in FOLDER.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            for decorator in getattr(node, "decorator_list", []):
                assert not ast.unparse(decorator).startswith(("torch.", "paddle.")), (
                    f"{file.name}: {ast.unparse(decorator)}"
                )
