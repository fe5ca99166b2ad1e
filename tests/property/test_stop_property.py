"""The stop rule through insertions and commits, against the plain matcher (rule T)."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import slotline as sl
from slotline.testing.reference import stop_rule

PROMPT = [0, 1]
SYMBOLS = st.integers(0, 2)
STOPS = st.lists(st.lists(SYMBOLS, min_size=1, max_size=4), max_size=3)


def make(role: str = "mixed", max_model_len: int = 16) -> sl.SlotBatch:
    config = sl.BatchConfig(
        max_num_seqs=2, max_model_len=max_model_len, max_chunk_tokens=16, block_size=16, vocab_size=3,
        eos_token_ids=(2,), max_stop_seqs=3, stop_seqs_max_len=4, spec_method="ngram", num_draft_tokens=3, role=role,
    )  # fmt: skip
    return sl.SlotBatch(sl.target_layout(config), sl.load_backend("cpu"))


@st.composite
def params(draw: st.DrawFn, done: int = 0) -> dict[str, Any]:
    most = draw(st.integers(done + 1, 14))
    return {
        "min_dec_len": draw(st.integers(0, most)),
        "max_dec_len": most,
        "ignore_eos": draw(st.booleans()),
        "stop_seqs": draw(STOPS),
    }


@given(st.data())
def test_t_groups_of_tokens(data: st.DataObject) -> None:
    """Whatever the groups in which tokens are accepted, the rule finds the same end."""
    before = data.draw(st.lists(SYMBOLS, max_size=3))
    sampling = data.draw(params(len(before)))
    batch = make()
    request = sl.Request("r", PROMPT, before, sampling=sl.SamplingParams(**sampling))
    slot = data.draw(st.integers(0, 1))
    sl.insert_tasks(batch, [sl.PrefillTask(request, 0, len(request.history), [0], slot)])
    output = list(before)
    size = 1  # a prefill accepts one token
    while True:
        group = data.draw(st.lists(SYMBOLS, min_size=size, max_size=size))
        kept, reason, match = stop_rule(
            output, group, sampling["min_dec_len"], sampling["max_dec_len"], (2,), sampling["ignore_eos"],
            sampling["stop_seqs"],
        )  # fmt: skip
        tokens = np.zeros((2, 4), np.int64)
        tokens[slot, :size] = group
        ticket = batch.ticket()
        sl.commit_step(batch, ticket, tokens, np.array([size, size], np.int32))
        sl.commit_drafts(batch, ticket, np.ones((2, 3), np.int64))
        (entry,) = batch.fetch(ticket).result()
        output += group[:kept]
        assert (entry.tokens, entry.finish_reason, entry.stop_match) == (group[:kept], reason, match)
        assert batch.host_array("token_ids_all")[slot, 2 : 2 + len(output)].tolist() == output
        assert batch.host_array("finish_reason")[slot] == reason
        assert batch.host_array("stop_match")[slot].tolist() == list(match or (-1, -1))
        assert batch.host_array("stop_flags")[slot] == (reason > 0)
        if reason:
            return
        size = data.draw(st.integers(1, int(batch.host_array("seq_lens_this_time")[slot])))


@given(before=st.lists(SYMBOLS, max_size=3), first=SYMBOLS, data=st.data())
def test_d4_first_token_of_a_handover(before: list[int], first: int, data: st.DataObject) -> None:
    sampling = data.draw(params(len(before)))
    batch = make("decode")
    request = sl.Request("r", PROMPT, before, [first], sl.SamplingParams(**sampling))
    receipt = sl.insert_tasks(batch, [sl.PrefillTask(request, 0, len(request.history), [0])])
    _, reason, match = stop_rule(
        before, [first], sampling["min_dec_len"], sampling["max_dec_len"], (2,), sampling["ignore_eos"],
        sampling["stop_seqs"],
    )  # fmt: skip
    assert {k: tuple(v) for k, v in receipt.ended.items()} == ({"r": (first, reason, match)} if reason else {})
    assert batch.host_array("stop_flags")[0] == (reason > 0)
    assert receipt.launch_tokens == (0 if reason else 1)


@given(tokens=st.lists(SYMBOLS, min_size=1, max_size=12), cuts=st.lists(st.integers(1, 4)), data=st.data())
def test_t_matcher_does_not_see_groups(tokens: list[int], cuts: list[int], data: st.DataObject) -> None:
    """The matcher itself: one group or several, the same end."""
    sampling = data.draw(params())
    rest = (sampling["min_dec_len"], sampling["max_dec_len"], (2,), sampling["ignore_eos"], sampling["stop_seqs"])
    whole = stop_rule([], tokens, *rest)
    output: list[int] = []
    reason, match = 0, None
    while len(output) < len(tokens) and not reason:
        group = tokens[len(output) : len(output) + (cuts.pop() if cuts else 1)]
        kept, reason, match = stop_rule(output, group, *rest)
        output += group[:kept]
    assert (len(output), reason, match) == whole
