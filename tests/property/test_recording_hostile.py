"""Recordings that lie, with right checksums: a ``PacketError``, in little memory, or a play that ends (rule R)."""

from __future__ import annotations

import contextlib
import copy
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from frameworks import backend, fewer
from hypothesis import given
from hypothesis import strategies as st
from recordings import (
    LAYOUT,
    joined,
    part,
    parts,
    peak,
    play,
    played,
    refused,
    written,
)
from simulated import simulated

import slotline as sl
from slotline.core import recording
from slotline.core.playback import verify
from slotline.core.recording_file import Recording


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return written(tmp_path_factory.mktemp("recording") / "run.rec").read_bytes()


# -- any value of a whole file replaced by a hostile one

NASTY: list[Any] = [
    -1, 0, 1, 2, 2**31 - 1, 2**31, 2**63 - 1, 2**64 - 1, -(2**63), 0.5, float("nan"), float("inf"), True, None,
    "", "a", "x" * 5000, "\x1b[31m[/x]", "max_model_len", b"", b"\0" * 7, b"\xff" * 8, bytes(96), bytes(1 << 16),
    [], [[]] * 9, [0] * 3000, {}, {"type": "insert"},
]  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner: list[Any] = list(value) if isinstance(value, dict) else list(range(len(value)))
    found = []
    for key in inner:
        found.append((*path, key))
        if isinstance(value[key], (dict, list)):
            found += places(value[key], (*path, key))
    return found


