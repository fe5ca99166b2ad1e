"""The packed apply over one memory object and over many (rules B8, B10, I4, F4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyopencl as cl
import pytest
from slotline_opencl import OpenclBackend
from slotline_opencl.kernels import MEMORIES

import slotline as sl

CONFIG = sl.BatchConfig(
    max_num_seqs=6,
    max_model_len=1500,
    max_chunk_tokens=1200,
    block_size=16,
    num_blocks=400,
    vocab_size=1000,
    eos_token_ids=(2,),
    spec_method="mtp",
    num_draft_tokens=2,
    hidden_size=3,
    hidden_dtype="bfloat16",
)
LAYOUT = (sl.target_layout(CONFIG) | sl.mtp_layout(CONFIG)).extend(
    sl.Field("across", (2, "max_num_seqs", 3), "int16", 5, slot_axis=1, on={"prefill": sl.extra("across")}),
    sl.Field("half", ("max_num_seqs", 4), "float16", 0.5, on={"prefill": sl.extra("half")}),
)


def dense(backend: OpenclBackend, name: str) -> Any:
    shape, dtype = LAYOUT.shape(name), LAYOUT[name].dtype
    return backend.empty([(name, shape, dtype)])[name]


def with_gaps(backend: OpenclBackend, name: str) -> Any:
    shape, dtype = LAYOUT.shape(name), LAYOUT[name].dtype
    wide = backend.empty([(name, tuple(2 * n + 1 for n in shape), dtype)])[name]
    return wide[tuple(slice(1, 2 * n + 1, 2) for n in shape)]


def of_the_engine(backend: OpenclBackend, name: str) -> Any:
    shape, dtype = LAYOUT.shape(name), LAYOUT[name].dtype
    nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    buffer = cl.Buffer(backend.queue().context, cl.mem_flags.READ_WRITE, nbytes + 32)
    return backend.wrap(buffer, shape, dtype, offset=16)


def play(batch: sl.SlotBatch) -> list[str]:
    """A bit of everything; the digest after each operation."""
    extra = {"across": [[1, 2, 3], [4, 5, 6]], "half": [1.5, 2.5, -0.25, 1e-6]}
    params = sl.SamplingParams(stop_seqs=[[7, 8]], bad_tokens=[3], temperature=0.5, max_dec_len=9)
    first = sl.Request("a", list(range(10, 110)) * 12, sampling=params, hidden_state=[1.0, 2.0, 3.0], extra=extra)
    second = sl.Request("b", [5, 6, 7], extra=extra)
    blocks = list(range(80))
    calls: list[list[Any]] = [
        [sl.PrefillTask(first, 0, 1100, blocks), sl.PrefillTask(second, 0, 3, [100, 101])],
        [sl.DecodeTask("b", new_blocks=[102])],
        [sl.PreemptTask("b"), sl.PrefillTask(second, 0, 3, [104, 105], slot=4)],
        [sl.AbortTask("a")],
    ]
    digests = []
    for tasks in calls:
        sl.insert_tasks(batch, tasks)
        digests.append(batch.digest())
    batch.swap(1, 4)
    digests.append(batch.digest())
    batch.condense()
    digests.append(batch.digest())
    batch.reset()
    digests.append(batch.digest())
    return digests


@pytest.mark.parametrize("make", [None, dense, with_gaps, of_the_engine], ids=["one block", "many", "gaps", "engine"])
def test_b8_the_same_bytes_wherever_the_fields_lie(
    backend: OpenclBackend, make: Callable[[OpenclBackend, str], Any] | None
) -> None:
    names = [f.name for f in LAYOUT if f.on_device]
    assert len(names) > 2 * MEMORIES
    tensors = {} if make is None else {name: make(backend, name) for name in names}
    ours = sl.SlotBatch(LAYOUT, backend, tensors=tensors)
    adopted = {name: np.empty(LAYOUT.shape(name), LAYOUT[name].dtype) for name in tensors}
    theirs = sl.SlotBatch(LAYOUT, sl.load_backend("cpu"), tensors=adopted)
    ours.stats.clear()
    assert play(ours) == play(theirs)
    kernels, transfers = (ours.stats.by_operation(c)["insert"] for c in ("kernels", "transfers"))
    most = 1 if make is None else -(-len(names) // MEMORIES)
    assert transfers <= 4
    assert kernels <= 4 * most
