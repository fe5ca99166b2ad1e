"""Records of the prefill/decode split: what export refuses, what hostile bytes do, how peers meet (rule D5)."""

from __future__ import annotations

import hashlib
import pickle
import struct
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest

import slotline as sl

HEADER = "<4sHHQ8s"
PROMPT = [5, 6, 7, 8]


def make(role: str, **values: Any) -> sl.SlotBatch:
    settings: dict[str, Any] = {
        "max_num_seqs": 3,
        "max_model_len": 24,
        "vocab_size": 100,
        "block_size": 4,
        "eos_token_ids": (2,),
        "spec_method": "mtp",
        "num_draft_tokens": 2,
        "hidden_size": 4,
        **values,
    }
    config = sl.BatchConfig(role=role, **settings)
    layout = sl.target_layout(config)
    return sl.SlotBatch(
        layout | sl.mtp_layout(config) if config.spec_method == "mtp" else layout, sl.load_backend("cpu")
    )


def request(**values: Any) -> sl.Request:
    sampling = sl.SamplingParams(temperature=0.5, max_dec_len=9, stop_seqs=[[1, 2], [3, -1]], bad_tokens=[4], top_k=7)
    return sl.Request("r1", PROMPT, [9], **{"sampling": sampling, "extra": {"own": [[1, 2], [3, 4]]}, **values})


def step(batch: sl.SlotBatch, token: int, draft: int = 8) -> list[sl.Output]:
    """One step that gives every row ``token``, and drafts."""
    size, width = batch.config.max_num_seqs, batch.config.num_drafts
    ticket = batch.ticket()
    sl.commit_step(batch, ticket, np.full((size, width + 1), token), np.ones(size, np.int32))
    if width:
        sl.commit_drafts(batch, ticket, np.full((size, width), draft))
    return batch.fetch(ticket).result()


def prefilled(asked: sl.Request | None = None, **values: Any) -> sl.SlotBatch:
    """A prefill batch that holds a request which is ready to be handed over."""
    batch = make("prefill", **values)
    asked = request() if asked is None else asked
    sl.insert_tasks(batch, [sl.PrefillTask(asked, 0, len(asked.history), range(6), slot=1)])
    if batch.layout.by_key("mtp.first_token_hidden_states") is not None:
        sl.async_set_value(batch["mtp.first_token_hidden_states"][1], [0.5, -1.25, 3, 4])
    step(batch, 77)
    return batch


def record(**values: Any) -> bytes:
    return sl.export_handover(prefilled(**values), "r1").encode()


def framed(body: bytes, magic: bytes = b"SLHO", version: int = 1, flags: int = 0) -> bytes:
    """As ``docs/handover.md`` describes it."""
    return struct.pack(HEADER, magic, version, flags, len(body), hashlib.blake2b(body, digest_size=8).digest()) + body


def body_of(raw: bytes) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.msgpack.decode(raw[24:])
    return found


def altered(change: Callable[[dict[str, Any]], Any], raw: bytes | None = None, magic: bytes = b"SLHO") -> bytes:
    body = body_of(record() if raw is None else raw)
    change(body)
    return framed(msgspec.msgpack.encode(body), magic)


def ids(*numbers: int) -> bytes:
    return np.array(numbers, "<i4").tobytes()


# -- what it holds


def test_the_bytes_are_those_of_the_document() -> None:
    raw = record()
    body = body_of(raw)
    assert raw == framed(msgspec.msgpack.encode(body))
    assert list(body)[:5] == ["peer", "request_id", "prompt", "output", "first_step"]
    assert (body["prompt"], body["output"], body["first_step"]) == (ids(*PROMPT), ids(9), ids(77, 8, 8))
    assert (body["stop_lens"], body["stop_ids"], body["bad_ids"]) == (ids(2, 1), ids(1, 2, 3), ids(4))
    assert body["hidden"] == np.array([0.5, -1.25, 3, 4], "<f4").tobytes()
    assert body["values"]["temperature"] == 0.5
    assert body["values"]["max_dec_len"] == 9
    (own,) = body["extras"]
    assert (own["name"], own["dtype"], own["shape"]) == ("own", "int64", np.array([2, 2], "<i8").tobytes())
    assert body["peer"] == {
        "role": "prefill", "spec_method": "mtp", "vocab_size": 100, "max_model_len": 24, "block_size": 4,
        "eos_token_ids": [2], "hidden_size": 4, "hidden_dtype": "float32",
    }  # fmt: skip


