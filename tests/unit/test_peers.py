"""The two sides of a split compare their layouts when they meet (rule D5)."""

from __future__ import annotations

from typing import Any

import pytest
from handovers import altered, make, record, setter

import slotline as sl


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
