"""Hostile bytes: a PacketError that names what is wrong, nothing else, and nothing written (rule D5)."""

from __future__ import annotations

import pickle
import struct
from typing import Any

import numpy as np
import pytest
from handovers import HEADER, altered, body_of, framed, hostile, ids, make, prefilled, record, setter

import slotline as sl


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
        (("stop_lens", ids(*[1] * 4097)), "stop_lens has 4097 numbers, allowed: 0 to 4096"),
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
