"""Draft levels: what the drafter reads, where its states lie, and how many drafts are kept (rules L5, M)."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from frameworks import backend, fewer, host, tensor
from hypothesis import given
from hypothesis import strategies as st

import slotline as sl
from slotline.testing.reference_functions import greedy, next_tokens

VOCAB = 50


class Shape(NamedTuple):
    """How much is drafted: M heads, K drafts."""

    levels: int
    drafts: int


SHAPES = st.sampled_from([Shape(m, k) for k in (1, 2, 3) for m in range(1, k + 1)])


def make(framework: str, shape: Shape, slots: int = 3, role: str = "mixed", **values: Any) -> sl.SlotBatch:
    config = sl.BatchConfig(
        **{
            "max_num_seqs": slots, "max_model_len": 48, "max_chunk_tokens": 24, "block_size": 48, "vocab_size": VOCAB,
            "spec_method": "mtp", "num_draft_tokens": shape.drafts, "mtp_levels": shape.levels, "role": role, **values,
        }
    )  # fmt: skip
    return sl.SlotBatch(sl.target_layout(config) | sl.mtp_layout(config), backend(framework))


def rows_of(packed: Any) -> list[tuple[list[int], list[int]]]:
    """(ids, positions) of each position of a step or a draft, padding removed."""
    ids, at = host(packed.input_ids).tolist(), host(packed.positions).tolist()
    cu = host(packed.cu_seqlens_q).tolist()
    return [(ids[a:b], at[a:b]) for a, b in itertools.pairwise(cu)]


def commit(batch: sl.SlotBatch, step: sl.Ticket, tokens: Sequence[int], count: int = 1) -> None:
    """Every row accepts the first ``count`` of ``tokens``."""
    size, width = batch.config.max_num_seqs, batch.config.num_drafts + 1
    block = np.full((size, width), -1)
    block[:, : len(tokens)] = tokens
    sl.commit_step(batch, step, tensor(batch.backend.framework, block), np.full(size, count, np.int32))


@st.composite
def chunkings(draw: st.DrawFn, length: int, levels: int, longest: int) -> list[tuple[int, int]]:
    """Chunks that I2 accepts: those that are not the last leave at least M tokens."""
    chunks, start = [], 0
    while start < length:
        ends = [e for e in range(start + 1, min(start + longest, length) + 1) if e == length or length - e >= levels]
        end = draw(st.sampled_from(ends))
        chunks.append((start, end))
        start = end
    return chunks


def prefilled(
    framework: str, shape: Shape, request: sl.Request, chunks: list[tuple[int, int]], drafted: list[int], role: str
) -> list[tuple[list[int], list[int]]]:
    """Draft inputs and positions of each level of all chunks, one behind the other."""
    batch = make(framework, shape, role=role)
    seen: list[tuple[list[int], list[int]]] = [([], []) for _ in range(shape.levels)]
    for start, end in chunks:
        sl.insert_tasks(batch, [sl.PrefillTask(request, start, end, [0], 1)])
        step = sl.prepare_step(batch)
        commit(batch, step, [VOCAB - 1])
        for level in range(1, shape.levels + 1):
            given_ = np.array([drafted[: level - 1]] * 3, np.int64).reshape(3, level - 1)
            draft = sl.prepare_draft(batch, step, level, tensor(framework, given_))
            ids, at = rows_of(draft)[1]
            seen[level - 1][0].extend(ids)
            seen[level - 1][1].extend(at)
    return seen


def test_m3_chunking_is_invisible(framework: str) -> None:
    """Draft inputs and positions of any chunking that I2 accepts are those of the unchunked prefill."""

    @fewer(1, framework)
    @given(data=st.data(), shape=SHAPES, role=st.sampled_from(["mixed", "prefill"]))
    def invisible(data: st.DataObject, shape: Shape, role: str) -> None:
        ids = st.integers(0, VOCAB - 2)
        prompt = data.draw(st.lists(ids, min_size=1, max_size=18))
        output = data.draw(st.lists(ids, max_size=5))
        request = sl.Request("r", prompt, output)
        history = prompt + output
        drafted = data.draw(st.lists(ids, min_size=3, max_size=3))
        chunks = data.draw(chunkings(len(history), shape.levels, 6))
        whole = prefilled(framework, shape, request, [(0, len(history))], drafted, role)
        assert prefilled(framework, shape, request, chunks, drafted, role) == whole
        sequence = [*history, VOCAB - 1, *drafted]  # M1: history[start + k : end + k]
        for level, (tokens, at) in enumerate(whole, 1):
            assert tokens == sequence[level : level + len(history)]
            assert at == list(range(len(history)))

    invisible()


def test_l5_levels_along_a_request(framework: str) -> None:
    """At every level each token is the sequence's, shifted by its head; states lie where the level before put them."""

    @fewer(2, framework)
    @given(data=st.data(), shape=SHAPES, steps=st.integers(1, 4))
    def along(data: st.DataObject, shape: Shape, steps: int) -> None:
        ids = st.integers(0, VOCAB - 1)
        batch = make(framework, shape)
        sequences: dict[str, list[int]] = {}
        for name in "abc"[: data.draw(st.integers(1, 3))]:
            prompt = data.draw(st.lists(ids, min_size=1, max_size=8))
            sequences[name] = list(prompt)
            sl.insert_tasks(batch, [sl.PrefillTask(sl.Request(name, prompt), 0, len(prompt), [0])])
        for _ in range(steps):
            step = sl.prepare_step(batch)
            lengths = [len(row) for row, _ in rows_of(step)]
            counts = np.ones(3, np.int32)
            tokens = np.array([data.draw(st.lists(ids, min_size=4, max_size=4)) for _ in range(3)])
            prefill = host(batch["seq_lens_encoder"]) > 0
            for name, sequence in sequences.items():
                slot = batch.slot_of(name)
                most = 1 if prefill[slot] else lengths[slot]
                counts[slot] = data.draw(st.integers(1, most))
                sequence += tokens[slot, : counts[slot]].tolist()
            sl.commit_step(batch, step, tensor(framework, tokens[:, : shape.drafts + 1]), counts)
            drafts = np.array([data.draw(st.lists(ids, min_size=3, max_size=3)) for _ in range(3)])[:, : shape.drafts]
            before: Any = step
            for level in range(1, shape.drafts + 1):
                draft = sl.prepare_draft(batch, step, level, tensor(framework, drafts[:, : level - 1]))
                _check_level(batch, shape, level, draft, before, sequences, drafts)
                before = draft
            sl.commit_drafts(batch, step, tensor(framework, drafts))

    along()


