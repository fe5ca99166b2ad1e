"""What the tests serve: requests with their plain results, and engines in every mode."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from examples.tiny_engine.engine import Engine, load_model
from examples.tiny_engine.model import Model
from examples.tiny_engine.options import Options
from examples.tiny_engine.plain import Plain, greedy
from examples.tiny_engine.prompts import MARGIN, Prompt
from examples.tiny_engine.results import Result
from examples.tiny_engine.split import LocalLink, Split

import slotline as sl

MAX_TOKENS = 28


_MODELS: dict[str, Any] = {}


def models(framework: str) -> Any:
    """One model for each kind of arrays; engines do not change it."""
    kind = framework if framework == "torch" else "numpy"
    if kind not in _MODELS:
        _MODELS[kind] = load_model(kind)
    return _MODELS[kind]


@dataclass(frozen=True)
class Job:
    """A request, and what it should give."""

    request_id: str
    prompt: bytes
    plain: Plain
    max_tokens: int
    min_tokens: int = 0
    stop: tuple[bytes, ...] = ()
    ignore_eos: bool = False

    @property
    def sampling(self) -> sl.SamplingParams:
        return sl.SamplingParams(
            max_dec_len=self.max_tokens,
            min_dec_len=self.min_tokens,
            stop_seqs=[list(s) for s in self.stop],
            ignore_eos=self.ignore_eos,
        )


def jobs(model: Model, prompts: Sequence[Prompt]) -> list[Job]:
    """Eight requests: to the length limit, cut by stop sequences, with a least length, and of one or two tokens."""
    in_prompt = prompts[5].text[-2:] + _piece(prompts[5], 0, 2)  # must not match: it begins in the prompt
    limits: list[dict[str, Any]] = [
        {"ignore_eos": True},
        {"stop": (_piece(prompts[1], 9, 3),)},
        {"stop": (b"\0", _piece(prompts[2], 4, 1)), "min_tokens": 12},
        {"max_tokens": 1},
        {"max_tokens": 2},
        {"stop": (in_prompt, _piece(prompts[5], 14, 4), _piece(prompts[5], 15, 2))},
        {"max_tokens": 11, "ignore_eos": True},
        {"min_tokens": MAX_TOKENS},
    ]
    found = []
    for number, (prompt, limit) in enumerate(zip(prompts, limits, strict=True)):
        chosen = {"max_tokens": MAX_TOKENS} | limit
        plain = greedy(model, prompt.text, **chosen)
        assert plain.margin > MARGIN  # what is asked: no step leaves a doubt
        found.append(Job(f"job {number}", prompt.text, plain, **chosen))
    return found


def _piece(prompt: Prompt, start: int, length: int) -> bytes:
    return bytes(prompt.plain.tokens[start : start + length])


@dataclass
class Served:
    results: dict[str, Result]
    counts: Counter[str]
    """Tasks by kind, of both sides of a split."""
    engine: Engine
    """The one that decodes."""
    moves: list[tuple[str, int, int]] = field(default_factory=list)
    """Requests that changed their row."""


def serve(
    options: Options,
    role: str,
    work: Sequence[Job],
    *,
    aborts: Sequence[tuple[str, int]] = (),
    model: Any = None,
) -> Served:
    """Serve ``work`` in one engine or in two in this process. ``aborts``: (request id, tokens that it has by then)."""
    model = model or models(options.framework)
    link = LocalLink(options, model) if role == "split" else None
    server = Engine(options, model) if link is None else Split(options, link, model)
    engine = server if isinstance(server, Engine) else server.engine
    served = Served({}, Counter(), engine)
    engine.batch.on_move(lambda *move: served.moves.append(move))
    for job in work:
        server.add(job.request_id, job.prompt, job.sampling)
    left = dict(aborts)
    while server.has_work:
        for seq in list(engine.scheduler.running.values()):
            if len(seq.outputs) >= left.get(seq.request_id, 1 << 30):
                server.abort(seq.request_id)
                del left[seq.request_id]
        served.results.update((r.request_id, r) for r in server.step())
    assert not left
    served.counts = engine.scheduler.counts + (link.prefill.engine.scheduler.counts if link else Counter())
    check_empty(engine)
    if link:
        check_empty(link.prefill.engine)
    return served


def check_empty(engine: Engine) -> None:
    """Every row and every block has come back; free rows hold the fills (P2)."""
    assert engine.batch.occupied == []
    assert sorted(engine.scheduler.free_blocks) == list(range(engine.options.num_blocks))
    fresh = sl.SlotBatch(engine.batch.layout, engine.batch.backend)
    for field_ in engine.batch.layout:
        assert (engine.batch.host_array(field_.name) == fresh.host_array(field_.name)).all(), field_.name


def check(served: Served, work: Sequence[Job], aborted: Sequence[str] = ()) -> None:
    check_results(served.results, work, aborted)


def check_results(results: Mapping[str, Result], work: Sequence[Job], aborted: Sequence[str] = ()) -> None:
    """Token for token, reason and match as plain decoding; what was aborted has the beginning of it."""
    assert sorted(results) == sorted(job.request_id for job in work)
    for job in work:
        result = results[job.request_id]
        if job.request_id in aborted:
            assert result.finish_reason == "aborted"
            assert result.tokens == job.plain.tokens[: len(result.tokens)]
            continue
        assert (job.request_id, result.tokens) == (job.request_id, job.plain.tokens)
        assert (result.finish_reason, result.stop_match) == (job.plain.finish_reason, job.plain.stop_match)
