"""The hand-over under Hypothesis: round trips, hostile bytes, and whole lives across two batches (rules D)."""

from __future__ import annotations

import hashlib
import struct
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from frameworks import backend, fewer
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

import slotline as sl
from slotline.testing import strategies as made
from slotline.testing.reference import ReferenceBatch
from slotline.testing.reference_insert import first_step_tokens

HIDDEN = "mtp.first_token_hidden_states"
OWN = hnp.arrays(
    st.sampled_from(["bool", "int8", "uint16", "int64", "float16", "float32", "float64"]),
    hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3),
    elements={"allow_nan": False, "allow_infinity": False},
)


class Life:
    """One request on a prefill batch and then on a decode batch, each beside the reference."""

    def __init__(self, data: st.DataObject, framework: str, method: str) -> None:
        self.data = data
        config = data.draw(made.configs(roles=["prefill"], methods=[method]))
        self.config = replace(config, num_blocks=None, null_block=None)
        decode = replace(self.config, role="decode", max_num_seqs=config.max_num_seqs + 2)
        self.prefill = sl.SlotBatch(made.full_layout(self.config), backend(framework))
        self.decode = sl.SlotBatch(made.full_layout(decode), backend(framework))
        self.near, self.far = ReferenceBatch(self.prefill.layout), ReferenceBatch(self.decode.layout)
        self.blocks = range(self.config.max_blocks_per_seq)

    def same(self) -> None:
        for batch, reference in ((self.prefill, self.near), (self.decode, self.far)):
            found = reference.compare(batch)
            assert found is None, found

    def compute(self, request: sl.Request) -> sl.Output:
        """All chunks of ``request`` on the prefill side; the result of the last."""
        start = 0
        while True:
            task = self.data.draw(made.prefills(self.config, request, start))
            task = sl.PrefillTask(request, task.start, task.end, self.blocks)
            sl.insert_tasks(self.prefill, [task])
            self.near.insert([task])
            (out,) = self.step(self.prefill, self.near)
            start = task.end
            if start == len(request.history):
                return out

    def step(self, batch: sl.SlotBatch, reference: ReferenceBatch) -> list[sl.Output]:
        ticket, other = batch.ticket(), reference.ticket()
        tokens, counts = self.data.draw(made.accepted(reference, other))
        sl.commit_step(batch, ticket, tokens, counts)
        reference.commit(other, tokens, counts)
        if batch.config.num_drafts:
            drafts = self.data.draw(made.drafts(reference))
            sl.commit_drafts(batch, ticket, drafts)
            reference.commit_drafts(other, drafts)
        outputs = batch.fetch(ticket).result()
        reference.taken(other)
        expected = reference.outputs(other)
        assert [o[:6] for o in outputs] == [o[:6] for o in expected]
        self.same()
        return outputs

    def hidden(self, slot: int) -> NDArray[Any] | None:
        """What the prefill side's model leaves in the request's row."""
        if HIDDEN not in self.prefill.layout:
            return None
        size = self.config.hidden_size or 0
        finite = st.floats(-1e4, 1e4, width=32)
        state = np.array(self.data.draw(st.lists(finite, min_size=size, max_size=size)), np.float32)
        sl.async_set_value(self.prefill[HIDDEN][slot], state)
        self.near.arrays[HIDDEN][slot] = state
        return state


@pytest.mark.parametrize("method", ["none", "ngram", "suffix", "mtp"])
def test_a_life_across_the_split(framework: str, method: str) -> None:
    """D1 to D5: prefill batch, bytes, decode batch; preempted there and back again; against the reference."""

    @fewer(2, framework)
    @given(data=st.data())
    def lives(data: st.DataObject) -> None:
        life = Life(data, framework, method)
        sl.check_peer(life.prefill.layout, sl.Peer.of(life.decode.layout).encode())
        asked = data.draw(made.requests(life.config, "r"))
        for _ in range(2):
            out = life.compute(asked)
            if out.finish_reason != sl.FinishReason.HANDOVER:
                with pytest.raises(sl.TaskError):
                    sl.export_handover(life.prefill, "r")
                return
            state = life.hidden(life.prefill.slot_of("r"))
            raw = sl.export_handover(life.prefill, "r").encode()
            arrived = sl.Request.from_handover(raw, life.decode.layout)
            # The reference is told by hand: nothing of the record is used.
            told = sl.Request(
                "r", asked.prompt_token_ids, asked.output_token_ids, [*out.tokens, *out.draft_tokens],
                asked.sampling, state, asked.extra,
            )  # fmt: skip
            sl.insert_tasks(life.prefill, [sl.FinishTask("r")])
            life.near.insert([sl.FinishTask("r")])
            outputs = _decoded(life, arrived, told)
            if outputs is None:
                return
            sl.insert_tasks(life.decode, [sl.PreemptTask("r")])
            life.far.insert([sl.PreemptTask("r")])
            asked = sl.Request("r", asked.prompt_token_ids, outputs, sampling=asked.sampling, extra=asked.extra)

    lives()


