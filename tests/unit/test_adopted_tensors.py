"""Tensors that the engine allocated, for each framework (F4), and the bytes that all end with (B8)."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from frameworks import backend, host

import slotline as sl

Make = Callable[..., Any]
LAYOUT = sl.target_layout(sl.BatchConfig(max_num_seqs=2, max_model_len=8, vocab_size=9))


class TestAdoption:
    def test_f4_an_adopted_tensor_is_the_engine_s_own(self, cpu: sl.Backend, tensor: Make) -> None:
        mine = tensor(np.zeros((2, 3), np.int32))
        batch = sl.SlotBatch(LAYOUT, cpu, tensors={"step_idx": mine[:, 1]})
        before = cpu.inspect(mine)
        sl.insert_tasks(batch, [sl.PrefillTask(sl.Request("a", [1, 2], output_token_ids=[3]), 0, 3, [0])])
        assert host(mine).tolist() == [[0, 1, 0], [0, 0, 0]]
        batch.reset()
        assert host(mine).tolist() == [[0, 0, 0], [0, 0, 0]]
        assert cpu.inspect(mine) == before

    @pytest.mark.parametrize(
        ("shape", "dtype", "words"),
        [
            ((3,), "int32", r"int32 \(3,\), needed: int32 \(2,\)"),
            ((2,), "int64", r"int64 \(2,\), needed: int32 \(2,\)"),
        ],
    )
    def test_f4_shape_and_dtype_are_checked(
        self, shape: tuple[int, ...], dtype: str, words: str, cpu: sl.Backend, tensor: Make
    ) -> None:
        with pytest.raises(sl.LayoutError, match=f"'step_idx': got {words}"):
            sl.SlotBatch(LAYOUT, cpu, tensors={"step_idx": tensor(np.zeros(shape, dtype))})

    def test_f4_what_cannot_be_a_buffer_is_refused(self, cpu: sl.Backend, framework: str, tensor: Make) -> None:
        lib = importlib.import_module(framework)
        frozen = np.zeros(2, np.int32)
        frozen.flags.writeable = False
        refused: list[tuple[Any, str]] = [([0, 0], f"got list, needed: a {framework} tensor of int32")]
        if framework == "numpy":
            refused += [(frozen, "read-only"), (np.broadcast_to(np.int32(0), 2), "read-only|several cells")]
            refused += [(np.zeros(2, ">i4"), "byte order")]
        else:
            refused += [(np.zeros(2, np.int32), f"got numpy.ndarray, needed: a {framework} tensor")]
        if framework == "torch":
            refused += [
                (lib.zeros(1, dtype=lib.int32).expand(2), "several cells"),
                (lib.zeros(2, device="meta"), "on meta"),
            ]
        for given, words in refused:
            with pytest.raises(sl.LayoutError, match=words):
                sl.SlotBatch(LAYOUT, cpu, tensors={"step_idx": given})
        one = tensor(np.zeros(2, np.int32))
        with pytest.raises(sl.LayoutError, match="cannot share memory"):
            sl.SlotBatch(LAYOUT, cpu, tensors={"step_idx": one, "accept_num": one})
        with pytest.raises(sl.LayoutError, match="cannot share memory"):
            sl.SlotBatch(LAYOUT, cpu, tensors={"step_idx": one[:], "accept_num": one[:]})

    def test_f4_a_float_buffer_with_gradients_is_refused(self, cpu: sl.Backend, framework: str) -> None:
        if framework == "numpy":
            pytest.skip("NumPy has no gradients")
        weights = importlib.import_module(framework).zeros([2])
        if framework == "torch":
            weights.requires_grad_()
        else:
            weights.stop_gradient = False
        with pytest.raises(sl.LayoutError, match=r"'temperature': the tensor is .*detach\(\)"):
            sl.SlotBatch(LAYOUT, cpu, tensors={"temperature": weights})


def test_b8_every_framework_ends_with_the_same_bytes(cpu: sl.Backend) -> None:
    digests = []
    for used in (cpu, backend("numpy")):
        batch = sl.SlotBatch(LAYOUT, used)
        tasks = [sl.PrefillTask(sl.Request(i, [1, 2, 3]), 0, 3, [b]) for i, b in (("a", 0), ("b", 1))]
        sl.insert_tasks(batch, tasks)
        digests.append(batch.digest())
        batch.swap(0, 1)
        batch.release(["a"])
        batch.condense()
        digests.append(batch.digest())
    assert digests[:2] == digests[2:]


def test_s6_a_field_without_axes_has_its_fill_and_gets_it_back(cpu: sl.Backend) -> None:
    batch = sl.SlotBatch(LAYOUT.extend(sl.Field("flag", (), "int32", 5, slot_axis=None)), cpu)
    assert cpu.read(batch["flag"]).tolist() == 5
    sl.async_set_value(batch["flag"], 6)
    assert cpu.read(batch["flag"]).tolist() == 6
    batch.reset()
    assert cpu.read(batch["flag"]).tolist() == 5


class TestHostFields:
    """F2: a host field is the framework's CPU tensor, made here or by the engine."""

    def test_f2_a_host_field_is_the_framework_s_own(self, cpu: sl.Backend, framework: str, tensor: Make) -> None:
        batch = sl.SlotBatch(LAYOUT, cpu)
        assert type(batch["is_chunk_step"]).__module__.split(".")[0] == framework
        sl.insert_tasks(batch, [sl.PrefillTask(sl.Request("a", [1, 2, 3]), 0, 2, [0])])
        assert host(batch["is_chunk_step"]).tolist() == [True, False]
        batch.swap(0, 1)
        assert host(batch["is_chunk_step"]).tolist() == [False, True]
        batch["is_chunk_step"][...] = tensor(np.array([True, False]))  # the tensor is the memory, not a copy of it
        assert batch.host_array("is_chunk_step").tolist() == [True, False]

    def test_f2_f4_an_adopted_host_field(self, cpu: sl.Backend, tensor: Make) -> None:
        mine = tensor(np.ones(2, bool))
        batch = sl.SlotBatch(LAYOUT, cpu, tensors={"is_chunk_step": mine})
        assert batch["is_chunk_step"] is mine
        sl.insert_tasks(batch, [sl.PrefillTask(sl.Request("a", [1, 2, 3]), 0, 2, [0])])
        assert host(mine).tolist() == [True, False]
        for given, words in (([True, False], "list is not a host array"), (tensor(np.ones(3, bool)), r"bool \(3,\)")):
            with pytest.raises(sl.LayoutError, match=words):
                sl.SlotBatch(LAYOUT, cpu, tensors={"is_chunk_step": given})
