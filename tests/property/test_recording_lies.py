"""Records that contradict the layout or the records before them: named, before anything is written (rule R)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from frameworks import backend
from recordings import (
    PROMPT,
    joined,
    parts,
    peak,
    played,
    refused,
    with_entries,
    written,
)

import slotline as sl
from slotline.core import recording
from slotline.core.playback import Player
from slotline.core.recording_file import Recording
from slotline.core.sampling import SamplingParams


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return written(tmp_path_factory.mktemp("recording") / "run.rec").read_bytes()


# -- numbers that name things


def insert(requests: list[Any], tasks: list[Any]) -> dict[str, Any]:
    return {"type": "insert", "requests": requests, "tasks": tasks, "packet_bytes": 0, "segments": 0}


def told(number: int = 1, **changes: Any) -> dict[str, Any]:
    """A request as a recording tells it."""
    return {
        "number": number, "request_id": f"r{number}", "prompt": np.array(PROMPT, "<i4").tobytes(), "output": b"",
        "drafts": b"", "values": SamplingParams().packed, "stops": [], "bad": b"", "hidden": None, "extras": [],
    } | changes  # fmt: skip


def taking(request: int = 1, **changes: Any) -> dict[str, Any]:
    return {"kind": "prefill", "request": request, "end": 6, "blocks": np.array([1, 2], "<i4").tobytes()} | changes


def array(name: str, dtype: str, shape: list[int], data: bytes) -> dict[str, Any]:
    return {"name": name, "dtype": dtype, "shape": np.array(shape, "<i8").tobytes(), "data": data}


def values(**changes: Any) -> bytes:
    found = np.frombuffer(SamplingParams().packed, SamplingParams.RECORD).copy()
    for name, value in changes.items():
        found[name] = value
    return found.tobytes()


LIES: list[tuple[str, dict[str, Any], str]] = [
    ("request twice", insert([told(), told()], [taking()]), "request 1 is told, allowed: 2"),
    ("request 0", insert([told(0)], [taking(0)]), "request 0 is told, allowed: 1"),
    ("request far", insert([told(2**60)], [taking(2**60)]), "allowed: 1, the next"),
    ("too many requests", insert([told(n) for n in range(1, 6)], []), "5 requests, allowed: 4"),
    ("too many prefills", insert([told()], [taking()] * 5), "5 prefills, allowed: 4"),
    ("too many releases", insert([], [{"kind": "abort", "request_id": "a"}] * 5), "5 releases, allowed: 4"),
    ("too many decodes", insert([], [{"kind": "decode", "request_id": "a"}] * 2000), "2000 decode tasks"),
    ("cyclic", insert([told()], [taking(), taking()]), "order"),
    ("nan", insert([told(values=values(temperature=np.nan))], [taking()]), "temperature"),
    ("infinite", insert([told(values=values(penalty_score=np.inf))], [taking()]), "penalty_score"),
    ("least number", insert([told(values=values(min_dec_len=-(2**63)))], [taking()]), "min_dec_len"),
    ("long prompt", insert([told(prompt=bytes(4 * 64))], [taking()]), "prompt has 64 numbers, allowed: 1 to 63"),
    ("huge prompt", insert([told(prompt=bytes(4 << 20))], [taking()]), "prompt has 1048576 numbers"),
    ("huge drafts", insert([told(drafts=bytes(4 << 20))], [taking()]), "drafts has 1048576 numbers"),
    ("token", insert([told(prompt=b"\xff\xff\xff\x7f")], [taking()]), r"prompt\[0\] is 2147483647"),
    ("ragged stop", insert([told(stops=[b"abc"])], [taking()]), "stops has 3 bytes"),
    ("empty stop", insert([told(stops=[b""])], [taking()]), "stops has 0 numbers"),
    ("stops", insert([told(stops=[bytes(4)] * 6)], [taking()]), "stops has 6 sequences, allowed: 5"),
    ("bad", insert([told(bad=bytes(4 * 17))], [taking()]), "bad has 17 numbers"),
    ("extra", insert([told(extras=[array("x", "int32", [], bytes(4))])], [taking()]), "a name that a field takes"),
    ("hidden", insert([told(hidden=array("h", "float32", [2], bytes(8)))], [taking()]), "hidden has 2 cells"),
    ("axes", insert([told(extras=[array("x", "int8", [2**40, 2**40], b"")])], [taking()]), "shape is"),
    ("values", insert([told(values=b"")], [taking()]), "values has 0 bytes"),
    ("blocks", insert([told()], [taking(blocks=bytes(4 * 17))]), "blocks has 17 numbers, allowed: 0 to 16"),
    ("slot", insert([told()], [taking(slot=2**64 - 1)]), "slot"),
    ("start", insert([told()], [taking(start=2**64 - 1)]), "start"),
    ("end", insert([told()], [taking(end=-(2**63))]), "end"),
    ("kind", insert([told()], [taking(kind="steal")]), "steal"),
    ("swap", {"type": "swap", "i": 0, "j": 2**64 - 1}, "slot"),
    ("blocks of the cache", {"type": "num_blocks", "num_blocks": -1}, "num_blocks"),
    ("taken", {"type": "taken", "step": 1}, "not known"),
    ("operation", {"type": "explode"}, "explode"),
]


@pytest.mark.parametrize(("operation", "words"), [lie[1:] for lie in LIES], ids=[lie[0] for lie in LIES])
def test_r_lies_are_named_before_anything_is_written(
    operation: dict[str, Any], words: str, raw: bytes, tmp_path: Path
) -> None:
    refused(tmp_path / "x.rec", with_entries(raw, operation), words)
    player = Player(Recording(tmp_path / "x.rec"), backend("numpy"))
    fresh = player.batch.digest()
    with pytest.raises(sl.PacketError, match="record 1"):
        list(player.play())
    assert player.batch.digest() == fresh
    sl.insert_tasks(player.batch, [sl.PrefillTask(sl.Request("a", PROMPT), 0, 6, [1, 2])])  # nothing is left behind


def prepare(step: int, *rows: str, num_tokens: int = 8, gone: tuple[int, ...] = ()) -> dict[str, Any]:
    return {"type": "prepare", "step": step, "packed": True, "rows": rows, "num_tokens": num_tokens, "gone": gone}


def commit(step: int) -> dict[str, Any]:
    tokens, counts = np.zeros((4, 3), "<i8"), np.ones(4, "<i8")
    return {"type": "commit", "step": step, "tokens": tokens.tobytes(), "counts": counts.tobytes()}


@pytest.mark.parametrize(
    ("operations", "words"),
    [
        ([prepare(1), prepare(1)], "record 2 .*step 1 is prepared, allowed: 2"),
        ([prepare(1), commit(1), commit(1)], "record 3 .*committed"),
        ([prepare(1), prepare(2, gone=(1,)), commit(1)], "record 3 .*not known"),
        ([prepare(1), prepare(2, gone=(1, 1))], "record 2 .*step 1 is gone"),
        ([prepare(1, "r1")], "record 1 .*r1"),
        ([insert([told()], [taking()]), prepare(1, "r1", "r1")], "record 2 .*each row once"),
        ([insert([told()], [taking()]), prepare(1, "r1", num_tokens=1)], "record 2 .*num_tokens"),
        ([insert([told()], [taking()]), prepare(1, "r1"), insert([], [taking()])], "record 3 .*commit the step first"),
        ([prepare(1), {"type": "discard", "step": 1}, commit(1)], "record 3 .*discarded"),
        ([insert([told()], [taking()]), insert([], [{"kind": "abort", "request_id": "r1"}]), insert([], [taking()])],
         "record 3 .*no record has told"),
    ],
)  # fmt: skip
def test_r_steps_and_requests_that_do_not_follow(
    operations: list[dict[str, Any]], words: str, raw: bytes, tmp_path: Path
) -> None:
    (head, *_) = parts(raw)
    entries: list[Any] = []
    for number in range(len(operations)):  # with the digests that playing it gives
        path = tmp_path / "x.rec"
        path.write_bytes(with_entries(raw, *operations[: number + 1]))
        player = Player(Recording(path), backend("numpy"))
        try:
            digest = [p.digest for p in player.play()][-1]
        except sl.PacketError:
            digest = "0" * 64
        entries.append((recording.ENTRY, {"operation": operations[number], "digest": digest}))
    refused(tmp_path / "x.rec", joined([head, *entries, (recording.END, {"records": len(entries)})]), words)


def test_r_many_steps_are_not_kept(raw: bytes, tmp_path: Path) -> None:
    """Steps that claim a million tokens each, and are never gone."""
    operations = [prepare(n, num_tokens=2**31 - 1) for n in range(1, 1500)]
    path = tmp_path / "x.rec"
    path.write_bytes(with_entries(raw, *operations))
    peak(lambda: played(path), path.stat().st_size)