def test_a_record_gives_the_request_back() -> None:
    handover = sl.export_handover(prefilled(), "r1")
    again = sl.Handover.decode(handover.encode())
    assert again == handover
    assert hash(again) == hash(handover)
    for made in (sl.Request.from_handover(handover), sl.Request.from_handover(bytearray(handover.encode()))):
        assert (made.request_id, made.history.tolist(), made.num_prompt_tokens) == ("r1", [*PROMPT, 9], 4)
        assert made.draft_token_ids.tolist() == [77, 8, 8]
        assert made.sampling.packed == request().sampling.packed
        assert [s.tolist() for s in made.sampling.stop_lists] == [[1, 2], [3]]
        assert np.asarray(made.sampling.bad_tokens).tolist() == [4]
        assert made.extra["own"].tolist() == [[1, 2], [3, 4]]
        assert made.hidden_state.tolist() == [0.5, -1.25, 3, 4]
    assert (handover.first_token, repr(handover)) == (77, repr(again))
    assert "77" not in repr(handover)
    with pytest.raises(AttributeError):
        handover.prompt = b""  # type: ignore[misc]


def test_unset_max_dec_len_stays_unset() -> None:
    made = sl.Request.from_handover(record(asked=request(sampling=None)))
    assert made.sampling.max_dec_len is None


def test_export_reads_the_row_where_the_request_is_now() -> None:
    batch = prefilled()
    batch.condense()
    assert batch.slot_of("r1") == 0
    handover = sl.export_handover(batch, "r1")
    assert handover.hidden_state is not None
    assert handover.hidden_state.tolist() == [0.5, -1.25, 3, 4]


# -- what export refuses


def refused(batch: sl.SlotBatch, field: str, hint: str, request_id: str = "r1") -> None:
    before = batch.digest()
    with pytest.raises(sl.TaskError, match=hint) as caught:
        sl.export_handover(batch, request_id)
    assert [(f.request_id, f.field) for f in caught.value.errors] == [(request_id, field)]
    assert batch.digest() == before


def test_an_unknown_request_is_refused() -> None:
    refused(prefilled(), "request_id", "it owns no slot", "r2")
    batch = prefilled()
    batch.release(["r1"])
    refused(batch, "request_id", "it owns no slot")


@pytest.mark.parametrize("role", ["mixed", "decode"])
def test_other_roles_hand_nothing_over(role: str) -> None:
    batch = make(role)
    sl.insert_tasks(batch, [sl.PrefillTask(request(draft_token_ids=[77, 8]), 0, 5, range(6))])
    refused(batch, "role", "only a prefill side hands over")


def test_a_result_that_was_not_fetched_is_refused() -> None:
    batch = make("prefill")
    sl.insert_tasks(batch, [sl.PrefillTask(request(), 0, 5, range(6))])
    refused(batch, "output", "result first")
    ticket = batch.ticket()
    sl.commit_step(batch, ticket, np.full((3, 3), 77), np.ones(3, np.int32))
    pending = batch.fetch(ticket)
    refused(batch, "output", "result first")
    pending.result()
    assert sl.export_handover(batch, "r1").draft_token_ids.tolist() == [77]