def _check_level(
    batch: sl.SlotBatch,
    shape: Shape,
    level: int,
    draft: sl.Draft,
    before: Any,
    sequences: dict[str, list[int]],
    drafts: Any,
) -> None:
    head = min(level, shape.levels)
    number = int(host(draft.num_logits)[0])
    ends = dict(zip(host(draft.logits_slots)[:number].tolist(), host(draft.logits_rows)[:number].tolist(), strict=True))
    assert sorted(ends) == sorted(batch.slot_of(name) for name in sequences)
    cu = host(draft.cu_seqlens_q).tolist()
    for name, sequence in sequences.items():
        slot = batch.slot_of(name)
        known = sequence + drafts[slot].tolist()
        tokens, at = rows_of(draft)[slot]
        assert tokens == [known[p + head] for p in at]
        assert at == list(range(at[0], at[0] + len(at)))
        assert at[-1] == len(sequence) - 2 + max(0, level - shape.levels)
        assert ends[slot] == cu[slot + 1] - 1  # the last token predicts
        # The state of a token is that of its own place one level before; above M it is the place before it.
        states = host(before.positions)[host(draft.hidden_rows)[cu[slot] : cu[slot + 1]]].tolist()
        assert states == [p - (level > shape.levels) for p in at]
        owners = host(before.batch_id_per_token)[host(draft.hidden_rows)[cu[slot] : cu[slot + 1]]]
        assert (owners == slot).all()


