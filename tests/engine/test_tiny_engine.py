"""The tiny engine gives what plain decoding gives, in every mode (issue: a real model)."""

from __future__ import annotations

import itertools
import os
from typing import Any

import pytest
from combinations import pairs, pairwise
from examples.tiny_engine.model import Model
from examples.tiny_engine.options import FRAMEWORKS, Options
from examples.tiny_engine.prompts import MARGIN, Prompt, select
from serving import Job, check, jobs, models, serve

METHODS = (("none", 1, 0), ("ngram", 3, 0), ("mtp", 1, 1), ("mtp", 2, 2), ("mtp", 3, 3), ("mtp", 3, 1))
CHUNKS = (None, 1, 7, 64)
ROLES = ("mixed", "split")
TURMOIL = ("calm", "preempted", "aborted", "everything")
OVERLAP = (True, False)
FACTORS: tuple[Any, ...] = (FRAMEWORKS, METHODS, CHUNKS, ROLES, TURMOIL, OVERLAP)
PROFILE = os.environ.get("SLOTLINE_HYPOTHESIS_PROFILE", "")
FOUND = ("numpy", ("mtp", 1, 1), None, "split", "everything", True)
"""Profile thorough found it: an abort of a request that the decode side had just preempted was lost."""
MODES = list(itertools.product(*FACTORS)) if PROFILE == "thorough" else [*pairwise(*FACTORS), FOUND]


@pytest.fixture(scope="module")
def model() -> Model:
    found: Model = models("numpy")
    return found


@pytest.fixture(scope="module")
def prompts(model: Model) -> list[Prompt]:
    return [p for p in select(model, 14, 32) if len(p.text) <= 72][:8]


@pytest.fixture(scope="module")
def work(model: Model, prompts: list[Prompt]) -> list[Job]:
    return jobs(model, prompts)


def options_of(framework: str, method: tuple[str, int, int], chunk: int | None, turmoil: str, overlap: bool) -> Options:
    name, drafts, levels = method
    tight = turmoil in ("preempted", "everything")
    return Options(
        framework=framework,
        spec_method=name,
        num_draft_tokens=drafts,
        mtp_levels=levels or None,
        chunk=chunk,
        max_num_seqs=5,
        max_model_len=112,
        block_size=8,
        num_blocks=18 if tight else 128,
        token_budget=96,
        overlap=overlap,
        condense_every=1 if turmoil in ("aborted", "everything") else 0,
    )


@pytest.mark.parametrize(
    ("framework", "method", "chunk", "role", "turmoil", "overlap"),
    MODES,
    indirect=["framework"],
    ids=lambda value: "".join(map(str, value)) if isinstance(value, tuple) else str(value),
)
def test_output_is_that_of_plain_decoding(
    framework: str,
    method: tuple[str, int, int],
    chunk: int | None,
    role: str,
    turmoil: str,
    overlap: bool,
    work: list[Job],
) -> None:
    """I, L1 to L7, M3, M5, D1 to D3, S2, S5, T: the whole life of requests, with everything in between."""
    aborts = [("job 0", 5), ("job 6", 5)] if turmoil in ("aborted", "everything") else []
    options = options_of(framework, method, chunk, turmoil, overlap)
    served = serve(options, role, work, aborts=aborts)
    check(served, work, [request_id for request_id, _ in aborts])
    # Whole prompts with blocks for their drafts let so few requests run that they may just fit.
    if turmoil in ("preempted", "everything") and (method[0] != "mtp" or chunk in (1, 7)):
        assert served.counts["PreemptTask"] > 0
    if aborts:
        assert served.counts["AbortTask"] == len(aborts)
        assert served.moves or role == "split"  # condensed while a step was open; there others may come too late
        assert served.engine.batch.stats["stale_results"] > 0


def test_modes_cover_every_pair() -> None:
    wanted = set().union(*map(pairs, itertools.product(*FACTORS)))
    assert set().union(*map(pairs, MODES)) == wanted


def test_plain_decoding_leaves_no_doubt(prompts: list[Prompt], work: list[Job]) -> None:
    """Else rounding might decide, and equality of tokens would say nothing."""
    assert min(p.plain.margin for p in prompts) > MARGIN
    assert min(job.plain.margin for job in work) > MARGIN
    reasons = {job.plain.finish_reason for job in work}
    assert {"stop", "length"} <= reasons
