"""Recordings for tests: written by a small batch, taken apart, put together again with right checksums."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from frameworks import backend
from simulated import simulated

import slotline as sl
from slotline.core import record, recording
from slotline.core.playback import Player, verify
from slotline.core.recording_file import Recording
from slotline.testing import strategies as some

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


S, PAD = "max_num_seqs", 7
OWN = sl.BatchConfig(
    max_num_seqs=3,
    max_model_len=32,
    vocab_size=30_000,
    max_chunk_tokens=16,
    block_size=4,
    num_blocks=40,
    pad_token_id=PAD,
)


def plain(*fields: sl.Field, config: sl.BatchConfig = OWN) -> sl.SlotBatch:
    return sl.SlotBatch(some.full_layout(config).extend(*fields), backend("numpy"))


def both(path: Path) -> None:
    """It plays on NumPy and on a device where everything is late."""
    assert play(path) == play(path, simulated(3)) > 0


def field(name: str, *dims: int | str, dtype: str = "int64", **options: Any) -> sl.Field:
    return sl.Field(name, (S, *dims), dtype, options.pop("fill", 0), **options)


SLACK = 3 << 20
"""Beside twice the file: the buffers of these small batches, and the 1 MiB that a small part may take."""


def peak(work: Callable[[], Any], size: int) -> None:
    tracemalloc.start()
    try:
        work()
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most <= 2 * size + SLACK, f"{most} bytes for a file of {size}"


def played(path: Path) -> None:
    for _ in Player(Recording(path), backend("numpy")).play():
        pass


def refused(path: Path, content: bytes, words: str) -> None:
    """``PacketError`` from reading or playing, in no more memory than twice the file and the buffers."""
    path.write_bytes(content)

    def work() -> None:
        with pytest.raises(sl.PacketError, match=words):
            played(path)

    peak(work, len(content))
