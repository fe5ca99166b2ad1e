"""A device that writes the required hooks and nothing else: the base class does the rest (rules B8, B10, B11, W1)."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import slotline as sl

PLUGINS = Path(__file__).parents[1] / "plugins"
CONFIG = sl.BatchConfig(
    max_num_seqs=4,
    max_model_len=32,
    max_chunk_tokens=8,
    block_size=4,
    num_blocks=64,
    vocab_size=100,
    eos_token_ids=(2,),
    spec_method="mtp",
    num_draft_tokens=2,
    hidden_size=3,
    hybrid="ngram",
)
LAYOUT = (sl.target_layout(CONFIG, multimodal=True) | sl.mtp_layout(CONFIG)).extend(
    sl.Field("across", (2, "max_num_seqs", 3), "int16", 5, slot_axis=1, on={"prefill": sl.extra("across")}),
    sl.Field("global_counter", (2,), "int64", 0, slot_axis=None),
)


@pytest.fixture(scope="module")
def hostmem() -> Iterator[sl.Backend]:
    sys.path.insert(0, str(PLUGINS / "hostmem"))
    try:
        from hostmem import HostMemory  # type: ignore[import-not-found]

        yield HostMemory()
    finally:
        sys.path.remove(str(PLUGINS / "hostmem"))


def play(batch: sl.SlotBatch) -> list[str]:
    """A bit of everything; the digest after each operation."""
    digests = []
    width = CONFIG.num_drafts + 1

    def tell() -> None:
        digests.append(batch.digest())

    params = sl.SamplingParams(stop_seqs=[[7, 8]], bad_tokens=[3], temperature=0.5, max_dec_len=9)
    a = sl.Request(
        "a", range(10, 22), sampling=params, hidden_state=[1.0, 2.0, 3.0], extra={"across": [[1, 2], [3, 4]]}
    )
    b = sl.Request("b", [5, 6, 7])
    sl.insert_tasks(batch, [sl.PrefillTask(a, 0, 8, [1, 2, 3]), sl.PrefillTask(b, 0, 3, [9])])
    tell()
    step = batch.ticket()
    sl.insert_tasks(batch, [sl.AbortTask("b"), sl.PrefillTask(sl.Request("c", [1]), 0, 1, [8], slot=3)])
    sl.commit_step(batch, step, np.full((4, width), 40), [1, 1, 1, 1])
    tell()
    sl.insert_tasks(batch, [sl.PrefillTask(a, 8, 12, [1, 2, 3]), sl.DecodeTask("c", new_blocks=[30, 31])])
    step = batch.ticket()
    sl.commit_step(batch, step, np.full((4, width), 50), [1, 1, 1, 1])
    sl.commit_drafts(batch, step, np.full((4, width - 1), 7))
    digests.append(str(batch.fetch(step).result()))
    tell()
    batch.swap(0, 2)
    tell()
    batch.condense()
    tell()
    step = batch.ticket()
    sl.commit_step(batch, step, np.array([[7, 8, 9]] * 4), [3, 3, 3, 3])
    digests.append(str(batch.fetch(step).result()))
    batch.release(["a"])
    tell()
    batch.reset()
    tell()
    return digests


def test_b8_the_same_bytes_as_the_default_device(hostmem: sl.Backend) -> None:
    left, right = sl.SlotBatch(LAYOUT, hostmem), sl.SlotBatch(LAYOUT, sl.load_backend("cpu"))
    assert play(left) == play(right)
    assert left.diff(right) == []


def test_b11_steps_by_copies_are_counted(hostmem: sl.Backend) -> None:
    batch = sl.SlotBatch(LAYOUT, hostmem)
    before = batch.stats["device_to_host"]
    sl.insert_tasks(batch, [sl.PrefillTask(sl.Request("a", [1, 2]), 0, 2, [1])])
    step = batch.ticket()
    sl.commit_step(batch, step, np.full((4, 3), 5), [1, 1, 1, 1])
    assert batch.stats["device_to_host"] > before
    assert "launch" in batch.stats.by_operation("device_to_host")


@given(data=st.data())
def test_w1_views_are_written_where_they_are(hostmem: sl.Backend, data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    keys = tuple(
        data.draw(
            st.one_of(st.integers(0, n - 1), st.builds(slice, st.integers(0, n - 1), st.just(n), st.integers(1, 3)))
        )
        for n in shape
    )
    tensor = hostmem._allocate([("x", tuple(shape), "int32")])[0]
    expected = np.zeros(shape, np.int32)
    view = expected[(*keys, ...)]
    values = np.arange(1, view.size + 1).reshape(view.shape)
    view[...] = values
    sl.async_set_value(tensor[keys], values)
    assert np.array_equal(hostmem.read(tensor), expected)


def test_w2_w3_device_sources_are_checked_by_dtype(hostmem: sl.Backend) -> None:
    def tensor(dtype: str) -> Any:
        return hostmem._allocate([("x", (3,), dtype)])[0]

    wide, narrow, real = tensor("int64"), tensor("int32"), tensor("float32")
    sl.async_set_value(narrow, [1, 2, 3])
    sl.async_set_value(wide, narrow)
    assert hostmem.read(wide).tolist() == [1, 2, 3]
    sl.async_set_value(wide[:2], wide[1:])  # W7
    assert hostmem.read(wide).tolist() == [2, 3, 3]
    sl.async_set_value(tensor("float16"), real)
    sl.async_set_value(tensor("float64"), narrow)
    sl.async_set_value(narrow, tensor("bool"))
    for source, target in ((wide, narrow), (real, narrow), (narrow, real), (wide, tensor("uint64"))):
        with pytest.raises(TypeError, match="without loss"):
            sl.async_set_value(target, source)


def test_f4_a_tensor_that_does_not_fit_is_refused(hostmem: sl.Backend) -> None:
    wrong = hostmem._allocate([("x", (4,), "int32")])[0]
    for name, tensor, says in (
        ("temperature", wrong, "needed: float32"),
        ("step_idx", np.zeros(4, np.int32), "of backend 'hostmem'"),
        ("is_chunk_step", np.zeros(3, bool), "needed: a host array of bool"),
    ):
        with pytest.raises(sl.LayoutError, match=says):
            sl.SlotBatch(LAYOUT, hostmem, tensors={name: tensor})
    batch = sl.SlotBatch(LAYOUT, hostmem, tensors={"step_idx": wrong})
    assert batch["step_idx"] is wrong


def test_f4_an_adopted_tensor_may_be_a_view_of_a_wider_one(hostmem: sl.Backend) -> None:
    # Rows of an insertion are found by the tensor's own strides, not by those of a dense copy.
    digests = []
    for adopted in (False, True):
        tensors = {}
        for name in ("token_ids_all", "input_ids", "across", "step_idx") if adopted else ():
            shape, dtype = LAYOUT.shape(name), LAYOUT[name].dtype
            wide = hostmem._allocate([(name, tuple(n + 2 for n in shape), dtype)])[0]
            tensors[name] = wide[tuple(slice(1, n + 1) for n in shape)]
        batch = sl.SlotBatch(LAYOUT, hostmem, tensors=tensors)
        digests.append(play(batch))
        for name, tensor in tensors.items():
            assert batch[name] is tensor
            edge = hostmem.read(
                sys.modules["hostmem"].Tensor(tensor.memory, [n + 2 for n in tensor.shape], tensor.dtype)
            )
            edge[tuple(slice(1, n + 1) for n in tensor.shape)] = 0
            assert not edge.any(), name
    assert digests[0] == digests[1]


@pytest.mark.parametrize("name", ["hostmem", "cpu", "sim"])
def test_arguments_of_a_backend_are_named(hostmem: sl.Backend, name: str) -> None:
    made: Any = hostmem if name == "hostmem" else sl.load_backend(name)
    kind = type(made)
    for wrong in (-1, 0, 2.5, "4096", True, None, np.zeros(2, int), 1 << 60):
        with pytest.raises(sl.ConfigError, match=r"staging_bytes is .*, allowed: a whole number from 1"):
            kind(staging_bytes=wrong)
    assert type(kind(staging_bytes=np.int64(4096)).staging_bytes) is int
    with pytest.raises(ValueError, match=r"tensor 'x' stands 2 times, allowed: once"):
        made.empty([("x", (2,), "int32"), ("y", (2,), "int32"), ("x", (3,), "int64")])
    with pytest.raises(ValueError, match=r"'x' has shape \[2, -3\], allowed: whole numbers of at least 0"):
        made.empty([("x", (2, -3), "int32")])
    with pytest.raises(TypeError, match=r"'x' has shape \('2',\), allowed: a tuple of whole numbers"):
        made.empty([("x", ("2",), "int32")])
    assert made.inspect(made.empty([("x", (np.int64(2), 0), "int32")])["x"]).shape == (2, 0)


def test_b4_an_unknown_framework_is_refused(hostmem: sl.Backend) -> None:
    with pytest.raises(sl.BackendUnavailable, match="no framework 'torch', allowed: numpy"):
        type(hostmem)(framework="torch")


def test_b9_without_streams_every_event_has_passed(hostmem: sl.Backend) -> None:  # B9, B12
    tensor = hostmem._allocate([("x", (2,), "int32")])[0]
    event = sl.async_set_value(tensor, 3)
    event.sync()
    event.wait()
    hostmem.synchronize()
    assert event.is_done
    assert not hostmem.abilities.streams


def test_b3_a_probe_never_raises() -> None:  # B3
    class Odd(type(sl.load_backend("cpu"))):  # type: ignore[misc]
        name = "odd"
        answer: Any = None

        @classmethod
        def _probe(cls, *, framework: str | None, vendor: str | None, device: int) -> Any:
            if isinstance(cls.answer, Exception):
                raise cls.answer
            return cls.answer

    for answer, says in (
        (7, "TypeError: Odd._probe returned int"),
        (ValueError("x"), "ValueError: x"),
        (sl.BackendUnavailable("install it"), "install it"),
    ):
        Odd.answer = answer
        verdict = Odd.probe()
        assert not verdict.usable
        assert says in verdict.reason