def test_a_chunk_that_is_not_last_is_refused() -> None:
    batch = make("prefill")
    sl.insert_tasks(batch, [sl.PrefillTask(request(), 0, 3, range(6))])
    step(batch, 77)
    refused(batch, "end", "its last chunk is not committed yet")
    sl.insert_tasks(batch, [sl.PrefillTask(request(), 3, 5, range(6))])
    refused(batch, "end", "its last chunk is not committed yet")
    step(batch, 77)
    assert sl.export_handover(batch, "r1").first_token == 77


def test_a_request_that_the_stop_rule_ended_is_refused() -> None:
    batch = make("prefill")
    sl.insert_tasks(batch, [sl.PrefillTask(request(), 0, 5, range(6))])
    step(batch, 2)
    refused(batch, "finish_reason", "reason eos")


def test_a_new_epoch_has_no_result_yet() -> None:
    batch = prefilled()
    sl.insert_tasks(batch, [sl.AbortTask("r1"), sl.PrefillTask(request(), 0, 5, range(6))])
    refused(batch, "output", "result first")


@pytest.mark.parametrize(
    "extra", [{"a": "text"}, {"a": object()}, {"a": [[1], [2, 3]]}, {"a": float("nan")}, {"a": 1j}, {"\ud800": 1}]
)
def test_own_values_that_cannot_travel_are_refused(extra: dict[str, Any]) -> None:
    refused(prefilled(asked=request(extra=extra)), f"extra[{next(iter(extra))!r}]", "export_handover")


# -- hostile bytes


def hostile(raw: bytes, text: str | None = None) -> None:
    for read in (sl.Handover.decode, sl.Request.from_handover):
        with pytest.raises(sl.PacketError, match=text):
            read(raw)


def test_truncated_at_every_offset() -> None:
    raw = record()
    for end in range(len(raw)):
        hostile(raw[:end])
    hostile(raw + b"\0")


def test_every_byte_flipped() -> None:
    raw = record()
    for at in range(len(raw)):
        for bits in (0x01, 0x80, 0xFF):
            hostile(raw[:at] + bytes([raw[at] ^ bits]) + raw[at + 1 :])


def test_every_byte_of_the_body_flipped_under_a_right_checksum() -> None:
    """Either refused, or a record of its own, which then says the same bytes."""
    body = record()[24:]
    for at in range(len(body)):
        for bits in (0x01, 0x80, 0xFF):
            raw = framed(body[:at] + bytes([body[at] ^ bits]) + body[at + 1 :])
            try:
                found = sl.Handover.decode(raw)
            except sl.PacketError:
                continue
            assert found.encode() == raw
            sl.Request.from_handover(found)


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"", "at least 24 bytes, got 0"),
        (framed(b"\x80", magic=b"SLPK"), "begins with b'SLPK'"),
        (framed(b"\x80", version=2), "version 2, flags 0; this slotline reads version 1"),
        (framed(b"\x80", flags=1), "flags 1"),
        (struct.pack(HEADER, b"SLHO", 1, 0, 2**63, b"\0" * 8), "says 9223372036854775808 bytes"),
        (framed(b"\x91" * 200_000), "a hand-over: "),
        (framed(b"\x81\xa6prompt" + b"\x91" * 200_000), "a hand-over: "),
        (framed(b"\xdf\xff\xff\xff\xff"), "a hand-over: "),
        (framed(b"\xdd\xff\xff\xff\xff"), "a hand-over: "),
        (framed(b"\x81\xaarequest_id\xa2\xff\xfe"), "a hand-over: "),
        (framed(pickle.dumps({"a": 1})), "a hand-over: "),
    ],
)
def test_what_is_no_record_at_all(raw: bytes, text: str) -> None:
    hostile(raw, text)


def setter(*path: Any) -> Callable[[dict[str, Any]], None]:
    """Sets the part at ``path[:-1]`` to ``path[-1]``."""

    def change(body: dict[str, Any]) -> None:
        at: Any = body
        for key in path[:-2]:
            at = at[key]
        at[path[-2]] = path[-1]

    return change


