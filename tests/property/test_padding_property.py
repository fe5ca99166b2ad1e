"""Stop sequences as a padded block (P3); ragged rows packed, and padded again (P4, P5)."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
from frameworks import backend, fewer, host, tensor
from hypothesis import given
from hypothesis import strategies as st

import slotline as sl

SEQS = st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=5), max_size=4)


@given(
    seqs=SEQS, more=st.integers(0, 2), wider=st.integers(0, 2), pad=st.sampled_from([-1, -7]), tail=st.integers(0, 3)
)
def test_p3_the_block(seqs: list[list[int]], more: int, wider: int, pad: int, tail: int) -> None:
    rows, cells = len(seqs) + more, max(map(len, seqs), default=1) + wider
    given_ = [seq + [pad] * tail for seq in seqs]
    before = copy.deepcopy(given_)
    block, lens = sl.pad_stop_sequences(given_, rows, cells, pad=pad)
    assert given_ == before
    assert (block.dtype.name, block.shape) == ("int64", (rows, cells))
    assert (lens.dtype.name, lens.shape) == ("int32", (rows,))
    assert lens.tolist() == [len(s) for s in seqs] + [0] * more
    assert [row[:n].tolist() for row, n in zip(block, lens, strict=True)] == seqs + [[]] * more  # P5
    assert all((row[n:] == pad).all() for row, n in zip(block, lens, strict=True))


@given(seqs=SEQS.filter(len), data=st.data())
def test_p3_arrays_and_new_memory(seqs: list[list[int]], data: st.DataObject) -> None:
    arrays = [np.array(s, data.draw(st.sampled_from(["int64", "int32", "uint8"]))) for s in seqs]
    block, _ = sl.pad_stop_sequences(arrays, len(seqs), 5)
    assert block.tolist() == sl.pad_stop_sequences(seqs, len(seqs), 5)[0].tolist()
    block[:] = 0
    assert [a.tolist() for a in arrays] == seqs


@given(seqs=SEQS.filter(len), data=st.data())
def test_p3_refused_with_the_index(seqs: list[list[int]], data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(seqs) - 1))
    for bad in ([], [-1, -1], [1] * 6, [3, -2, 3]):
        wrong = [*seqs[:index], bad, *seqs[index + 1 :]]
        with pytest.raises(ValueError, match=rf"\b{index}\b"):
            sl.pad_stop_sequences(wrong, len(seqs), 5)
    with pytest.raises(ValueError, match=str(len(seqs))):
        sl.pad_stop_sequences(seqs, len(seqs) - 1, 5)


PAD = 3


def ragged(framework: str, prompts: list[list[int]], drafts: list[list[int]], width: int) -> sl.SlotBatch:
    """Rows 0, 1, ... prefill ``prompts``; behind them rows decode ``drafts`` (first the token accepted before)."""
    config = sl.BatchConfig(
        max_num_seqs=len(prompts) + len(drafts) + 1, max_model_len=16, max_chunk_tokens=8, block_size=16, vocab_size=20,
        pad_token_id=PAD, spec_method="ngram", num_draft_tokens=width,
    )  # fmt: skip
    batch = sl.SlotBatch(sl.target_layout(config), backend(framework))
    size = config.max_num_seqs
    for i in range(len(drafts)):
        request = sl.Request(f"d{i}", [1, 2])
        sl.insert_tasks(batch, [sl.PrefillTask(request, 0, 2, [0], len(prompts) + i)])
    tokens, more = np.zeros((size, width + 1), np.int64), np.full((size, width), -1)
    for i, row in enumerate(drafts):
        tokens[len(prompts) + i, 0] = row[0]
        more[len(prompts) + i, : len(row) - 1] = row[1:]
    if drafts:
        step = sl.prepare_step(batch)
        sl.commit_step(batch, step, tensor(framework, tokens), np.ones(size, np.int32))
        sl.commit_drafts(batch, step, tensor(framework, more))
    for i, prompt in enumerate(prompts):
        sl.insert_tasks(batch, [sl.PrefillTask(sl.Request(f"p{i}", prompt), 0, len(prompt), [0], i)])
    return batch


def test_p5_removing_padding_and_putting_it_back(framework: str) -> None:
    """For every ragged batch, in every order of its rows: packed, then laid out by the step's own arrays, the same."""

    @fewer(1, framework)
    @given(
        prompts=st.lists(st.lists(st.integers(0, 19), min_size=1, max_size=8), max_size=4),
        drafts=st.lists(st.lists(st.integers(0, 19), min_size=1, max_size=4), max_size=3),
        more=st.integers(0, 5),
        data=st.data(),
    )
    def round_trip(prompts: list[list[int]], drafts: list[list[int]], more: int, data: st.DataObject) -> None:
        batch = ragged(framework, prompts, drafts, 3)
        ids = [batch.owner(s) or "" for s in batch.occupied]
        rows: list[str] | None = None
        if data.draw(st.booleans()):
            shuffled = data.draw(st.permutations(ids))
            rows = list(shuffled[: data.draw(st.integers(0, len(ids)))])
        wanted = dict(zip([f"p{i}" for i in range(len(prompts))], prompts, strict=True))
        wanted |= dict(zip([f"d{i}" for i in range(len(drafts))], drafts, strict=True))
        taken = [i for i in ids if rows is None or i in rows]
        bound = sum(len(wanted[r]) if r[0] == "p" else 4 for r in taken)
        step = sl.prepare_step(batch, rows=rows, num_tokens=max(1, bound) + more)
        arrays = {name: host(getattr(step, name)) for name in ("input_ids", "positions", "batch_id_per_token")}
        cu = host(step.cu_seqlens_q)
        total = int(cu[-1])
        assert total == sum(len(wanted[r]) for r in taken)
        # by cu_seqlens, which go by position
        order = rows if rows is not None else [batch.owner(s) or "" for s in step.slots]
        for at, name in enumerate(order):
            row = arrays["input_ids"][cu[at] : cu[at + 1]].tolist()
            assert row == wanted.get(name, [])
        # by batch_id_per_token and positions, which go by slot
        block = np.full((batch.config.max_num_seqs, 16), -1)
        owner, inside = arrays["batch_id_per_token"][:total], arrays["positions"][:total]
        block[owner, inside] = arrays["input_ids"][:total]
        for name in taken:
            row = block[batch.slot_of(name)]
            assert row[row >= 0].tolist() == wanted[name]
        # P4: nothing points before the first cell; the rest is padding
        assert (owner >= 0).all()
        assert host(step.logits_rows).min() >= 0
        assert (arrays["input_ids"][total:] == PAD).all()
        assert (arrays["positions"][total:] == 0).all()
        assert (arrays["batch_id_per_token"][total:] == -1).all()

    round_trip()


def test_p4_no_rows_at_all(framework: str) -> None:
    batch = ragged(framework, [], [], 1)
    step: Any = sl.prepare_step(batch)
    assert step.num_tokens == 1
    assert [host(getattr(step, n)).tolist() for n in ("input_ids", "positions", "batch_id_per_token")] == [
        [PAD], [0], [-1]
    ]  # fmt: skip
    assert [host(step.cu_seqlens_q).tolist(), host(step.num_logits).tolist()] == [[0, 0], [0]]