def _decoded(life: Life, arrived: sl.Request, told: sl.Request) -> list[int] | None:
    """Some steps on the decode side; all outputs so far, None: it has ended, or could not begin."""
    config, size = life.decode.config, len(told.history)
    outputs = [*told.output_token_ids.tolist(), int(told.draft_token_ids[0])]
    limit = config.max_model_len - told.num_prompt_tokens
    given = told.sampling.max_dec_len
    need = first_step_tokens(config, limit if given is None else min(given, limit), len(outputs))
    if len(told.draft_token_ids) < need:  # an MTP side that made no draft
        before = life.decode.digest()
        with pytest.raises(sl.TaskError, match="'r'"):
            sl.insert_tasks(life.decode, [sl.PrefillTask(arrived, 0, size, life.blocks)])
        assert life.decode.digest() == before
        return None
    slot = life.data.draw(st.integers(0, config.max_num_seqs - 1))
    receipt = sl.insert_tasks(life.decode, [sl.PrefillTask(arrived, 0, size, life.blocks, slot)])
    expected = life.far.insert([sl.PrefillTask(told, 0, size, life.blocks, slot)])
    assert receipt.launch_tokens == expected.launch_tokens == need  # D3
    assert receipt.ended == {}  # the prefill side tested the token (D4)
    life.same()
    for _ in range(life.data.draw(st.integers(0, 3))):
        (out,) = life.step(life.decode, life.far)
        outputs += out.tokens
        if out.finish_reason:
            return None
    return outputs


@st.composite
def handovers(draw: st.DrawFn) -> tuple[sl.Handover, sl.Request, sl.SlotBatch]:
    """A record, the request as it was asked for, and a decode batch that it fits."""
    config = draw(made.configs(roles=["prefill"], num_blocks=None, null_block=None, max_chunk_tokens=48))
    request = draw(made.requests(config, draw(st.text(st.characters(codec="utf-8"), max_size=8))))
    own = draw(st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=4), OWN, max_size=3))
    request = sl.Request(
        request.request_id, request.prompt_token_ids, request.output_token_ids,
        sampling=request.sampling, hidden_state=request.hidden_state, extra=own,
    )  # fmt: skip
    batch = sl.SlotBatch(made.full_layout(config), backend("numpy"))
    table = range(config.max_blocks_per_seq)
    sl.insert_tasks(batch, [sl.PrefillTask(request, 0, len(request.history), table)])
    ticket = batch.ticket()
    shape = (config.max_num_seqs, config.num_drafts)
    sl.commit_step(batch, ticket, np.zeros((shape[0], shape[1] + 1), np.int64), np.ones(shape[0], np.int32))
    if config.num_drafts:
        sl.commit_drafts(batch, ticket, np.zeros(shape, np.int64))
    (out,) = batch.fetch(ticket).result()
    if out.finish_reason != sl.FinishReason.HANDOVER:  # token 0 completed a stop sequence, or it was the last one
        return draw(handovers())
    decode = sl.SlotBatch(made.full_layout(replace(config, role="decode")), backend("numpy"))
    return sl.export_handover(batch, request.request_id), request, decode


