"""Batches, requests and tasks of given sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slotline.core.backend import Backend
from slotline.core.batch import SlotBatch
from slotline.core.config import BatchConfig
from slotline.core.field import Field, column
from slotline.core.layout import BufferLayout
from slotline.core.sampling import SamplingParams
from slotline.core.standard import mtp_layout, target_layout
from slotline.core.tasks import PrefillTask, Request

SLOTS, LENGTH, CHUNK, BLOCK, VOCAB = 256, 8192, 4096, 64, 151_936
EOS = 2


def layout(method: str = "none", **changes: Any) -> BufferLayout:
    """The standard fields, sizes as in the defaults of ``slotline replay``."""
    values: dict[str, Any] = {
        "max_num_seqs": SLOTS,
        "max_model_len": LENGTH,
        "max_chunk_tokens": CHUNK,
        "block_size": BLOCK,
        "vocab_size": VOCAB,
        "eos_token_ids": (EOS,),
        "spec_method": method,
        "num_draft_tokens": 3,
    }
    config = BatchConfig(**{**values, **changes})
    made = target_layout(config)
    return made | mtp_layout(config) if method == "mtp" else made


def scalars(count: int) -> list[Field]:
    """``count`` fields that have nothing to do with each other, each written by a prefill."""
    kinds = (("int32", "prompt_len"), ("float32", "temperature"), ("int64", "infer_seed"), ("int32", "chunk_len"))
    return [
        Field(f"own_{i}", ("max_num_seqs",), kinds[i % 4][0], 0, on={"prefill": column(kinds[i % 4][1])})
        for i in range(count)
    ]


def batch_of(made: BufferLayout, backend: Backend) -> SlotBatch:
    return SlotBatch(made, backend)


class Prompts:
    """Token ids and block tables for ``count`` requests of ``tokens`` tokens, as arrays and as lists."""

    def __init__(self, count: int, tokens: int, *, held: int | None = None) -> None:
        rng = np.random.default_rng(0)
        blocks = -(-tokens // BLOCK)
        self.held = blocks if held is None else held
        self.ids = [f"r{i:04}" for i in range(count)]
        self.arrays: list[NDArray[Any]] = [rng.integers(3, VOCAB, tokens) for _ in range(count)]
        self.tables: list[NDArray[Any]] = [np.arange(i * self.held, i * self.held + blocks) for i in range(count)]
        self.lists = [a.tolist() for a in self.arrays]
        self.table_lists = [t.tolist() for t in self.tables]

    def tasks(self, kind: str = "arrays", count: int | None = None) -> list[PrefillTask]:
        """Everything that a scheduler makes for a prefill: sampling, request, task."""
        prompts: Sequence[Any] = self.arrays if kind == "arrays" else self.lists
        tables: Sequence[Any] = self.tables if kind == "arrays" else self.table_lists
        out = []
        for name, prompt, table in zip(self.ids[:count], prompts, tables, strict=False):
            request = Request(name, prompt, sampling=SamplingParams(temperature=0.7, top_p=0.9))
            out.append(PrefillTask(request, 0, len(prompt), table))
        return out


def empty(batch: SlotBatch) -> None:
    """Release all, as an engine does: only what was used is touched, so caches stay as they are in a run."""
    batch.release([r for r in map(batch.owner, batch.occupied) if r is not None])
