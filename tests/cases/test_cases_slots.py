"""CASES.md, "Slots": C25 to C36."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from frameworks import backend

import slotline as sl

Maker = Callable[..., sl.SlotBatch]


def build(framework: str, /, num_seqs: int = 4, **values: Any) -> sl.SlotBatch:
    config = sl.BatchConfig(
        max_num_seqs=num_seqs, max_model_len=16, max_chunk_tokens=16, block_size=4, vocab_size=100,
        spec_method="mtp", num_draft_tokens=3, max_bad_tokens=4, hidden_size=3, hybrid="ngram", **values,
    )  # fmt: skip
    layout = sl.target_layout(config, multimodal=True) | sl.mtp_layout(config)
    own = sl.Field("own", (2, "max_num_seqs", 3), "float32", 0.5, slot_axis=1)
    return sl.SlotBatch(layout.extend(own), backend(framework))


@pytest.fixture
def make(framework: str) -> Maker:
    """Batches on each framework."""
    return functools.partial(build, framework)


def prefill(request_id: str, slot: int | None = None, **kw: Any) -> sl.PrefillTask:
    return sl.PrefillTask(sl.Request(request_id, [1, 2, 3], **kw), 0, 3, [0, 1, 2, 3], slot)


def rows(batch: sl.SlotBatch, name: str) -> Any:
    """A copy of a field with its slots first."""
    return np.moveaxis(batch.host_array(name), batch.layout[name].slot_axis or 0, 0).copy()


def pointer(batch: sl.SlotBatch, name: str) -> int:
    tensor = batch[name]
    if isinstance(tensor, np.ndarray):
        return int(tensor.ctypes.data)
    return batch.backend.inspect(tensor).pointer


def mark(batch: sl.SlotBatch) -> None:
    """Every cell of slot i becomes i + 1 (as far as its dtype can tell), on the device and in host fields."""
    for f in batch.layout:
        values = np.arange(1, batch.config.max_num_seqs + 1).astype(f.dtype)
        if f.dtype == "bool":
            values = np.arange(batch.config.max_num_seqs) % 2 == 1
        shape = [1] * len(batch.layout.shape(f.name))
        shape[f.slot_axis or 0] = -1
        block = np.broadcast_to(values.reshape(shape), batch.layout.shape(f.name))
        sl.async_set_value(batch[f.name], block)  # host fields are the framework's own tensors too (F2)
        if f.residency == "mirrored":
            batch.mirror(f.name)[...] = block


def test_c25_swap_exchanges(make: Maker) -> None:  # S4
    batch = make()
    sl.async_set_value(batch["bad_tokens"][0:2], [[1, 1, 1, 0], [0, 0, 0, 1]])
    batch.swap(0, 1)
    assert batch.host_array("bad_tokens")[:2].tolist() == [[0, 0, 0, 1], [1, 1, 1, 0]]
    mark(batch)
    before = {n: rows(batch, n) for n in batch.layout.names}
    batch.swap(2, 2)
    for name, old in before.items():
        assert np.array_equal(rows(batch, name), old), name
    for i in range(3):
        batch.swap(i, i + 1)
    for name, old in before.items():
        assert np.array_equal(rows(batch, name), old[[1, 2, 3, 0]]), name


def test_c26_lists_follow_their_requests(make: Maker) -> None:  # F5, S5, P2
    batch = make()
    allowed = batch.side_table("allowed", lambda request: request.extra.get("allowed", "all"))
    sl.insert_tasks(batch, [prefill("a"), prefill("b"), prefill("c", extra={"allowed": {3, 4}})])
    batch.release(["b"])
    assert batch.condense() == [(2, 1)]
    sl.insert_tasks(batch, [prefill("d")])
    assert batch.slot_of("d") == 2
    assert list(allowed) == ["all", {3, 4}, "all", None]


def test_c28_swap_covers_every_field(make: Maker) -> None:  # S3, S4
    batch = make()
    mark(batch)
    for name in batch.layout.names:
        assert not np.array_equal(rows(batch, name)[0], rows(batch, name)[1]), name
    before = {n: rows(batch, n) for n in batch.layout.names}
    mirrors = {f.name: batch.mirror(f.name).copy() for f in batch.layout if f.residency == "mirrored"}
    batch.swap(1, 3)
    for name, old in before.items():
        assert np.array_equal(rows(batch, name), old[[0, 3, 2, 1]]), name
    for name, old in mirrors.items():
        assert np.array_equal(batch.mirror(name), old[[0, 3, 2, 1]]), name


def test_c29_late_counts(make: Maker) -> None:  # S2
    batch = make()
    sl.insert_tasks(batch, [prefill(r) for r in "ABC"])
    first = batch.ticket()
    sl.commit_step(batch, first, np.full((4, 4), 9), np.ones(4, np.int32))
    sl.commit_drafts(batch, first, np.full((4, 3), 8))
    late = batch.ticket()
    batch.release(["A"])
    assert batch.condense() == [(2, 0)]
    sl.insert_tasks(batch, [prefill("D")])
    assert [batch.slot_of(r) for r in "CBD"] == [0, 1, 2]
    sl.commit_step(batch, late, np.full((4, 4), 7), np.array([4, 2, 3, 0], np.int32))
    assert batch.host_array("accept_num").tolist() == [3, 2, 0, 0]
    outputs = {o.request_id: (len(o.tokens), o.stale) for o in batch.fetch(late).result()}
    assert outputs == {"A": (4, True), "B": (2, False), "C": (3, False)}
    assert batch.stats["stale_results"] == 1


def test_c31_named_and_free_slots(make: Maker) -> None:  # S1, S7
    batch = make()
    sl.insert_tasks(batch, [prefill("x", 0), prefill("y", 2)])
    assert sl.insert_tasks(batch, [prefill("z")]).slots == {"z": 1}
    with pytest.raises(sl.TaskError) as caught:
        sl.insert_tasks(batch, [prefill("w", 2)])
    assert tuple(caught.value.errors[0]) == ("w", "slot", 2, "y")
    batch.release(["x"])
    batch.condense()
    assert batch.occupied == [0, 1]
    assert len({batch.owner(s) for s in batch.occupied}) == 2
    with pytest.raises(sl.TaskError):
        batch.slot_of("nobody")


def test_c32_mirrors_equal_the_device(make: Maker) -> None:  # F2
    batch = make(6)
    mirrored = [f.name for f in batch.layout if f.residency == "mirrored"]
    rng = random.Random(5)
    for _ in range(1000):
        ids = [batch.owner(s) for s in batch.occupied]
        kind = rng.choice(["insert", "insert", "swap", "condense", "release", "decode"])
        if kind == "insert" and len(ids) < 6:
            sl.insert_tasks(batch, [prefill(f"r{rng.random()}")])
        elif kind == "swap":
            batch.swap(rng.randrange(6), rng.randrange(6))
        elif kind == "condense":
            batch.condense()
        elif kind == "release" and ids:
            batch.release([rng.choice(ids) or ""])
        elif kind == "decode" and ids:
            sl.insert_tasks(batch, [sl.DecodeTask(rng.choice(ids) or "", [rng.randrange(50)])])
        for name in mirrored:
            assert np.array_equal(batch.mirror(name), batch.host_array(name)), name
    batch.release([batch.owner(s) or "" for s in batch.occupied])
    assert mirrored
    for name in mirrored:
        assert (batch.mirror(name) == batch.layout[name].fill).all(), name


def test_c34_rows_that_end_together(make: Maker) -> None:  # L7, S1
    batch = make()
    ids = [f"r{i}" for i in range(4)]
    limits = [8, 1, 1, 1]
    sl.insert_tasks(
        batch, [prefill(r, sampling=sl.SamplingParams(max_dec_len=n)) for r, n in zip(ids, limits, strict=True)]
    )
    ticket = batch.ticket()
    sl.commit_step(batch, ticket, np.full((4, 4), 9), np.ones(4, np.int32))
    ended = [o.request_id for o in batch.fetch(ticket).result() if o.finish_reason]
    assert ended == ids[1:]
    batch.release(ended)
    assert batch.occupied == [0]
    batch.release(["r0"])
    for wave in range(100):
        receipt = sl.insert_tasks(batch, [prefill(f"w{wave}-{i}") for i in range(4)])
        assert sorted(receipt.slots.values()) == [0, 1, 2, 3]
        batch.release(receipt.slots)
    assert batch.occupied == []


def test_c35_reset_equals_fresh(make: Maker) -> None:  # S6
    batch, fresh = make(), make()
    table = batch.side_table("table", lambda request: [1])
    pointers = {n: pointer(batch, n) for n in batch.layout.names}
    rng = random.Random(1)
    for i in range(20):
        if len(batch.occupied) < 4:
            sl.insert_tasks(batch, [prefill(f"r{i}", hidden_state=[1, 2, 3], sampling=sl.SamplingParams(top_k=4))])
        ticket = batch.ticket()
        sl.commit_step(batch, ticket, np.full((4, 4), 9), np.ones(4, np.int32))
        batch.swap(rng.randrange(4), rng.randrange(4))
        if i % 5 == 0:
            batch.release([batch.owner(batch.occupied[0]) or ""])
    open_step = batch.ticket()
    gone: list[str] = []
    batch.on_release(lambda request_id, slot: gone.append(request_id))
    had = [batch.owner(s) for s in batch.occupied]
    batch.reset()
    assert gone == had
    assert batch.diff(fresh) == []
    for f in batch.layout:
        if f.on_device:
            assert batch.backend.inspect(batch[f.name]).place == fresh.backend.inspect(fresh[f.name]).place
        assert (batch[f.name].dtype, batch[f.name].shape) == (fresh[f.name].dtype, fresh[f.name].shape)
        if f.residency == "mirrored":
            assert np.array_equal(batch.mirror(f.name), fresh.mirror(f.name))
    assert pointers == {n: pointer(batch, n) for n in batch.layout.names}
    assert (batch.occupied, batch.launch_tokens, list(table)) == ([], 0, [None] * 4)
    sl.commit_step(batch, open_step, np.full((4, 4), 9), np.ones(4, np.int32))
    assert all(o.stale for o in batch.fetch(open_step).result())
    assert batch.digest() == fresh.digest()


def test_c35_an_error_in_reset_propagates(make: Maker) -> None:  # S6
    batch = make()
    sl.insert_tasks(batch, [prefill("r")])

    def refuse(request_id: str, slot: int) -> None:
        raise RuntimeError(f"{request_id} in {slot}")

    batch.on_release(refuse)
    with pytest.raises(RuntimeError, match="r in 0"):
        batch.reset()


def test_c36_nothing_of_a_former_request(make: Maker) -> None:  # P2
    batch = make()
    args = batch.side_table("args", lambda request: dict(request.extra))
    first = prefill("one", 2, sampling=sl.SamplingParams(bad_tokens=[5, 6, 7]), extra={"a": 1})
    sl.insert_tasks(batch, [first])
    assert batch.host_array("bad_tokens")[2].tolist() == [5, 6, 7, -1]
    sl.insert_tasks(batch, [sl.AbortTask("one"), prefill("two", 2)])
    assert batch.host_array("bad_tokens")[2].tolist() == [-1] * 4
    assert batch.host_array("bad_tokens_len")[2] == 0
    assert args[2] == {}
