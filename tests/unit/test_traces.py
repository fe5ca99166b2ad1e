"""Reading traces: both formats by content, and every input that must be refused with file and line."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from slotline.replay.traces import LINE_LIMIT, TraceError, count_rows, read_trace, synthetic

HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
STAMP = "2023-11-16 18:17:03.9799600"
ROW = f"{STAMP},10,5\n"
Write = Callable[[str | bytes], Path]


def mooncake(**changes: object) -> str:
    row = {"timestamp": 0, "input_length": 600, "output_length": 4, "hash_ids": [7, 8]}
    return json.dumps({**row, **changes}) + "\n"


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(content: str | bytes) -> Path:
        path = tmp_path / "a.trace"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write


def test_azure(write: Write) -> None:
    path = write(HEADER + ROW + "2023-11-16 18:17:04.4799600,3180,8\n")
    rows = list(read_trace(path))
    assert [(r.prompt_len, r.output_len, r.hash_ids) for r in rows] == [(10, 5, None), (3180, 8, None)]
    assert [r.arrival for r in rows] == [0.0, 0.5]


@pytest.mark.parametrize(
    "text",
    [
        HEADER.replace("\n", "\r\n") + ROW.replace("\n", "\r\n"),
        "\ufeff" + HEADER + ROW,
        HEADER + ROW.rstrip("\n"),
        "\n" + HEADER + "\n" + ROW + "\n\n",
        "extra," + HEADER + "x," + ROW,
        "GeneratedTokens,TIMESTAMP,ContextTokens\n" + f"5,{STAMP},10\n",
        HEADER + f'"{STAMP}","10","5"\n',
        HEADER + "2023-11-16T18:17:03Z,10,5\n",
    ],
)
def test_azure_as_people_write_it(write: Write, text: str) -> None:
    [row] = read_trace(write(text))
    assert (row.prompt_len, row.output_len) == (10, 5)


def test_mooncake(write: Write) -> None:
    path = write(mooncake(timestamp=1000) + mooncake(timestamp=2500, other="let be"))
    rows = list(read_trace(path))
    assert [r.arrival for r in rows] == [0.0, 1.5]
    assert rows[1][1:] == (600, 4, (7, 8))


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("", 0, "empty"),
        ("\n \n", 0, "empty"),
        (HEADER, 1, "header"),
        ("hello\n", 1, "unknown format"),
        ("[1, 2]\n", 1, "unknown format"),
        ("TIMESTAMP,GeneratedTokens\n" + ROW, 1, "ContextTokens is missing"),
        ("TIMESTAMP,ContextToken,GeneratedTokens\n" + ROW, 1, "did you mean 'ContextToken'"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens,TIMESTAMP\n" + ROW, 1, "twice"),
        (HEADER + ROW + f"{STAMP},-1,5\n", 3, "ContextTokens is '-1'"),
        (HEADER + ROW + f"{STAMP},10,-5\n", 3, "GeneratedTokens is '-5'"),
        (HEADER + f"{STAMP},{2**31 + 1},5\n", 2, "allowed: a whole number from 0 to 2147483648"),
        (HEADER + f"{STAMP},{'9' * 5000},5\n", 2, "allowed"),
        (HEADER + f"{STAMP},10.5,5\n", 2, "'10.5'"),
        (HEADER + f"{STAMP},1e3,5\n", 2, "'1e3'"),
        (HEADER + f"{STAMP},1_0,5\n", 2, "'1_0'"),
        (HEADER + f"{STAMP},\u0661,5\n", 2, "ContextTokens"),
        (HEADER + f"{STAMP},nan,5\n", 2, "'nan'"),
        (HEADER + f"{STAMP},,5\n", 2, "ContextTokens is ''"),
        (HEADER + ROW + ROW[:20], 3, "1 fields, needed 3"),
        (HEADER + f"{STAMP},10\n", 2, "2 fields, needed 3"),
        (HEADER + f"{STAMP},10,5,6\n", 2, "4 fields, needed 3"),
        (HEADER + f'"{STAMP},10,5\n', 2, "broken CSV"),
        (HEADER + "yesterday,10,5\n", 2, "TIMESTAMP is 'yesterday'"),
        (HEADER + "2023-02-30 18:17:03.0,10,5\n", 2, "TIMESTAMP"),
        (HEADER + "2023-11-16 25:17:03.0,10,5\n", 2, "TIMESTAMP"),
        (HEADER + ",10,5\n", 2, "TIMESTAMP is ''"),
        (mooncake() + mooncake()[:30] + "\n", 2, "broken JSON"),
        (mooncake() + "{}\n", 2, "missing required field"),
        (mooncake(input_length=-1), 1, "input_length"),
        (mooncake(input_length=2**31 + 1), 1, "input_length"),
        (mooncake(output_length=1.5), 1, "output_length"),
        (mooncake(output_length="4"), 1, "output_length"),
        (mooncake(output_length=True), 1, "output_length"),
        (mooncake(hash_ids=[1, -2]), 1, "hash_ids"),
        (mooncake(hash_ids=None), 1, "hash_ids"),
        (mooncake(timestamp=-5), 1, "timestamp"),
        (mooncake(timestamp="now"), 1, "timestamp"),
        (mooncake().replace("600", "NaN"), 1, "broken JSON"),
        (mooncake().replace("600", "1e999"), 1, "input_length"),
        (mooncake() + "[1]\n", 2, "Expected `object`"),
        (mooncake() + '{"x": ' + "[" * 100_000 + "\n", 2, "broken JSON"),
        (mooncake() + ROW, 2, "Expected `object`"),
        (HEADER.encode() + b"\x00\x01\x02\n", 2, "NUL"),
        (HEADER.encode() + b"\xff\xfe,10,5\n", 2, "byte 1 of the line is not UTF-8"),
        (b"\x1f\x8b\x08\xff\xee\n", 1, "not UTF-8"),
    ],
)
def test_bad_lines(write: Write, text: str | bytes, line: int, words: str) -> None:
    path = write(text)
    with pytest.raises(TraceError) as caught:
        list(read_trace(path))
    message = str(caught.value)
    assert message.startswith(f"{path}:{line}: " if line else f"{path}: ")
    assert words in message
    assert len(message) < 400 + len(str(path))


def test_rows_before_a_bad_line_are_given(write: Write) -> None:
    rows = read_trace(write(HEADER + ROW + "broken\n"))
    assert next(rows).prompt_len == 10
    with pytest.raises(TraceError, match=":3: "):
        next(rows)


def test_a_gigabyte_line_is_refused_at_once(tmp_path: Path) -> None:
    path = tmp_path / "long.csv"
    with path.open("wb") as file:
        file.write(HEADER.encode() + b"7")
        file.truncate(1 << 30)  # sparse: a line of a gigabyte, of NUL bytes
    with pytest.raises(TraceError, match=f":2: the line is longer than {LINE_LIMIT} bytes"):
        count_rows(path)


def test_what_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="directory"):
        count_rows(tmp_path)
    with pytest.raises(TraceError, match="No such file"):
        count_rows(tmp_path / "absent")
    with pytest.raises(TraceError, match="null"):
        count_rows("a\0b")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(TraceError, match="not a regular file"):
        count_rows(tmp_path / "pipe")


def test_count_rows(write: Write) -> None:
    path = write(HEADER + ROW * 5)
    assert count_rows(path) == 5
    assert count_rows(path, 2) == 2


def test_synthetic_is_seeded() -> None:
    rows = list(synthetic(200, seed=3))
    assert rows == list(synthetic(200, seed=3))
    assert rows != list(synthetic(200, seed=4))
    assert rows[:50] == list(synthetic(50, seed=3))
    assert all(r.prompt_len >= 1 and r.output_len >= 1 for r in rows)
    assert all(a.arrival < b.arrival for a, b in itertools.pairwise(rows))
