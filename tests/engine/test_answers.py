"""A client's retries, and answers of the sides of a split that are not to what was asked."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from examples.tiny_engine import messages
from examples.tiny_engine.engine import Engine
from examples.tiny_engine.messages import FinishedMessage, Frame, HandoverMessage, RequestMessage, SplitError
from examples.tiny_engine.options import Options
from examples.tiny_engine.plain import greedy
from examples.tiny_engine.prompts import select
from examples.tiny_engine.split import LocalLink, PrefillSide, Split
from frameworks import require
from serving import models

import slotline as sl

SMALL = Options(max_num_seqs=3, max_model_len=152, block_size=8, num_blocks=64)
SIX = sl.SamplingParams(max_dec_len=6, stop_seqs=[[1, 2, 3]])
ROLES = ("mixed", "split")


def server_of(role: str, options: Options = SMALL) -> Engine | Split:
    model = models("numpy")
    return Engine(options, model) if role == "mixed" else Split(options, LocalLink(options, model), model)


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("overlap", [True, False])
def test_an_id_can_be_used_again_after_an_abort(role: str, overlap: bool) -> None:
    """At any time: waiting, prefilling, on its way between the sides, decoding. The others are served."""
    first, again, other = (p.text for p in select(models("numpy"), 3, 12))
    wanted = [greedy(models("numpy"), text, max_tokens=12).tokens for text in (again, other)]
    for steps in range(7):
        server = server_of(role, replace(SMALL, overlap=overlap, spec_method="mtp", num_draft_tokens=2, chunk=32))
        found = []
        server.add("other", other, sl.SamplingParams(max_dec_len=12))
        server.add("a", first, sl.SamplingParams(max_dec_len=40))
        for _ in range(steps):
            found += server.step()
        server.abort("a")
        server.add("a", again, sl.SamplingParams(max_dec_len=12))
        with pytest.raises(ValueError, match="its own id"):
            server.add("a", again)
        while server.has_work:
            found += server.step()
        assert sorted((r.request_id, r.finish_reason) for r in found) == [
            ("a", "aborted"), ("a", "length"), ("other", "length"),
        ]  # fmt: skip
        assert [r.tokens for r in sorted(found, key=lambda r: r.request_id) if r.finish_reason == "length"] == wanted
        assert {r.index for r in found if r.finish_reason == "aborted"} == {1}


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize(
    ("sampling", "name"),
    [({"temperature": 0.5}, "temperature"), ({"bad_tokens": [3]}, "bad_tokens"), ({"penalty_score": 2.0}, "penalty")],
)
def test_sampling_that_is_not_served_is_refused_by_name(role: str, sampling: dict[str, Any], name: str) -> None:
    server = server_of(role)
    with pytest.raises(ValueError, match=f"{name}.*decodes greedily"):
        server.add("a", b"text", sl.SamplingParams(**sampling))
    with pytest.raises(ValueError, match="0 prompt tokens"):
        server.add("a", b"")
    assert not server.has_work  # nothing is left behind


# -- the prefill side


def prefill_side(options: Options = SMALL) -> tuple[PrefillSide, list[Frame]]:
    """One that has met its peer, and what it says."""
    said: list[Frame] = []
    side = PrefillSide(options, said.append, models("numpy"))
    decode = Engine(replace(options, role="decode"), models("numpy"))
    side.take(Frame(messages.PEER, sl.Peer.of(decode.batch.layout).encode()))
    return side, said


def request(**other: Any) -> Frame:
    values = RequestMessage("a", 0, list(b"import "), [], [[1, 2, 3]], 0, 6, False)
    return messages.pack(messages.REQUEST, msgspec.structs.replace(values, **other))


@pytest.mark.parametrize(
    "bad",
    [{"prompt": []}, {"prompt": [999]}, {"prompt": [0] * 200}, {"outputs": [1] * 200}, {"max_dec_len": -1},
     {"stop_seqs": [[]]}, {"stop_seqs": [[1]] * 99}, {"request_id": "a", "index": 7}, {"min_dec_len": 2**62}],
)  # fmt: skip
def test_a_request_that_cannot_be_served_is_answered_and_the_others_go_on(bad: dict[str, Any]) -> None:
    side, said = prefill_side()
    side.take(request())
    side.take(request(**{"request_id": "bad", "index": 1} | bad))
    side.take(request(request_id="c", index=2))
    while side.engine.has_work:
        side.step()
    answers = [messages.unpack(f, FinishedMessage) for f in said if f.kind == messages.FINISHED]
    assert [(m.index, m.finish_reason[:9]) for m in answers] == [(bad.get("index", 1), "refused: ")]
    handed = [messages.unpack(f, HandoverMessage).index for f in said if f.kind == messages.HANDOVER]
    assert sorted(handed) == [0, 2]


@pytest.mark.parametrize("frame", [request(), Frame(messages.ABORT, b"a"), Frame(messages.FINISHED, b"")])
def test_nothing_is_served_before_the_sides_have_met(frame: Frame) -> None:
    side = PrefillSide(SMALL, lambda frame: None, models("numpy"))
    with pytest.raises(SplitError, match="before the sides have met"):
        side.take(frame)


def test_numbers_that_no_request_has_are_no_request() -> None:
    side, _ = prefill_side()
    body = msgspec.to_builtins(messages.unpack(request(), RequestMessage)) | {"max_dec_len": 2**63}
    with pytest.raises(SplitError, match="max_dec_len"):
        side.take(Frame(messages.REQUEST, msgspec.msgpack.encode(body)))


# -- the decode side


def asking() -> Split:
    """A decode side that has met its peer and has sent it request a, which stays away."""
    split = server_of("split")
    assert isinstance(split, Split)
    split.step()
    split.add("a", b"import ", SIX)
    return split


def finished(tokens: list[int], reason: str, match: tuple[int, int] | None = None) -> Frame:
    return messages.pack(messages.FINISHED, FinishedMessage("a", 0, tokens, reason, match))


@pytest.mark.parametrize(
    "frame",
    [
        finished([65] * 1000, "length"),
        finished([], "length"),
        finished([300], "eos"),
        finished([-1], "eos"),
        finished([65], "\x1b[31m"),
        finished([], "refused: \x1b[31m"),
        finished([], "aborted"),
        finished([65], "refused: no"),
        finished([65], "stop"),
        finished([65], "stop", (0, 0)),
        finished([3], "stop", (0, -1)),
        finished([65], "length", (0, 0)),
    ],
)
def test_an_end_that_was_not_asked_for_is_not_believed(frame: Frame) -> None:
    split = asking()
    with pytest.raises(SplitError):
        split.take(frame)


def handed_over(**other: Any) -> list[Frame]:
    side, said = prefill_side()
    side.take(request(**other))
    while side.engine.has_work:
        side.step()
    return [f for f in said if f.kind in (messages.HANDOVER, messages.BLOCK)]


@pytest.mark.parametrize(
    ("other", "name"),
    [
        ({"request_id": "b"}, "request_id"),
        ({"prompt": list(b"import!")}, "prompt"),
        ({"outputs": [65]}, "output"),
        ({"max_dec_len": 7}, "sampling"),
        ({"stop_seqs": [[1, 2]]}, "stop_seqs"),
    ],
)
def test_a_handover_of_another_request_is_not_believed(other: dict[str, Any], name: str) -> None:
    head = messages.unpack(handed_over(**other)[0], HandoverMessage)
    split = asking()
    with pytest.raises(SplitError, match=f"another {name} than"):
        split.take(messages.pack(messages.HANDOVER, msgspec.structs.replace(head, request_id="a")))
    assert not split.engine.has_work


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda body: np.full(len(body) // 4, np.nan, "<f4").tobytes(), "NaN"),
        (lambda body: np.full(len(body) // 4, np.inf, "<f4").tobytes(), "NaN or infinity"),
        (lambda body: body[:-4], "needed"),
    ],
)
def test_blocks_that_are_none_are_refused(change: Callable[[bytes], bytes], message: str) -> None:
    head, block = handed_over()
    split = asking()
    split.take(head)
    with pytest.raises(SplitError, match=message):
        split.take(Frame(messages.BLOCK, change(block.body)))
    assert not split.engine.has_work


def test_a_true_handover_is_taken() -> None:
    split = asking()
    for frame in handed_over():
        split.take(frame)
    assert split.engine.has_work


# -- the host does not wait


@pytest.mark.parametrize("method", ["none", "mtp"])
def test_the_engine_reads_nothing_from_torch_but_results(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """L6: neither the loop nor the drafts turn a tensor into a number; the model, written for a CPU, does."""
    require("torch")
    import torch

    readers: set[str] = set()
    names = ("__int__", "__bool__", "__float__", "__index__", "item", "tolist", "numpy", "__array__")
    real = {name: getattr(torch.Tensor, name) for name in names}
    for name in names:

        def spy(tensor: Any, *args: Any, real: Any = real[name], **more: Any) -> Any:
            readers.add(sys._getframe(1).f_code.co_filename.replace("\\", "/").rpartition("/")[2])
            return real(tensor, *args, **more)

        monkeypatch.setattr(torch.Tensor, name, spy)
    engine = Engine(replace(SMALL, framework="torch", spec_method=method), models("torch"))
    for number in range(4):
        engine.add(f"{number}", b"def step(", SIX)
    assert len(engine.run()) == 4
    assert engine.counts.decode_rows > 0
    assert "torch_model.py" in readers  # the spies see
    assert not readers & {"engine.py", "spec.py", "results.py", "scheduler.py"}