@given(data=st.data())
def test_r_any_value_replaced_under_a_right_checksum(
    data: st.DataObject, raw: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    content: list[Any] = [list(p) for p in copy.deepcopy(list(parts(raw)))]
    for _ in range(data.draw(st.integers(1, 2))):
        found = content[data.draw(st.integers(0, len(content) - 1))]
        *way, last = data.draw(st.sampled_from(places(found[1])))
        holder = found[1]
        for key in way:
            holder = holder[key]
        if isinstance(holder, dict):
            change = data.draw(st.sampled_from(["put", "drop", "twin"]))
        else:
            change = data.draw(st.sampled_from(["put", "repeat"]))
        if change == "put":
            holder[last] = copy.deepcopy(data.draw(st.sampled_from(NASTY)))
        elif change == "repeat":
            holder.append(copy.deepcopy(holder[last]))
        elif change == "twin":
            holder[str(last) + "_"] = holder[last]
        else:
            del holder[last]
        if not places(found[1]):
            break
    hostile = joined((magic, body) for magic, body in content)
    path = tmp_path_factory.mktemp("hostile") / "run.rec"
    path.write_bytes(hostile)

    def work() -> None:
        with contextlib.suppress(sl.PacketError):
            played(path)

    peak(work, len(hostile))


@given(order=st.lists(st.integers(0, 40), max_size=30))
def test_r_records_repeated_dropped_and_in_any_order(
    order: list[int], raw: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    head, *entries, _ = parts(raw)
    chosen = [entries[i % len(entries)] for i in order]
    path = tmp_path_factory.mktemp("order") / "run.rec"
    path.write_bytes(joined([head, *chosen, (recording.END, {"records": len(chosen)})]))
    with contextlib.suppress(sl.PacketError):
        played(path)


# -- a few bytes that say much

BOMBS = {
    "empty arrays": b"\x90",
    "nothing": b"\xc0",
    "nested arrays": b"\x91",
    "empty text": b"\xa0",
    "empty mappings": b"\x80",
    "short text": b"\xa2ab",
    "short bytes": b"\xc4\x02ab",
    "tasks": msgspec.msgpack.encode({"kind": "abort"}),
}


@pytest.mark.parametrize("key", ["rows", "gone", "tasks", "requests", "tokens", "unknown"])
@pytest.mark.parametrize("bomb", BOMBS)
def test_r_many_small_values(key: str, bomb: str, raw: bytes, tmp_path: Path) -> None:
    (head, *_) = parts(raw)
    count = 300_000
    kind = {"rows": "prepare", "gone": "prepare", "tokens": "commit"}.get(key, "insert")
    values = b"\xdd" + count.to_bytes(4, "big") + BOMBS[bomb] * count
    pack = msgspec.msgpack.encode
    operation = b"\x82" + pack("type") + pack(kind) + pack(key) + values
    body = b"\x82" + pack("operation") + operation + pack("digest") + pack("0" * 64)
    refused(tmp_path / "bomb.rec", joined([head]) + part(recording.ENTRY, body), "record 1")


@pytest.mark.parametrize("key", ["config", "fields", "only", "version"])
def test_r_many_small_values_in_the_head(key: str, tmp_path: Path) -> None:
    for bomb in BOMBS.values():
        body = b"\x81" + msgspec.msgpack.encode(key) + b"\xdd" + (300_000).to_bytes(4, "big") + bomb * 300_000
        refused(tmp_path / "bomb.rec", part(recording.HEAD, body), "head")


@pytest.mark.parametrize(
    "body",
    [
        b"\xdd\xff\xff\xff\xff", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", b"\xdb\xff\xff\xff\xff", b"\xdc",
        b"", b"\xc1", b"\xd4\x01\x02", b"\xc7\x01\x02\x03", b"\x91" * 100_000, b"\x81" * 100_000, b"\xc0\xc0",
        b"\x81\xa9operation\xc0", b"\x81\xa1\xff\xc0",
    ],
    ids=lambda b: b[:6].hex(),
)  # fmt: skip
def test_r_bodies_that_are_no_record(body: bytes, raw: bytes, tmp_path: Path) -> None:
    (head, *_) = parts(raw)
    refused(tmp_path / "x.rec", joined([head]) + part(recording.ENTRY, body), "record 1")
    refused(tmp_path / "x.rec", part(recording.HEAD, body), "head")


# -- sizes


def changed(raw: bytes, fields: list[Any] | None = None, **config: Any) -> bytes:
    """The head with another config and fields, and the fingerprint that fits them."""
    (_, head), *_ = parts(raw)
    kept = head["fields"] if fields is None else fields
    config = head["config"] | config
    made = [sl.Field(f["name"], tuple(f["dims"]), f["dtype"], f["fill"], residency=f["residency"],
                     slot_axis=f["slot_axis"], token_ids=f["token_ids"]) for f in kept]  # fmt: skip
    fingerprint = sl.BufferLayout(sl.BatchConfig(**config), made).fingerprint
    head = head | {"config": config, "fields": kept, "fingerprint": fingerprint}
    return joined([(recording.HEAD, head), (recording.END, {"records": 0})])


@pytest.mark.parametrize(
    "sizes",
    [
        {"max_num_seqs": 2**31 - 1},
        {"max_num_seqs": 2**31 - 1, "max_model_len": 2**31 - 1, "max_chunk_tokens": 2**31 - 1, "block_size": 1},
        {"max_num_seqs": 2**20, "max_model_len": 2**31 - 1, "block_size": 1},
    ],
)
def test_r_absurd_sizes_without_fields_to_pay_for_them(sizes: dict[str, int], raw: bytes, tmp_path: Path) -> None:
    refused(tmp_path / "x.rec", changed(raw, [], **sizes), "tables of its slots")


def test_r_absurd_sizes_with_all_fields(raw: bytes, tmp_path: Path) -> None:
    """Nobody has these buffers; the command line compares them with the machine before it asks for them."""
    content = changed(raw, max_num_seqs=2**31 - 1, max_model_len=2**31 - 1, block_size=1)
    refused(tmp_path / "x.rec", content, "its batch needs")


def test_r_absurd_dims_of_a_field(raw: bytes, tmp_path: Path) -> None:
    (_, head), *_ = parts(raw)
    for dims in ([2**62, 2**62], ["max_num_seqs", *[2**31] * 30], [1] * 65, ["max_num_seqs", -5], ["+"], [True]):
        field = head["fields"][-1] | {"name": "own", "key": "own", "dims": dims, "slot_axis": None, "on": {}}
        hostile = head | {"fields": [*head["fields"], field]}
        refused(tmp_path / "x.rec", joined([(recording.HEAD, hostile)]), "head")


def test_r_fields_that_contradict_each_other_are_the_recordings_fault(raw: bytes, tmp_path: Path) -> None:
    """Not the device's: NumPy fails as well."""
    (_, head), *rest = parts(raw)
    for field in head["fields"]:
        if field["name"] == "accept_num":  # [S], which a commit would keep equal to [S, M]
            field["twin_of"] = "mtp.lookahead_tokens"
    (tmp_path / "x.rec").write_bytes(joined([(recording.HEAD, head), *rest]))
    with pytest.raises(sl.PacketError, match=r"record 3 .*no batch of its layout can do it"):
        verify(tmp_path / "x.rec", simulated(1), backend("numpy"))


# -- what is no file, and files that change


def test_r_a_pipe_is_refused_without_waiting_for_its_other_end(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(sl.PacketError, match="no regular file"):
        Recording(tmp_path / "pipe")


def test_r_a_recording_that_is_written_anew_while_it_is_read(raw: bytes, tmp_path: Path) -> None:
    path = written(tmp_path / "run.rec")
    entries = iter(Recording(path))
    next(entries)
    with sl.record(sl.SlotBatch(LAYOUT, backend("numpy")), path):
        pass
    assert len(list(entries)) > 5
    assert play(path) == 0


@fewer(2)
@given(data=st.binary(max_size=300), magic=st.sampled_from([recording.HEAD, recording.ENTRY]))
def test_r_any_body(data: bytes, magic: bytes, raw: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    (head, *_) = parts(raw)
    path = tmp_path_factory.mktemp("any") / "x.rec"
    path.write_bytes(joined([head]) * (magic == recording.ENTRY) + part(magic, data))
    with pytest.raises(sl.PacketError):
        played(path)