@given(handovers())
def test_round_trip(drawn: tuple[sl.Handover, sl.Request, sl.SlotBatch]) -> None:
    handover, asked, decode = drawn
    raw = handover.encode()
    assert sl.Handover.decode(raw) == handover
    assert sl.Handover.decode(raw).encode() == raw
    got = sl.Request.from_handover(raw, decode.layout)
    assert got.request_id == asked.request_id
    assert got.prompt_token_ids.tolist() == asked.prompt_token_ids.tolist()
    assert got.output_token_ids.tolist() == asked.output_token_ids.tolist()
    assert got.draft_token_ids.tolist()[0] == 0
    assert got.sampling.packed == asked.sampling.packed
    stops = [list(s) for s in asked.sampling.stop_lists]
    stops = [s[: max((i + 1 for i, token in enumerate(s) if token != -1), default=0)] for s in stops]
    assert [s.tolist() for s in got.sampling.stop_lists] == stops
    assert np.asarray(got.sampling.bad_tokens).tolist() == np.asarray(asked.sampling.bad_tokens).tolist()
    assert dict(got.extra).keys() == dict(asked.extra).keys()
    for name, value in asked.extra.items():
        assert got.extra[name].dtype == value.dtype
        assert got.extra[name].shape == value.shape
        assert got.extra[name].tobytes() == value.tobytes()


def framed(body: bytes) -> bytes:
    return struct.pack("<4sHHQ8s", b"SLHO", 1, 0, len(body), hashlib.blake2b(body, digest_size=8).digest()) + body


def try_hostile(raw: bytes, batch: sl.SlotBatch) -> None:
    """PacketError and nothing else, or a record that is what it says; the batch does not change."""
    before = batch.digest()
    try:
        found = sl.Handover.decode(raw)
    except sl.PacketError:
        with pytest.raises(sl.PacketError):
            sl.Request.from_handover(raw, batch.layout)
        assert batch.digest() == before
        return
    assert found.encode() == raw
    request = sl.Request.from_handover(found)
    table = range(batch.config.max_blocks_per_seq)
    try:
        sl.insert_tasks(batch, [sl.PrefillTask(request, 0, len(request.history), table)])
    except sl.TaskError:
        assert batch.digest() == before


@given(handovers(), st.data())
def test_hostile_bytes(drawn: tuple[sl.Handover, sl.Request, sl.SlotBatch], data: st.DataObject) -> None:
    """Bytes changed, added, taken away or made up, behind a header and a checksum that are right."""
    handover, _, batch = drawn
    raw = handover.encode()
    body = bytearray(raw[24:])
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(body)))
        end = data.draw(st.sampled_from([at, at + 1, at + 4]))
        body[at:end] = data.draw(
            st.binary(max_size=4) | st.sampled_from([b"\xdd\xff\xff\xff\xff", b"\xc6\xff\xff\xff\x7f"])
        )
    try_hostile(framed(bytes(body)), batch)
    try_hostile(data.draw(st.binary(max_size=80)), batch)
    try_hostile(framed(data.draw(st.binary(max_size=80))), batch)
    try_hostile(raw[: data.draw(st.integers(0, len(raw) - 1))], batch)


NUMBERS = st.integers(-(2**63), 2**64 - 1) | st.floats()
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(max_size=4) | st.binary(max_size=16),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@given(handovers(), st.data())
def test_hostile_parts(drawn: tuple[sl.Handover, sl.Request, sl.SlotBatch], data: st.DataObject) -> None:
    """A part that is something else altogether, in a body that is good msgpack."""
    handover, _, batch = drawn
    body: dict[str, Any] = msgspec.msgpack.decode(handover.encode()[24:])
    at: Any = body
    key: Any = data.draw(st.sampled_from(sorted(body)))
    while isinstance(at[key], (dict, list)) and at[key] and data.draw(st.booleans()):
        at = at[key]
        key = data.draw(st.sampled_from(sorted(at) if isinstance(at, dict) else range(len(at))))
    at[key] = data.draw(JSON)
    try_hostile(framed(msgspec.msgpack.encode(body)), batch)


@given(st.binary(max_size=64), st.integers(0, 200), st.binary(min_size=1, max_size=4))
def test_hostile_peers(junk: bytes, at: int, put: bytes) -> None:
    config = sl.BatchConfig(max_num_seqs=1, max_model_len=8, vocab_size=9, role="decode")
    layout = sl.target_layout(config)
    good = sl.Peer.of(layout).encode()
    for raw in (junk, good[:at] + put + good[at + len(put) :], good[: at % len(good)]):
        if raw != good:
            with pytest.raises(sl.PacketError):
                sl.check_peer(layout, raw)
