"""Recordings of layouts with fields of one's own, of every role and method; what is hidden (rule R)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from frameworks import backend
from recordings import (
    LAYOUT,
    OWN,
    PROMPT,
    both,
    field,
    plain,
    prefill,
)

import slotline as sl
from slotline.core.redaction import Permutation
from slotline.testing import strategies as some

# -- own fields


def test_r_token_ids_of_ones_own_whose_fill_is_no_pad_token(tmp_path: Path) -> None:
    """0 is the default fill, and a token id like any other; constants of rules too."""
    batch = plain(
        field("own", 4, token_ids=True, on={"prefill": sl.extra("own")}),
        field("mark", token_ids=True, fill=5, on={"prefill": 12}),
        field("by_axis", dtype="int32", token_ids=True, residency="mirrored", on={"prefill": sl.extra("own_first")}),
    )
    with sl.record(batch, tmp_path / "run.rec"):
        for own in ([11_113, 22_225], np.array([3.0, 28_001.0]), np.array([True, False]), 29_999, [[9, 8, 7, 6]][0]):
            sl.insert_tasks(batch, [prefill(sl.Request("a", PROMPT, extra={"own": own, "own_first": 11_113}))])
            batch.release(["a"])
    both(tmp_path / "run.rec")
    raw = (tmp_path / "run.rec").read_bytes()
    assert all(np.array([t], d).tobytes() not in raw for t in (11_113, 28_001, 29_999) for d in ("<i4", "<i8", "<f8"))


def test_r_a_field_that_takes_a_column_of_token_ids_is_hidden_though_it_does_not_say_so(tmp_path: Path) -> None:
    batch = plain(
        field("copy", "max_model_len", fill=-1, on={"prefill": sl.column("history")}),
        field("as_float", "max_model_len", dtype="float32", fill=-1.0, on={"prefill": sl.column("history")}),
        field("host_copy", "max_model_len", residency="host", fill=-1, on={"prefill": sl.column("history")}),
    )
    with sl.record(batch, tmp_path / "run.rec"):
        sl.insert_tasks(batch, [prefill(sl.Request("a", PROMPT))])
    both(tmp_path / "run.rec")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ([field("ids", dtype="int8", token_ids=True)], "'ids' is int8, which cannot hold every token id below 30000"),
        ([field("ids", dtype="float16", token_ids=True)], "'ids' is float16"),
        ([field("ids", dtype="bool", fill=False, token_ids=True)], "'ids' is bool"),
        ([field("ids", token_ids=True, on={"prefill": sl.column("prompt_len")})], "column\\('prompt_len'\\)"),
        ([field("ids", token_ids=True, on={"prefill": sl.extra("x")}), field("other", on={"prefill": sl.extra("x")})],
         "'other' takes extra\\('x'\\)"),
    ],
)  # fmt: skip
def test_r_what_cannot_be_redacted_is_refused_before_the_file_is_touched(
    fields: list[sl.Field], words: str, tmp_path: Path
) -> None:
    (tmp_path / "run.rec").write_bytes(b"mine")
    with pytest.raises(sl.PacketError, match=words), sl.record(plain(*fields), tmp_path / "run.rec"):
        pass
    assert (tmp_path / "run.rec").read_bytes() == b"mine"
    with sl.record(plain(*fields), tmp_path / "run.rec", redact=False):
        pass


def test_r_extras_of_every_kind(tmp_path: Path) -> None:
    batch = plain(
        field("score", 2, dtype="float32", fill=0.0, on={"prefill": sl.extra("score")}),
        field("wide", dtype="float64", fill=0.0, on={"prefill": sl.extra("score_one")}),
        field("mask", 2, 3, dtype="bool", fill=False, residency="host", on={"prefill": sl.extra("mask")}),
        field("big", dtype="uint64", residency="mirrored", on={"prefill": sl.extra("big")}),
    )
    given = {"score": [float("nan"), float("-inf")], "mask": np.ones((2, 3), bool)[:, ::-1], "big": 2**64 - 1,
             "score_one": np.longdouble(0.25)}  # fmt: skip
    unused = {"text": "what the user said", "callback": print, "ragged": [[1], [2, 3]]}
    with sl.record(batch, tmp_path / "run.rec"):
        sl.insert_tasks(batch, [prefill(sl.Request("a", PROMPT, extra=given | unused))])
        sl.insert_tasks(batch, [prefill(sl.Request("b", PROMPT, extra={"mask": 1}), [3, 4])])
    both(tmp_path / "run.rec")
    assert b"what the user said" not in (tmp_path / "run.rec").read_bytes()


def test_r_only_some_fields_are_inserted_and_tensors_are_the_engines(tmp_path: Path) -> None:
    layout = some.full_layout(OWN)
    tensors = {name: np.empty(layout.shape(name), layout[name].dtype) for name in ("token_ids_all", "seq_lens_encoder")}
    batch = sl.SlotBatch(layout, backend("numpy"), tensors=tensors, only={"token_ids_all", "prompt_lens"})
    with sl.record(batch, tmp_path / "run.rec"):
        sl.insert_tasks(batch, [prefill(sl.Request("a", PROMPT))])
        batch.swap(0, 2)
        batch.release(["a"])
    both(tmp_path / "run.rec")


def test_r_hidden_states_that_the_layout_does_not_keep_are_left_out(tmp_path: Path) -> None:
    batch = plain()
    with sl.record(batch, tmp_path / "run.rec"):
        sl.insert_tasks(batch, [prefill(sl.Request("a", PROMPT, hidden_state=object()))])
    both(tmp_path / "run.rec")


# -- roles and methods


@pytest.mark.parametrize("role", ["mixed", "prefill", "decode"])
@pytest.mark.parametrize("method", ["none", "ngram", "mtp"])
def test_r_roles_and_methods(role: str, method: str, tmp_path: Path) -> None:
    hybrid: dict[str, Any] = {"hybrid": "ngram", "hidden_size": 2, "hidden_dtype": "float16"} if method == "mtp" else {}
    config = sl.BatchConfig(
        max_num_seqs=3, max_model_len=32, vocab_size=30_000, max_chunk_tokens=16, block_size=4, num_blocks=40,
        eos_token_ids=(2,), spec_method=method, num_draft_tokens=2, role=role, **hybrid,
    )  # fmt: skip
    batch = plain(config=config)
    drafts = [21_001, 21_002, *range(21_003, 21_030)] if role == "decode" else []
    state = np.array([0.1, 2.5]) if hybrid else None
    start = -(2**70) if role == "decode" else 0  # which is ignored there
    width = config.num_drafts + 1
    with sl.record(batch, tmp_path / "run.rec"):
        request = sl.Request("a", PROMPT, draft_token_ids=drafts, hidden_state=state)
        ends = sl.Request("b", PROMPT, draft_token_ids=[2, 4])  # the first token ends it (D4)
        for number, told in enumerate((request, ends)):
            task = sl.PrefillTask(told, start, 6, [3 * number + i for i in range(3)])
            sl.insert_tasks(batch, [task])
        for _ in range(3):
            step = sl.prepare_step(batch)
            sl.commit_step(batch, step, np.full((3, width), 23_001), np.ones(3, np.int64))
            if width > 1:
                sl.commit_drafts(batch, step, np.full((3, width - 1), 24_001))
            batch.fetch(step).result()
    both(tmp_path / "run.rec")
    raw = (tmp_path / "run.rec").read_bytes()
    assert all(np.array([t], d).tobytes() not in raw for t in (21_001, 23_001, 24_001) for d in ("<i4", "<i8"))


def test_r_redacted_two_tokens_stay_two_tokens_and_what_no_user_said_stays() -> None:
    hidden = Permutation(LAYOUT)
    ids = np.arange(-5, 30_005)
    out = hidden.of(ids)
    assert sorted(out.tolist()) == ids.tolist()
    kept = set(ids[out == ids].tolist())
    assert {0, 2, *range(-5, 0), *range(30_000, 30_005)} <= kept
    assert len(kept) < 40  # a random permutation has about one fixed point