NAN = float("nan")


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (("prompt", b""), "prompt has 0 numbers, allowed: 1 to 23"),
        (("prompt", b"\0\0\0"), "prompt has 3 bytes"),
        (("prompt", ids(1, -1)), r"prompt\[1\] is -1, allowed: 0 to 99"),
        (("prompt", ids(100)), r"prompt\[0\] is 100, allowed: 0 to 99"),
        (("prompt", ids(*[1] * 24)), "prompt has 24 numbers, allowed: 1 to 23"),
        (("prompt", [1, 2, 3]), "bytes"),
        (("output", ids(*[1] * 20)), "output has 20 numbers, allowed: 0 to 19"),
        (("output", ids(-5)), r"output\[0\] is -5"),
        (("first_step", b""), "first_step has 0 numbers, allowed: 1 to 19"),
        (("first_step", ids(1, 100)), r"first_step\[1\] is 100"),
        (("first_step", ids(*[1] * 20)), "first_step has 20 numbers"),
        (("stop_lens", ids(3, 0)), "stop_lens add up to 3, each at least 1; allowed: 3"),
        (("stop_lens", ids(1, 1)), "stop_lens add up to 2"),
        (("stop_lens", ids(2**31 - 2, 2**31 - 2)), "stop_lens add up"),
        (("stop_lens", ids(-1, 4)), r"stop_lens\[0\] is -1"),
        (("stop_ids", ids(1, 2, 300)), r"stop_ids\[2\] is 300"),
        (("bad_ids", ids(-1)), r"bad_ids\[0\] is -1"),
        (("values", "temperature", NAN), "values.temperature is nan, allowed: finite numbers"),
        (("values", "top_p", float("inf")), "values.top_p is inf"),
        (("values", "top_k", 2**64 - 1), r"\$.values.top_k"),
        (("values", "top_k", 1.5), r"\$.values.top_k"),
        (("values", "temperature", "hot"), r"\$.values.temperature"),
        (("values", "temperature", 1), "shortest form"),
        (("values", "ignore_eos", 1), r"\$.values.ignore_eos"),
        (("values", "unheard_of", 1), "unheard_of"),
        (("values", "infer_seed", None), r"\$.values.infer_seed"),
        (("hidden", None), "hidden is missing"),
        (("hidden", b"\0" * 15), "hidden has 15 bytes, allowed: 16, float32 of shape"),
        (("hidden", np.array([1, NAN, 2, 3], "<f4").tobytes()), "hidden: cell 1 is not finite"),
        (("hidden", np.array([1, 2, 3, -np.inf], "<f4").tobytes()), "hidden: cell 3 is not finite"),
        (("peer", "hidden_dtype", "float64"), "hidden has 16 bytes, allowed: 32"),
        (("peer", "hidden_dtype", "int32"), "hidden_dtype is 'int32', allowed: "),
        (("peer", "hidden_size", None), "hidden_size is None, hidden_dtype is float32; allowed: both or none"),
        (("peer", "hidden_size", 2**62), "hidden_size is 4611686018427387904"),
        (("peer", "vocab_size", 0), "vocab_size is 0, allowed: 1 to 2147483647"),
        (("peer", "vocab_size", 50), r"first_step\[0\] is 77, allowed: 0 to 49"),
        (("peer", "eos_token_ids", [3, 2]), "ascending, each once"),
        (("peer", "eos_token_ids", [100]), "eos_token_ids is 100"),
        (("peer", "role", "decode"), "peer.role is 'decode', allowed: 'prefill'"),
        (("peer", "role", "boss"), "role is 'boss', allowed: mixed, prefill, decode"),
        (("peer", "spec_method", "luck"), "spec_method is 'luck'"),
        (("request_id", 5), r"\$.request_id"),
        (("more", 5), "unknown field `more`"),
        (("extras", 0, "dtype", "object"), "dtype is 'object', allowed: bool, int8"),
        (("extras", 0, "dtype", "int32"), "has 32 bytes, allowed: 16"),
        (("extras", 0, "dtype", "bool"), "has 32 bytes, allowed: 4"),
        (("extras", 0, "shape", b"\0" * 7), "shape has 7 bytes"),
        (("extras", 0, "shape", b"\1" + b"\0" * 71), "shape has 72 bytes"),
        (("extras", 0, "shape", np.array([-2, -2], "<i8").tobytes()), "allowed: axes of 0 and more"),
        (("extras", 0, "shape", np.array([2**62, 4], "<i8").tobytes()), "cells at most"),
        (("extras", 0, "shape", np.array([2**62, 0], "<i8").tobytes()), "cells at most"),
        (("extras", [{"name": "b", "dtype": "bool", "shape": b"", "data": b"\2"}]), "is bool, allowed: bytes 0 and 1"),
        (
            ("extras", [{"name": "b", "dtype": "bool", "shape": b"", "data": b"\1"}] * 2),
            r"named \['b', 'b'\], allowed: ascending, each once",
        ),
        (("extras", {"own": 1}), r"\$.extras"),
    ],
)
def test_what_is_wrong_is_named(path: tuple[Any, ...], text: str) -> None:
    batch = make("decode")
    before = batch.digest()
    raw = altered(setter(*path))
    hostile(raw, text)
    with pytest.raises(sl.PacketError, match=text):
        sl.Request.from_handover(raw, batch.layout)
    assert batch.digest() == before


