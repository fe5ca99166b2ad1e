"""Requests of the tiny engine: end of text, aborts, what is refused; and its command line."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from examples.tiny_engine.__main__ import main
from examples.tiny_engine.engine import Engine
from examples.tiny_engine.model import EOS, Model
from examples.tiny_engine.options import Options
from examples.tiny_engine.plain import greedy
from examples.tiny_engine.prompts import MARGIN, select
from examples.tiny_engine.scheduler import Scheduler, Sequence
from examples.tiny_engine.split import LocalLink, Split
from serving import MAX_TOKENS, Job, check, check_results, models, serve

import slotline as sl

SIX = sl.SamplingParams(max_dec_len=6)
SMALL = Options(max_num_seqs=4, max_model_len=152, block_size=8, num_blocks=64)


class ShortOfBreath:
    """The model with the end of text and the commonest byte of its outputs exchanged, so that texts end soon."""

    def __init__(self, model: Model, byte: int) -> None:
        self.model, self.byte = model, byte

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def logits(self, hidden: Any) -> Any:
        logits = self.model.logits(hidden)
        logits[:, [self.byte, EOS]] = logits[:, [EOS, self.byte]]
        return logits


@pytest.fixture(scope="module")
def model() -> Model:
    found: Model = models("numpy")
    return found


@pytest.fixture(scope="module")
def short_texts(model: Model) -> tuple[Any, list[Job]]:
    """A model, and requests of which most end with the text."""
    prompts = [p for p in select(model, 14, MAX_TOKENS) if len(p.text) < 80]
    outputs = [token for p in prompts for token in p.plain.tokens]
    short: Any = ShortOfBreath(model, max(set(outputs), key=outputs.count))
    work = []
    for number, prompt in enumerate(prompts):
        limit: dict[str, Any] = {"max_tokens": MAX_TOKENS, "min_tokens": number % 3 * 5, "ignore_eos": number % 4 == 3}
        plain = greedy(short, prompt.text, **limit)
        if plain.margin > MARGIN:
            work.append(Job(f"job {number}", prompt.text, plain, **limit))
    assert [job.plain.finish_reason for job in work].count("eos") >= 4
    assert any(EOS in job.plain.tokens[:-1] for job in work)  # ignored, or before the least length
    return short, work


@pytest.mark.parametrize(
    ("method", "drafts", "role"),
    [("none", 1, "mixed"), ("ngram", 3, "split"), ("mtp", 3, "mixed"), ("mtp", 3, "split")],
)
def test_end_of_text(short_texts: tuple[Any, list[Job]], method: str, drafts: int, role: str) -> None:
    """T: end-of-sequence, the least length before it, and requests that do not listen to it."""
    short, work = short_texts
    check(serve(replace(SMALL, spec_method=method, num_draft_tokens=drafts), role, work, model=short), work)


@pytest.mark.parametrize("role", ["mixed", "split"])
def test_waiting_requests_can_be_aborted(model: Model, role: str) -> None:
    prompts = select(model, 6, MAX_TOKENS)
    options = replace(SMALL, max_num_seqs=1)
    server = Engine(options, model) if role == "mixed" else Split(options, LocalLink(options, model), model)
    work = [Job(f"{n}", p.text, greedy(model, p.text, max_tokens=8), 8) for n, p in enumerate(prompts)]
    for job in work:
        server.add(job.request_id, job.prompt, job.sampling)
    server.step()
    server.abort("3")
    server.abort("4")
    server.abort("nobody")
    check_results(server.run(), work, ["3", "4"])


def test_requests_that_are_refused(model: Model) -> None:
    engine = Engine(SMALL, model)
    engine.add("a", b"text")
    for request_id, prompt, message in (
        ("a", b"text", "its own id"),
        ("b", b"", "0 prompt tokens, allowed: 1 to 151"),
        ("b", b"x" * 152, "152 prompt tokens"),
    ):
        with pytest.raises(ValueError, match=message):
            engine.add(request_id, prompt)
    assert list(engine.run()) == ["a"]


@pytest.mark.parametrize("role", ["mixed", "split"])
def test_a_request_that_asks_for_what_cannot_be_is_answered_alone(model: Model, role: str) -> None:
    """I1: the other requests of the same insertion are served."""
    good = [Job(f"{n}", p.text, greedy(model, p.text, max_tokens=8), 8) for n, p in enumerate(select(model, 4, 8))]
    bad = {
        "few": sl.SamplingParams(max_dec_len=0),
        "many": sl.SamplingParams(stop_seqs=[[n] for n in range(6)]),
        "long": sl.SamplingParams(stop_seqs=[list(range(9))]),
    }
    server = Engine(SMALL, model) if role == "mixed" else Split(SMALL, LocalLink(SMALL, model), model)
    for job, (request_id, sampling) in zip(
        good, [*bad.items(), ("fine", sl.SamplingParams(max_dec_len=1))], strict=True
    ):
        server.add(request_id, b"text", sampling)
        server.add(job.request_id, job.prompt, job.sampling)
    results = server.run()
    refused = {request_id: results.pop(request_id).finish_reason for request_id in bad}
    assert results.pop("fine").finish_reason == "length"
    check_results(results, good)
    for request_id, field in (("few", "max_dec_len"), ("many", "stop_seqs"), ("long", "stop_seqs")):
        assert refused[request_id].startswith(f"refused: {field} ")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"framework": "jax"}, "framework is 'jax', allowed: numpy, torch, paddle"),
        ({"spec_method": "magic"}, "spec_method is 'magic'"),
        ({"chunk": 0}, "chunk is 0, allowed: at least 1"),
        ({"max_model_len": 1 << 20}, "max_model_len"),
        ({"num_blocks": 3}, "num_blocks is 3, allowed: at least 19"),
        ({"token_budget": 3}, "token_budget is 3, allowed: at least 4"),
        ({"spec_method": "mtp", "num_draft_tokens": 4}, "4 drafts from 4 heads"),
        ({"spec_method": "mtp", "num_draft_tokens": 5, "mtp_levels": 2}, "5 drafts from 2 heads"),
    ],
)
def test_options_that_cannot_work(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(SMALL, **wrong)


def test_requests_end_at_the_models_length(model: Model) -> None:
    """I2: max_dec_len is cut to what the length leaves; M9, L5: no draft goes past it."""
    prompt = select(model, 1, MAX_TOKENS)[0].text
    options = replace(SMALL, max_model_len=len(prompt) + 20, spec_method="mtp", num_draft_tokens=3, mtp_levels=1)
    for role in ("mixed", "split"):
        work = [Job("a", prompt, greedy(model, prompt, max_tokens=20), 1000)]
        check(serve(options, role, work), work)


def test_a_preempted_row_gives_its_part_of_the_budget_back() -> None:
    """Of 8 tokens the oldest takes 4 and the blocks of the youngest, which would have decoded: 4 are left, not 3."""
    config = sl.BatchConfig(max_num_seqs=3, max_model_len=64, vocab_size=257, block_size=4, num_blocks=4)
    scheduler = Scheduler(config, token_budget=8, chunk=4, lags=False)
    oldest, middle, youngest = (Sequence(f"{n}", n, [65] * (4 if n == 2 else 16), SIX) for n in range(3))
    scheduler.wait(youngest)
    scheduler.plan()
    youngest.outputs.append(65)
    scheduler.wait(oldest)
    scheduler.wait(middle)
    scheduler.plan()
    tasks = scheduler.plan()
    assert [t.request_id for t in tasks if isinstance(t, sl.PreemptTask)] == ["2"]
    chunks = {t.request_id: t.end - t.start for t in tasks if isinstance(t, sl.PrefillTask)}
    assert chunks == {"0": 4, "1": 4}


# -- the command line


def test_command_line_prompt(capsys: pytest.CaptureFixture[str], model: Model) -> None:
    plain = greedy(model, b"from __future__ import ", max_tokens=12)
    arguments = ["--prompt", "from __future__ import ", "--max-tokens", "12"]
    for more in (["--spec-method", "ngram"], ["--role", "split", "--spec-method", "mtp", "--num-draft-tokens", "2"]):
        assert main([*arguments, "--json", *more]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert len(lines) == 1
        (found,) = json.loads(lines[0])
        assert found["output"] == bytes(t for t in plain.tokens if t != EOS).decode(errors="replace")
    assert main(arguments) == 0
    assert capsys.readouterr().out.startswith("from __future__ import ")


def test_command_line_compare(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--compare", "--json", "--num-prompts", "2", "--max-tokens", "8"]) == 0
    captured = capsys.readouterr()
    assert len(captured.out.splitlines()) == 1
    summary = json.loads(captured.out)
    assert summary["equal"] is True
    modes = [(m["spec_method"], m["num_draft_tokens"], m["role"]) for m in summary["modes"]]
    methods = [("none", 0), ("ngram", 3), ("mtp", 1), ("mtp", 2), ("mtp", 3)]
    assert modes == [(*method, role) for method in methods for role in ("mixed", "split")]
    assert all(len(m["acceptance"]) == m["num_draft_tokens"] for m in summary["modes"])
    assert len(captured.err.splitlines()) == 11


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give --prompt TEXT or --compare"),
        (["--prompt", "a", "--compare"], "give --prompt TEXT or --compare"),
        (["--role", "prefill"], "go together"),
        (["--prompt", "a", "--connect", "1"], "go together"),
        (["--compare", "--role", "split"], "--role does nothing with --compare"),
        (["--prompt", "a", "--framework", "jax"], "invalid choice"),
        (["--prompt", "a", "--max-tokens", "0"], "--max-tokens: 0 is out of range, allowed: 1 to"),
    ],
)
def test_command_line_misuse(capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--prompt", "a", "--num-blocks", "1"], "num_blocks is 1"),
        (["--prompt", ""], "0 prompt tokens"),
        (["--prompt", "a", "--spec-method", "mtp", "--num-draft-tokens", "9"], "9 drafts"),
        (["--compare", "--num-prompts", "1000", "--max-tokens", "1"], "1000 prompts asked for"),
        (["--prompt", "a", "--stop", ""], "stop_seqs"),
    ],
)
def test_command_line_errors(capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert message in captured.err
