"""What an insertion costs that can be counted: memory, the packet's bytes, cells that are written."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import slotline as sl
from slotline.core.codec import encode
from slotline.core.packet import Packet

SLOTS, LENGTH, BLOCK = 64, 2048, 16


def make_batch(**changes: Any) -> sl.SlotBatch:
    sizes: dict[str, Any] = {"max_num_seqs": SLOTS, "max_model_len": LENGTH, "block_size": BLOCK, "vocab_size": 1000}
    config = sl.BatchConfig(**sizes | changes)
    layout = sl.target_layout(config)
    return sl.SlotBatch(
        layout | sl.mtp_layout(config) if config.spec_method == "mtp" else layout, sl.load_backend("cpu")
    )


def prefills(tokens: int) -> list[sl.PrefillTask]:
    params = sl.SamplingParams(temperature=0.5)
    requests = [sl.Request(f"r{i:02}", np.full(tokens, 7), sampling=params) for i in range(SLOTS)]
    return [sl.PrefillTask(r, 0, tokens, np.arange(-(-tokens // BLOCK))) for r in requests]


def peak(run: Callable[[], Any]) -> int:
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    kept = run()
    found = tracemalloc.get_traced_memory()[1] - before
    tracemalloc.stop()
    del kept
    return found


@pytest.mark.parametrize("tokens", [64, 1024])
def test_an_insertion_takes_no_memory_that_grows_with_its_tokens(tokens: int) -> None:
    batch = make_batch()
    for _ in range(3):
        batch.release(sl.insert_tasks(batch, prefills(tokens)).slots)
    tasks = prefills(tokens)
    assert peak(lambda: sl.insert_tasks(batch, tasks)) < 16 * 1024 + 256 * SLOTS + 8 * SLOTS * (tokens // BLOCK)


def test_new_blocks_take_little_memory_and_little_of_a_packet() -> None:
    batch = make_batch(spec_method="mtp", num_draft_tokens=3)
    sl.insert_tasks(batch, prefills(64))
    sent: list[Packet] = []
    apply = batch.buffers.apply

    def watched(packet: Packet, stream: Any) -> sl.Event:
        sent.append(packet)
        return apply(packet, stream)

    batch.buffers.apply = watched  # type: ignore[method-assign]
    for turn in range(4):
        tasks = [sl.DecodeTask(f"r{i:02}", new_blocks=[100 + turn]) for i in range(SLOTS)]
        taken = peak(lambda tasks=tasks: sl.insert_tasks(batch, tasks))  # type: ignore[misc]
    assert taken < 16 * 1024 + 256 * SLOTS
    assert len(encode(sent[-1])) < 40 + 4 * 32 + (64 + 4) * SLOTS


def test_p2_what_no_task_or_step_wrote_is_not_written_again() -> None:
    """Rows are cleared as far as they reach: the bytes that are said to move follow what was written."""
    batch = make_batch()
    receipt = sl.insert_tasks(batch, prefills(64))
    table = batch["token_ids_all"]
    table[:, 1000] = 5  # by nobody that slotline knows of: such a field needs engine_writes=True
    batch.release(receipt.slots)
    assert (table[:, :1000] == -1).all()
    assert (table[:, 1000] == 5).all()
    batch.reset()
    assert (table == -1).all()


def test_p2_accepted_tokens_are_cleared_however_many_steps_there_were() -> None:
    batch = make_batch(spec_method="ngram", num_draft_tokens=3)
    receipt = sl.insert_tasks(batch, prefills(64)[:2])
    for _ in range(40):
        step = sl.prepare_step(batch)
        counts = np.where(np.asarray(batch["seq_lens_encoder"]) > 0, 1, 4)
        sl.commit_step(batch, step, np.full((SLOTS, 4), 9), np.minimum(counts, batch["seq_lens_this_time"].clip(1)))
        sl.commit_drafts(batch, step, np.full((SLOTS, 3), 9))
    assert int(batch["step_idx"][0]) == 1 + 39 * 4
    batch.swap(0, 5)
    batch.release(receipt.slots)
    assert batch.diff(make_batch(spec_method="ngram", num_draft_tokens=3)) == []


def test_scalars_of_one_dtype_lie_side_by_side_and_stay_tensors_of_their_own() -> None:
    batch = make_batch()
    for name in ("temperature", "top_p", "min_dec_len"):
        assert batch[name].shape == (SLOTS,)
        assert batch[name].flags.c_contiguous
    batch["temperature"][...] = 3.0
    assert (batch["top_p"] == 1.0).all()
