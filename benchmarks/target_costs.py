"""What ``targets.py`` counts instead of timing: bytes at the peak of an insertion, and bytes of its packet."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from typing import Any

from target_runs import BLOCK, COUNT, SAMPLING, SLOTS, TOKENS, Found, Load, config, decoding, make_batch

import slotline as sl
from slotline.core.codec import encode
from slotline.core.packet import Packet


def _peak(batch: sl.SlotBatch, make: Callable[[], list[Any]], again: Callable[[], None], count: int) -> Found:
    """Bytes at peak beyond what was there; tasks are made before, and three insertions warm up."""
    for _ in range(3):
        sl.insert_tasks(batch, make())
        again()
    tasks = make()
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    receipt = sl.insert_tasks(batch, tasks)
    peak = tracemalloc.get_traced_memory()[1] - before
    tracemalloc.stop()
    del receipt
    limit = 16 * 1024 + 256 * count
    return Found(peak / limit, 0, 0, f"{peak:,} bytes of {limit:,}")


def _prefills(count: int) -> Found:
    load = Load(count=count)

    def make() -> list[Any]:
        requests = [sl.Request(r, p, sampling=sl.SamplingParams(**SAMPLING))
                    for r, p in zip(load.ids, load.prompts, strict=True)]  # fmt: skip
        return [sl.PrefillTask(r, 0, TOKENS, t) for r, t in zip(requests, load.tables, strict=True)]

    return _peak(load.batch, make, load.release, count)


def peak_prefill(repeat: int) -> Found:
    return _prefills(COUNT)


def peak_one(repeat: int) -> Found:
    return _prefills(1)


def peak_decode(repeat: int) -> Found:
    load = decoding(32)
    block = iter(range(32, 128))

    def make() -> list[Any]:
        new = next(block)
        return [sl.DecodeTask(r, new_blocks=[i * 128 + new]) for i, r in enumerate(load.ids)]

    return _peak(load.batch, make, lambda: None, SLOTS)


def packet(repeat: int) -> Found:
    """As encoded for a device; MTP's layout, which has a second block table."""
    layout = sl.target_layout(cfg := config(spec_method="mtp", num_draft_tokens=3)) | sl.mtp_layout(cfg)
    load = Load(count=SLOTS, tokens=BLOCK, batch=make_batch(layout))
    load.insert()
    sent: list[Packet] = []
    apply = load.batch.buffers.apply
    load.batch.buffers.apply = lambda packet, stream: sent.append(packet) or apply(packet, stream)  # type: ignore[method-assign,func-returns-value]
    sl.insert_tasks(load.batch, [sl.DecodeTask(r, new_blocks=[5000 + i]) for i, r in enumerate(load.ids)])
    each = (sum(len(encode(p)) for p in sent) - 4 * SLOTS) / SLOTS
    return Found(each / 64, 0, 0, f"{each:.1f} bytes a task")
