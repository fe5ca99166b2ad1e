"""The same prompts in every mode: tokens per step, acceptance, and whether the output is that of plain decoding."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import slotline as sl
from examples.tiny_engine import processes
from examples.tiny_engine.engine import Engine, load_model
from examples.tiny_engine.model import Model
from examples.tiny_engine.options import Options
from examples.tiny_engine.prompts import Prompt, select
from examples.tiny_engine.split import serve

MODES = (("none", 0), ("ngram", 3), ("mtp", 1), ("mtp", 2), ("mtp", 3))
ROLES = ("mixed", "split")


@dataclass(frozen=True)
class Mode:
    """One line of the comparison."""

    spec_method: str
    num_draft_tokens: int
    role: str
    tokens: int
    """Generated, over all prompts."""
    steps: int
    """Of the side that decodes."""
    tokens_per_step: float
    """What a decoding row gives in one step: 1 without speculation."""
    acceptance: list[float]
    """By draft position: accepted of those offered."""
    seconds: float
    equal: int
    """Prompts whose output is that of plain decoding."""


def compare(options: Options, count: int, max_tokens: int) -> Iterator[Mode]:
    """Every mode in turn. ``options`` give framework, chunk and sizes."""
    model = load_model(options.framework)
    prompts = select(model if isinstance(model, Model) else Model.load(), count, max_tokens)
    for method, drafts in MODES:
        for role in ROLES:
            chosen = replace(options, spec_method=method, num_draft_tokens=max(drafts, 1), mtp_levels=None)
            yield run_mode(chosen, role, prompts, max_tokens, model)


def run_mode(options: Options, role: str, prompts: Sequence[Prompt], max_tokens: int, model: Any) -> Mode:
    named = {f"prompt {i:03d}": prompt for i, prompt in enumerate(prompts)}
    requests = [(name, prompt.text) for name, prompt in named.items()]
    sampling = sl.SamplingParams(max_dec_len=max_tokens)
    if role == "split":
        with processes.start(options, model) as split:
            began = time.perf_counter()
            results, counts = serve(split, requests, sampling), split.counts
            seconds = time.perf_counter() - began
    else:
        engine = Engine(options, model)
        began = time.perf_counter()
        results, counts = serve(engine, requests, sampling), engine.counts
        seconds = time.perf_counter() - began
    drafts = 0 if options.spec_method == "none" else options.num_draft_tokens
    return Mode(
        spec_method=options.spec_method,
        num_draft_tokens=drafts,
        role=role,
        tokens=sum(len(r.tokens) for r in results.values()),
        steps=counts.steps,
        tokens_per_step=round(counts.decode_tokens / max(counts.decode_rows, 1), 3),
        acceptance=[round(a / max(o, 1), 3) for a, o in zip(counts.accepted, counts.offered, strict=True)],
        seconds=round(seconds, 2),
        equal=sum(results[name].tokens == prompt.plain.tokens for name, prompt in named.items()),
    )


HEADER = "method  drafts  role   tokens  steps  tokens/step  seconds   equal  accepted"


def line(mode: Mode, count: int) -> str:
    rates = " ".join(f"{rate:.2f}" for rate in mode.acceptance) or "-"
    return (
        f"{mode.spec_method:<8}{mode.num_draft_tokens:>6}  {mode.role:<6}{mode.tokens:>7}{mode.steps:>7}"
        f"{mode.tokens_per_step:>13.2f}{mode.seconds:>9.1f}{f'{mode.equal}/{count}':>8}  {rates}"
    )


def as_json(modes: Sequence[Mode], options: Options, count: int, max_tokens: int) -> dict[str, Any]:
    return {
        "framework": options.framework,
        "prompts": count,
        "max_tokens": max_tokens,
        "equal": all(mode.equal == count for mode in modes),
        "modes": [asdict(mode) for mode in modes],
    }
