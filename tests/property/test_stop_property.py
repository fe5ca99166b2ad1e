"""The stop rule alone, through insertions and through commits, against a plain matcher (rule T).

Few symbols and long runs, so that sequences overlap themselves and each other.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from frameworks import backend, fewer, host, tensor
from hypothesis import given
from hypothesis import strategies as st

import slotline as sl
from slotline.testing.reference import stop_rule
from slotline.testing.reference_functions import stops

PROMPT = [0, 1]
SYMBOLS = st.integers(0, 2)
ACROSS = st.builds(lambda n, rest: PROMPT[-n:] + rest, st.integers(1, 2), st.lists(SYMBOLS, min_size=1, max_size=2))
"""Stop sequences that would begin in the prompt."""
STOPS = st.lists(st.lists(SYMBOLS, min_size=1, max_size=4) | ACROSS, max_size=3)
RUNS = st.lists(st.tuples(st.integers(0, 1), st.integers(1, 5)), max_size=6).map(
    lambda runs: [symbol for symbol, times in runs for _ in range(times)]
)
"""0 0 0 0 1 1 0 0 0 ...: every stop sequence of these symbols nearly matches, over and over."""


def make(framework: str = "numpy", role: str = "mixed", eos: tuple[int, ...] = (2,)) -> sl.SlotBatch:
    config = sl.BatchConfig(
        max_num_seqs=2, max_model_len=40, max_chunk_tokens=40, block_size=40, vocab_size=3, eos_token_ids=eos,
        max_stop_seqs=3, stop_seqs_max_len=4, spec_method="ngram", num_draft_tokens=3, role=role,
    )  # fmt: skip
    return sl.SlotBatch(sl.target_layout(config), backend(framework))


@st.composite
def params(draw: st.DrawFn, done: int = 0) -> dict[str, Any]:
    most = draw(st.integers(done + 1, done + 12))
    return {
        "min_dec_len": draw(st.integers(0, most)),
        "max_dec_len": most,
        "ignore_eos": draw(st.booleans()),
        "stop_seqs": draw(STOPS),
    }


def test_t_whole_life_in_groups_of_tokens(framework: str) -> None:
    """Whatever the groups in which tokens are accepted, commits find the end that the plain matcher finds."""

    @fewer(1, framework)
    @given(data=st.data(), eos=st.sampled_from([(), (2,), (0, 2)]))
    def whole_life(data: st.DataObject, eos: tuple[int, ...]) -> None:
        before = data.draw(RUNS.map(lambda r: r[:20]))
        sampling = data.draw(params(len(before)))
        batch = make(framework, eos=eos)
        request = sl.Request("r", PROMPT, before, sampling=sl.SamplingParams(**sampling))
        slot = data.draw(st.integers(0, 1))
        sl.insert_tasks(batch, [sl.PrefillTask(request, 0, len(request.history), [0], slot)])
        output = list(before)
        size = 1  # a prefill accepts one token
        while True:
            group = data.draw(st.lists(SYMBOLS, min_size=size, max_size=size))
            kept, reason, match = stop_rule(
                output, group, sampling["min_dec_len"], sampling["max_dec_len"], eos, sampling["ignore_eos"],
                sampling["stop_seqs"],
            )  # fmt: skip
            tokens = np.zeros((2, 4), np.int64)
            tokens[slot, :size] = group
            step = sl.prepare_step(batch) if data.draw(st.booleans()) else batch.ticket()
            sl.commit_step(batch, step, tensor(framework, tokens), np.array([size, size], np.int32))
            sl.commit_drafts(batch, step, np.ones((2, 3), np.int64))
            (entry,) = batch.fetch(step).result()
            output += group[:kept]
            assert (entry.tokens, entry.finish_reason, entry.stop_match) == (group[:kept], reason, match)
            assert batch.host_array("token_ids_all")[slot, 2 : 2 + len(output)].tolist() == output
            assert batch.host_array("finish_reason")[slot] == reason
            assert batch.host_array("stop_match")[slot].tolist() == list(match or (-1, -1))
            assert batch.host_array("stop_flags")[slot] == (reason > 0)
            if reason:
                return
            size = data.draw(st.integers(1, int(batch.host_array("seq_lens_this_time")[slot])))

    whole_life()


@st.composite
def own_rows(draw: st.DrawFn) -> dict[str, Any]:
    """The arguments of ``match_stop`` for an engine's own buffers: any sizes, any whole dtypes."""
    size, width, number, longest = (
        draw(st.integers(1, 4)), draw(st.integers(1, 5)), draw(st.integers(0, 3)), draw(st.integers(1, 5))
    )  # fmt: skip
    rows = []
    for _ in range(size):
        prompt, accepted = draw(RUNS), draw(st.lists(SYMBOLS, min_size=width, max_size=width))
        output = draw(RUNS)[: draw(st.sampled_from([0, 1, 30]))]
        seqs = draw(st.lists(st.lists(SYMBOLS, min_size=0, max_size=longest), min_size=number, max_size=number))
        if number and draw(st.booleans()):  # what the row says up to its first token, often from the prompt on
            said = [*prompt, *output, accepted[0]]
            seqs[draw(st.integers(0, number - 1))] = said[-min(longest, len(output) + 2) :]
        count = draw(st.integers(0, width))
        least = draw(st.integers(0, len(output) + 4))
        most = draw(st.integers(max(1, least), len(output) + 8))
        rows.append((prompt, output, accepted, seqs, count, least, most, draw(st.booleans())))
    length = max(len(p) + len(o) for p, o, *_ in rows) + draw(st.integers(0, 3)) or 1
    ids = draw(st.sampled_from(["int64", "int32"]))
    block = np.full((size, number, longest), -1, ids)
    for r, row in enumerate(rows):
        for n, seq in enumerate(row[3]):
            block[r, n, : len(seq)] = seq
    column = {name: [row[i] for row in rows] for name, i in
              (("accept_num", 4), ("min_dec_len", 5), ("max_dec_len", 6))}  # fmt: skip
    return {
        "accept_tokens": np.array([row[2] for row in rows], ids),
        "accept_num": np.array(column["accept_num"], draw(st.sampled_from(["int64", "int32"]))),
        "token_ids_all": np.array([(p + o + [-1] * length)[:length] for p, o, *_ in rows], ids),
        "prompt_lens": np.array([len(row[0]) for row in rows], np.int32),
        "step_idx": np.array([len(row[1]) for row in rows], np.int32),
        "stop_seqs": block,
        "stop_seqs_len": np.array([[len(s) for s in row[3]] for row in rows], np.int32).reshape(size, number),
        "min_dec_len": np.array(column["min_dec_len"], np.int32),
        "max_dec_len": np.array(column["max_dec_len"], np.int32),
        "ignore_eos": np.array([row[7] for row in rows]),
    }