@pytest.mark.parametrize("part", list(body_of(record())))
def test_no_part_may_be_missing(part: str) -> None:
    hostile(altered(lambda body: body.pop(part)), part)


def test_a_part_that_stands_twice_is_refused() -> None:
    body = record()[24:]
    count = body[0] & 0x0F
    hostile(framed(bytes([0x80 | (count + 1)]) + body[1:] + b"\xa7bad_ids\xc4\x00"), "doubled")


def test_a_record_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    raw, handover = record(), sl.export_handover(prefilled(), "r1")
    monkeypatch.setattr("slotline.core.record.MAX_BYTES", len(raw) - 25)
    hostile(raw, f"allowed: {len(raw) - 25}")
    with pytest.raises(sl.PacketError, match=f"has {len(raw) - 24} bytes, allowed: {len(raw) - 25}"):
        handover.encode()


def test_bytes_and_nothing_else() -> None:
    with pytest.raises(TypeError, match="a hand-over is str, allowed: bytes"):
        sl.Handover.decode("SLHO")  # type: ignore[arg-type]
    assert sl.Handover.decode(memoryview(record())[::1]).first_token == 77


# -- peers


def test_peers_that_fit() -> None:
    prefill, decode = make("prefill").layout, make("decode", num_draft_tokens=1, max_num_seqs=9).layout
    sl.check_peer(prefill, sl.Peer.of(decode).encode())
    sl.check_peer(decode, sl.Peer.of(prefill))
    assert sl.Peer.decode(sl.Peer.of(prefill).encode()) == sl.Peer.of(prefill)
    assert sl.Request.from_handover(record(), decode).request_id == "r1"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("vocab_size", 101),
        ("max_model_len", 25),
        ("block_size", 8),
        ("eos_token_ids", (2, 3)),
        ("hidden_size", 24),
        ("hidden_size", None),
        ("hidden_dtype", "float64"),
    ],
)
def test_peers_that_differ(name: str, value: Any) -> None:
    here, there = make("prefill").layout, make("decode", **{name: value}).layout
    mine, theirs = (getattr(sl.Peer.of(layout), name) for layout in (here, there))
    said = f"{name} is {mine} here and {theirs} there".replace("(", "[").replace(",)", "]").replace(")", "]")
    with pytest.raises(sl.LayoutError) as caught:
        sl.check_peer(here, sl.Peer.of(there).encode())
    assert said in str(caught.value)
    with pytest.raises(sl.LayoutError):
        sl.check_peer(there, sl.Peer.of(here))
    before = (batch := make("decode", **{name: value})).digest()
    with pytest.raises(sl.LayoutError, match=name):
        sl.Request.from_handover(record(), batch.layout)
    assert batch.digest() == before


