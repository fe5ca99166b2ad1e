"""Recordings for tests: written by a small batch, taken apart, put together again with right checksums."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from frameworks import backend

import slotline as sl
from slotline.core import record, recording
from slotline.core.playback import verify

CONFIG = sl.BatchConfig(
    max_num_seqs=4, max_model_len=64, vocab_size=30_000, max_chunk_tokens=32, block_size=4, num_blocks=100,
    eos_token_ids=(2,), spec_method="mtp", num_draft_tokens=2,
)  # fmt: skip
LAYOUT = sl.target_layout(CONFIG) | sl.mtp_layout(CONFIG)
PROMPT = [11_111, 22_222, 12_345, 23_456, 17_171, 19_191]


def prefill(request: sl.Request, blocks: Iterable[int] = (1, 2), **options: Any) -> sl.PrefillTask:
    """The whole of a request's history."""
    return sl.PrefillTask(request, 0, len(request.history), list(blocks), **options)


def written(path: Path, **options: Any) -> Path:
    """A recording of every kind of operation but discard."""
    batch = sl.SlotBatch(LAYOUT, backend("numpy"))
    sampling = sl.SamplingParams(stop_seqs=[[25_252, 7]], bad_tokens=[26_262], temperature=0.5)
    with sl.record(batch, path, **options):
        sl.insert_tasks(batch, [prefill(sl.Request("a", PROMPT, sampling=sampling))])
        for token in (25_252, 7):
            step = sl.prepare_step(batch)
            sl.commit_step(batch, step, np.full((4, 3), token), np.ones(4, np.int64))
            sl.commit_drafts(batch, step, np.full((4, 2), 28_282))
            (out,) = batch.fetch(step).result()
        assert out.finish_reason == sl.FinishReason.STOP
        batch.swap(0, 2)
        batch.condense()
        batch.set_num_blocks(50)
        batch.release(["a"])
        batch.reset()
    return path


def parts(raw: bytes) -> Iterator[tuple[bytes, Any]]:
    """The magic and the content of each part, as plain lists and dicts."""
    at = 0
    while at < len(raw):
        magic, _, _, size, _ = record.HEADER.unpack_from(raw, at)
        at += record.HEADER.size
        yield magic, msgspec.msgpack.decode(raw[at : at + size])
        at += size


def part(magic: bytes, content: Any) -> bytes:
    """One part with the right length and checksum, whatever it says."""
    body = content if isinstance(content, bytes) else msgspec.msgpack.encode(content)
    return record.HEADER.pack(magic, record.VERSION, 0, len(body), record.checksum(body)) + body


def joined(content: Iterable[tuple[bytes, Any]]) -> bytes:
    return b"".join(part(magic, body) for magic, body in content)


def with_entries(raw: bytes, *operations: dict[str, Any]) -> bytes:
    """The head of a recording, and these operations behind it."""
    (head, *_) = parts(raw)
    entries = [(recording.ENTRY, {"operation": o, "digest": "0" * 64}) for o in operations]
    return joined([head, *entries, (recording.END, {"records": len(entries)})])


def play(path: Path, device: Any = None) -> int:
    """The number of records; each digest is as recorded."""
    found = verify(path, device or backend("numpy"), backend("numpy"))
    assert found.record is None, found
    return found.records
