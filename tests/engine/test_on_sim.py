"""The tiny engine on the simulated device: the output of plain decoding under many seeds, and no race (rules L, B8).

Steps, insertions and fetches stay late; only what the model reads, which runs on the host here, is waited for.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from examples.tiny_engine.engine import Engine
from examples.tiny_engine.options import Options
from examples.tiny_engine.prompts import select
from serving import Job, Served, check, jobs, models
from simulated import simulated

SEEDS = range(200 if os.environ.get("SLOTLINE_HYPOTHESIS_PROFILE") == "thorough" else 20)
METHODS = (("mtp", 3, 2), ("mtp", 1, 1), ("none", 1, 0), ("ngram", 3, 0))


class SimEngine(Engine):
    """What the model reads comes by downloads, which wait for their own place in the stream only."""

    def own(self, tensor: Any) -> Any:
        return tensor if isinstance(tensor, np.ndarray) else self.batch.backend.download(tensor).array()

    def copy(self, tensor: Any) -> Any:
        return np.array(self.own(tensor))


@pytest.fixture(scope="module")
def work() -> list[Job]:
    model = models("numpy")
    return jobs(model, [p for p in select(model, 14, 32) if len(p.text) <= 72][:8])


@pytest.mark.parametrize("seed", SEEDS)
def test_b8_l4_the_output_is_that_of_plain_decoding(seed: int, work: list[Job]) -> None:
    method, drafts, levels = METHODS[seed % len(METHODS)]
    tight = seed % 2
    options = Options(
        framework="numpy",
        spec_method=method,
        num_draft_tokens=drafts,
        mtp_levels=levels or None,
        chunk=(None, 7)[seed // 4 % 2],
        max_num_seqs=5,
        max_model_len=112,
        block_size=8,
        num_blocks=18 if tight else 128,
        token_budget=96,
        overlap=True,
        condense_every=tight,
    )
    backend = simulated(seed, ("late", "random")[seed // 2 % 2])
    engine = SimEngine(options, models("numpy"), backend)
    for job in work:
        engine.add(job.request_id, job.prompt, job.sampling)
    check(Served(engine.run(), engine.scheduler.counts, engine), work)
    backend.synchronize()
    assert (backend.retained, engine.batch.occupied) == (0, [])