def test_m4_resolving(framework: str) -> None:
    """The lookahead where there is one, else the prediction; any slice of rows gives the same rows."""

    @fewer(2, framework)
    @given(data=st.data(), rows=st.integers(0, 5), levels=st.integers(1, 3), ids=st.sampled_from(["int64", "int32"]))
    def resolving(data: st.DataObject, rows: int, levels: int, ids: str) -> None:
        def block(low: int) -> Any:
            cells = st.lists(st.integers(low, 9), min_size=levels, max_size=levels)
            made = [data.draw(cells) for _ in range(rows)]
            return np.array(made, ids).reshape(rows, levels)

        lookahead, predicted = block(-1), block(0)
        one, two = tensor(framework, lookahead), tensor(framework, predicted)
        got = sl.mtp_next_tokens(one, two)
        assert type(got) is type(one)
        assert host(got).tolist() == next_tokens(lookahead, predicted)
        assert (host(got) >= 0).all()  # M5
        cut = data.draw(st.integers(0, rows))
        parts = [host(sl.mtp_next_tokens(one[a:b], two[a:b])) for a, b in ((0, cut), (cut, rows)) if b > a]
        assert [row for part in parts for row in part.tolist()] == host(got).tolist()
        assert np.array_equal(host(one), lookahead)
        assert np.array_equal(host(two), predicted)

    resolving()


def test_greedy_verification(framework: str) -> None:
    """The longest run of drafts that the target would have chosen, and its own token behind them."""

    @fewer(2, framework)
    @given(data=st.data(), rows=st.integers(1, 5), drafts=st.integers(1, 4), ids=st.sampled_from(["int64", "int32"]))
    def verification(data: st.DataObject, rows: int, drafts: int, ids: str) -> None:
        made = st.lists(st.integers(-1, 1), min_size=drafts, max_size=drafts)
        chosen = st.lists(st.integers(0, 1), min_size=drafts + 1, max_size=drafts + 1)
        left = np.array([data.draw(made) for _ in range(rows)], ids)
        right = np.array([data.draw(chosen) for _ in range(rows)], ids)
        one, two = tensor(framework, left), tensor(framework, right)
        tokens, counts = sl.verify_greedy(one, two)
        assert type(tokens) is type(counts) is type(one)
        assert (host(tokens).dtype, host(counts).dtype) == (right.dtype, np.dtype("int32"))
        assert (host(tokens).tolist(), host(counts).tolist()) == greedy(left, right)
        assert np.array_equal(host(one), left)
        assert np.array_equal(host(two), right)

    verification()


def test_m9_drafts_within_the_length_limit(framework: str) -> None:
    """A slot never drafts past its limit, whatever is offered."""

    @fewer(2, framework)
    @given(data=st.data(), most=st.integers(1, 8), shape=SHAPES)
    def within(data: st.DataObject, most: int, shape: Shape) -> None:
        batch = make(framework, shape)
        request = sl.Request("r", [1, 2], sampling=sl.SamplingParams(max_dec_len=most))
        sl.insert_tasks(batch, [sl.PrefillTask(request, 0, 2, [0], 2)])
        generated = 0
        while generated < most:
            step = sl.prepare_step(batch)
            length = int(host(step.cu_seqlens_q)[3] - host(step.cu_seqlens_q)[2])
            count = 1 if generated == 0 else data.draw(st.integers(1, length))
            assert generated + (length if generated else 1) <= most  # never more than may be accepted
            commit(batch, step, [5] * (shape.drafts + 1), count)
            offered = np.array([data.draw(st.lists(st.integers(-1, 9), min_size=shape.drafts, max_size=shape.drafts))
                                for _ in range(3)])  # fmt: skip
            sl.commit_drafts(batch, step, tensor(framework, offered))
            generated += count
            ids = offered[2].tolist()
            kept = ids[: ids.index(-1)] if -1 in ids else ids
            kept = kept[: max(0, most - generated - 1)]
            if generated < most:
                row = batch.host_array("draft_tokens")[2].tolist()
                assert row == [5, *kept, *[-1] * (shape.drafts - len(kept))]
                assert batch.host_array("actual_draft_token_num")[2] == len(kept)
                assert batch.host_array("seq_lens_this_time")[2] == 1 + len(kept)
        assert batch.host_array("stop_flags")[2]

    within()