def test_t_match_stop_on_own_buffers(framework: str) -> None:
    """The rule alone, on tensors that belong to no batch; nothing of them changes."""

    @fewer(1, framework)
    @given(rows=own_rows(), eos=st.sampled_from([(), (1,), (0, 2)]), mixed=st.booleans())
    def own_buffers(rows: dict[str, Any], eos: tuple[int, ...], mixed: bool) -> None:
        given_ = {name: tensor(framework, array) for name, array in rows.items()}
        if mixed:  # NumPy arrays among tensors
            given_["min_dec_len"] = rows["min_dec_len"]
        tokens, count = given_.pop("accept_tokens"), given_.pop("accept_num")
        found = sl.match_stop(tokens, count, **given_, eos_token_ids=eos)
        before = {name: array for name, array in rows.items() if name not in ("accept_tokens", "accept_num")}
        want = stops(rows["accept_tokens"], rows["accept_num"], eos_token_ids=eos, **before)
        for name in want._fields:
            got = getattr(found, name)
            assert type(got) is type(tokens)
            assert host(got).dtype == np.int32
            assert host(got).tolist() == getattr(want, name), name
        for name, array in given_.items():
            assert np.array_equal(host(array), rows[name]), name
        assert np.array_equal(host(tokens), rows["accept_tokens"])

    own_buffers()


def test_t_overlapping_runs(framework: str) -> None:
    """[0, 0, 1] in 0 0 0 0 1: the match begins at the second last 0, wherever the groups end."""
    for cut in range(1, 5):
        output = [0, 0, 0, 0, 1]
        arrays = {
            "token_ids_all": [[1, 0, 0, *output[:cut], *[-1] * (5 - cut)]],
            "prompt_lens": [3],
            "step_idx": [cut],
            "stop_seqs": [[[0, 0, 1], [0, 1, -1]]],
            "stop_seqs_len": [[3, 2]],
            "min_dec_len": [0],
            "max_dec_len": [9],
        }
        tensors: dict[str, Any] = {name: tensor(framework, value, "int64") for name, value in arrays.items()}
        tensors["ignore_eos"] = tensor(framework, [False])
        accepted = tensor(framework, [output[cut:] + [7] * cut], "int64")
        found = sl.match_stop(accepted, tensor(framework, [5], "int32"), **tensors, eos_token_ids=())
        assert [host(x).tolist() for x in found] == [[5 - cut], [sl.FinishReason.STOP], [[0, 2]]]


@given(before=st.lists(SYMBOLS, max_size=3), first=SYMBOLS, data=st.data())
def test_d4_first_token_of_a_handover(before: list[int], first: int, data: st.DataObject) -> None:
    sampling = data.draw(params(len(before)))
    batch = make(role="decode")
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