def test_the_order_of_eos_ids_does_not_matter() -> None:
    sl.check_peer(
        make("prefill", eos_token_ids=(3, 2, 2)).layout, sl.Peer.of(make("decode", eos_token_ids=(2, 3)).layout)
    )


@pytest.mark.parametrize(("here", "there"), [("mixed", "decode"), ("prefill", "prefill"), ("decode", "mixed")])
def test_roles_that_do_not_meet(here: str, there: str) -> None:
    with pytest.raises(sl.LayoutError, match=f"role is '{here}' here and '{there}' there"):
        sl.check_peer(make(here).layout, sl.Peer.of(make(there).layout))


def test_a_record_goes_to_a_decode_side() -> None:
    with pytest.raises(sl.LayoutError, match="role is 'mixed', allowed: 'decode'"):
        sl.Request.from_handover(record(), make("mixed").layout)


METHODS = ("none", "ngram", "suffix", "mtp")


@pytest.mark.parametrize("decode", METHODS)
@pytest.mark.parametrize("prefill", METHODS)
def test_only_mtp_needs_a_peer_of_its_kind(prefill: str, decode: str) -> None:
    here = make("prefill", spec_method=prefill, hidden_size=None).layout
    there = make("decode", spec_method=decode, hidden_size=None).layout
    if decode == "mtp" and prefill != "mtp":
        with pytest.raises(sl.LayoutError, match=f"spec_method is '{prefill}' here and 'mtp' there"):
            sl.check_peer(here, sl.Peer.of(there))
        with pytest.raises(sl.LayoutError, match=f"spec_method is 'mtp' here and '{prefill}' there"):
            sl.check_peer(there, sl.Peer.of(here))
    else:
        sl.check_peer(here, sl.Peer.of(there))
        sl.check_peer(there, sl.Peer.of(here))


def test_hostile_peers() -> None:
    layout = make("prefill").layout
    raw = sl.Peer.of(make("decode").layout).encode()
    for end in range(len(raw)):
        with pytest.raises(sl.PacketError):
            sl.check_peer(layout, raw[:end])
    for at in range(len(raw)):
        with pytest.raises(sl.PacketError):
            sl.check_peer(layout, raw[:at] + bytes([raw[at] ^ 0x40]) + raw[at + 1 :])
    with pytest.raises(sl.PacketError, match="not a peer"):
        sl.check_peer(layout, record())
    with pytest.raises(sl.PacketError, match="block_size is 0"):
        sl.check_peer(layout, altered(setter("block_size", 0), raw, b"SLPE"))
    with pytest.raises(sl.PacketError, match="hidden_size is 4, hidden_dtype is None"):
        sl.check_peer(layout, altered(setter("hidden_dtype", None), raw, b"SLPE"))


def test_a_longer_row_keeps_its_width() -> None:
    """F3: a row of one axis may get longer; what travels is the hidden state."""
    config = replace(make("prefill").config)
    layout = (sl.target_layout(config) | sl.mtp_layout(config)).replace(
        "mtp.first_token_hidden_states", dims=("max_num_seqs", 6)
    )
    batch = sl.SlotBatch(layout, sl.load_backend("cpu"))
    sl.insert_tasks(batch, [sl.PrefillTask(request(hidden_state=[1, 2, 3, 4]), 0, 5, range(6))])
    step(batch, 77)
    assert body_of(sl.export_handover(batch, "r1").encode())["hidden"] == np.array([1, 2, 3, 4], "<f4").tobytes()
