"""CASES.md across the prefill/decode split: C19, C20, C41, C42, with a record between the sides (rules D1 to D5)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import slotline as sl

EOS = 2
METHODS = ("none", "ngram", "suffix", "mtp")
HIDDEN = "mtp.first_token_hidden_states"


class Split:
    """A prefill batch and a decode batch of one framework; ``carry`` is all that passes between them."""

    def __init__(self, framework: str, **values: Any) -> None:
        self.backend = sl.load_backend("cpu", framework=framework)
        self.prefill, self.decode = self.batch("prefill", **values), self.batch("decode", **values)

    def batch(self, role: str, **values: Any) -> sl.SlotBatch:
        settings: dict[str, Any] = {
            "max_num_seqs": 4,
            "max_model_len": 32,
            "max_chunk_tokens": 8,
            "block_size": 4,
            "vocab_size": 1000,
            "eos_token_ids": (EOS,),
            "spec_method": "mtp",
            "num_draft_tokens": 3,
            **values,
        }
        config = sl.BatchConfig(role=role, **settings)
        layout = sl.target_layout(config)
        layout = layout | sl.mtp_layout(config) if config.spec_method == "mtp" else layout
        return sl.SlotBatch(layout, self.backend)

    def compute(self, request: sl.Request, token: int, drafts: list[int], slot: int | None = None) -> list[sl.Output]:
        """Prefill ``request`` in chunks; the last one gives ``token`` and ``drafts``."""
        longest, levels = self.prefill.config.max_chunk_tokens, self.prefill.config.num_levels
        start, size, outputs = 0, len(request.history), []
        while start < size:
            end = min(start + longest, size)
            end = end if end == size else min(end, size - levels)
            sl.insert_tasks(self.prefill, [sl.PrefillTask(request, start, end, range(8), slot)])
            outputs = step(self.prefill, token, drafts)
            start = end
        return outputs

    def carry(self, request_id: str) -> bytes:
        """The record, as bytes; the prefill side is done with the request."""
        raw = sl.export_handover(self.prefill, request_id).encode()
        self.prefill.release([request_id])
        return raw

    def take(self, raw: bytes, slot: int | None = None) -> sl.InsertReceipt:
        request = sl.Request.from_handover(raw, self.decode.layout)
        return sl.insert_tasks(self.decode, [sl.PrefillTask(request, 0, len(request.history), range(8), slot)])


def step(batch: sl.SlotBatch, token: int, drafts: list[int] | None = None) -> list[sl.Output]:
    """A step that gives each row ``token``, and ``drafts`` for the next."""
    size, width = batch.config.max_num_seqs, batch.config.num_drafts
    ticket = batch.ticket()
    sl.commit_step(batch, ticket, np.full((size, width + 1), token), np.ones(size, np.int32))
    if width:
        block = np.full((size, width), -1)
        block[:, : len(drafts or [])] = drafts or []
        sl.commit_drafts(batch, ticket, block)
    return batch.fetch(ticket).result()


def get(batch: sl.SlotBatch, name: str, slot: int) -> Any:
    return batch.host_array(name)[slot].tolist()


LENGTHS = ("seq_lens_encoder", "seq_lens_decoder", "seq_lens_this_time", "step_idx", "stop_flags")


def test_c19_a_prefill_side_makes_one_token(framework: str) -> None:  # D1
    sides = Split(framework, spec_method="none")
    request = sl.Request("r", range(11, 17))
    (out,) = sides.compute(request, 40, [])
    assert (out.tokens, out.finish_reason) == ([40], sl.FinishReason.HANDOVER)
    assert (sides.prefill.launch_tokens, sides.prefill.ticket().request_ids) == (0, [])
    receipt = sides.take(sides.carry("r"))
    assert [get(sides.decode, n, 0) for n in LENGTHS] == [0, 6, 1, 1, False]
    assert get(sides.decode, "input_ids", 0)[0] == 40
    assert get(sides.decode, "token_ids_all", 0)[:8] == [*range(11, 17), 40, -1]
    assert (receipt.launch_tokens, receipt.has_prefill, receipt.ended) == (1, False, {})
    assert sides.prefill.occupied == []


@pytest.mark.parametrize(
    ("sampling", "token", "reason", "match"),
    [
        (sl.SamplingParams(), EOS, sl.FinishReason.EOS, None),
        (sl.SamplingParams(max_dec_len=1), 40, sl.FinishReason.LENGTH, None),
        (sl.SamplingParams(stop_seqs=[[9], [40]]), 40, sl.FinishReason.STOP, (1, 0)),
    ],
)
def test_c20_the_stop_rule_ends_it_on_the_prefill_side(
    framework: str, sampling: sl.SamplingParams, token: int, reason: int, match: tuple[int, int] | None
) -> None:  # D1, T
    sides = Split(framework)
    (out,) = sides.compute(sl.Request("r", [11, 12, 13], sampling=sampling), token, [50])
    assert (out.tokens, out.finish_reason, out.stop_match) == ([token], reason, match)
    with pytest.raises(sl.TaskError, match="answer the client"):
        sl.export_handover(sides.prefill, "r")


def test_c20_the_decode_side_tests_the_token_again(framework: str) -> None:  # D4
    """A sender that is not slotline hands over a token that ends the request: it is emitted once, in the receipt."""
    sides = Split(framework)
    sides.compute(sl.Request("r", [11, 12, 13], sampling=sl.SamplingParams(stop_seqs=[[40]])), 41, [50])
    raw = sides.carry("r").replace(np.int32(41).tobytes(), np.int32(40).tobytes())
    with pytest.raises(sl.PacketError, match="checksum"):
        sides.take(raw)
    request = sl.Request("r", [11, 12, 13], draft_token_ids=[40, 50], sampling=sl.SamplingParams(stop_seqs=[[40]]))
    receipt = sl.insert_tasks(sides.decode, [sl.PrefillTask(request, 0, 3, range(8), 2)])
    assert {k: tuple(v) for k, v in receipt.ended.items()} == {"r": (40, sl.FinishReason.STOP, (0, 0))}
    assert [get(sides.decode, n, 2) for n in LENGTHS] == [0, 0, 0, 1, True]
    assert get(sides.decode, "draft_tokens", 2) == [-1] * 4
    assert (receipt.launch_tokens, sides.decode.ticket().request_ids) == (0, [])


@pytest.mark.parametrize("method", METHODS)
def test_c41_first_step_of_each_method(framework: str, method: str) -> None:  # D2, D3
    sides = Split(framework, spec_method=method)
    (out,) = sides.compute(sl.Request("r", range(20, 32)), 101, [201, 202, 203])
    assert out.draft_tokens == ([] if method == "none" else [201, 202, 203])
    other = sl.Request("other", [5, 6], draft_token_ids=[7, 8])
    before = sl.insert_tasks(sides.decode, [sl.PrefillTask(other, 0, 2, range(8), 0)]).launch_tokens
    receipt = sides.take(sides.carry("r"), slot=3)
    tokens = 2 if method == "mtp" else 1
    assert receipt.launch_tokens == before + tokens
    assert [get(sides.decode, n, 3) for n in LENGTHS] == [0, 12, tokens, 1, False]
    row = {"none": [-1], "ngram": [101, -1, -1, -1], "suffix": [101, -1, -1, -1], "mtp": [101, 201, -1, -1]}[method]
    assert get(sides.decode, "draft_tokens", 3) == row
    assert get(sides.decode, "actual_draft_token_num", 3) == tokens - 1


@pytest.mark.parametrize("method", METHODS)
def test_c41_missing_ids(framework: str, method: str) -> None:  # D2
    """A record always brings the first token; MTP needs a draft too, and the error names the request."""
    sides = Split(framework, spec_method=method)
    sides.compute(sl.Request("poor", [1, 3, 5]), 101, [])
    raw, before = sides.carry("poor"), sides.decode.digest()
    if method == "mtp":
        with pytest.raises(sl.TaskError, match="'poor'") as caught:
            sides.take(raw)
        assert tuple(caught.value.errors[0]) == ("poor", "draft_token_ids", 1, 2)
        assert sides.decode.digest() == before
    else:
        assert sides.take(raw).slots == {"poor": 0}
    sides = Split(framework, spec_method=method)
    with pytest.raises(sl.TaskError, match="'bare'"):
        sl.insert_tasks(sides.decode, [sl.PrefillTask(sl.Request("bare", [1, 3]), 0, 2, range(8))])


def test_c41_no_draft_behind_the_length_limit(framework: str) -> None:  # D2, M9
    for longest, drafts in ((2, 0), (3, 1)):
        sides = Split(framework)
        request = sl.Request("r", [1, 3, 5], sampling=sl.SamplingParams(max_dec_len=longest))
        (out,) = sides.compute(request, 101, [201, 202, 203])
        assert out.draft_tokens == [201, 202, 203][:drafts]
        assert sides.take(sides.carry("r")).launch_tokens == 1 + drafts
        assert get(sides.decode, "draft_tokens", 0) == [101, *[201][:drafts], *[-1] * (3 - drafts)]


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
@pytest.mark.parametrize("width", [4, 24])
def test_c42_hidden_state_arrives_as_it_was_sent(framework: str, width: int, dtype: str) -> None:  # D5
    sides = Split(framework, hidden_size=width, hidden_dtype=dtype)
    assert sides.prefill.layout.shape(HIDDEN) == sides.decode.layout.shape(HIDDEN) == (4, width)
    states = {"a": np.linspace(-3, 2, width), "b": np.linspace(0.1, 100, width)}
    for slot, (name, state) in enumerate(states.items(), start=1):
        sides.compute(sl.Request(name, [11, 12, 13]), 40, [50], slot)
        sl.async_set_value(sides.prefill[HIDDEN][slot], state)
    sent = sides.prefill.host_array(HIDDEN).copy()
    for name, slot in (("a", 3), ("b", 0)):
        sides.take(sides.carry(name), slot)
    here = sides.decode.host_array(HIDDEN)
    assert here[3].tobytes() == sent[1].tobytes()
    assert here[0].tobytes() == sent[2].tobytes()
    assert np.allclose(here[3].astype(np.float64), states["a"], rtol=0.01)
    assert not here[1:3].astype(np.float64).any()


@pytest.mark.parametrize(("name", "values"), [("hidden_size", (4, 24)), ("hidden_dtype", ("float32", "float16"))])
def test_c42_a_differing_side_is_refused(framework: str, name: str, values: tuple[Any, Any]) -> None:  # D5
    sides, others = (Split(framework, **{"hidden_size": 4, name: value}) for value in values)
    said = f"{name} is {values[0]} here and {values[1]} there"
    with pytest.raises(sl.LayoutError, match=said):
        sl.check_peer(sides.prefill.layout, sl.Peer.of(others.decode.layout).encode())
    sides.compute(sl.Request("r", [11, 12]), 40, [50])
    raw, before = sides.carry("r"), others.decode.digest()
    with pytest.raises(sl.LayoutError, match=name):
        others.take(raw)
    assert others.decode.digest() == before


@pytest.mark.parametrize("method", METHODS)
def test_d1_preempted_on_the_decode_side(framework: str, method: str) -> None:
    """It goes back to a prefill side over its history so far; first token and draft are made anew."""
    sides = Split(framework, spec_method=method)
    prompt = [31, 32, 33, 34]
    sides.compute(sl.Request("r", prompt), 101, [201])
    sides.take(sides.carry("r"))
    told = [101]
    for token in (102, 103):
        told += step(sides.decode, token, [8])[0].tokens
    sl.insert_tasks(sides.decode, [sl.PreemptTask("r")])
    assert sides.decode.occupied == []

    sides.compute(sl.Request("r", prompt, told), 104, [204])
    raw = sides.carry("r")
    again = sl.Request.from_handover(raw)
    assert again.output_token_ids.tolist() == [101, 102, 103]
    assert again.draft_token_ids.tolist() == ([104] if method == "none" else [104, 204])
    sides.take(raw, slot=1)
    assert [get(sides.decode, n, 1) for n in LENGTHS] == [0, 7, 2 if method == "mtp" else 1, 4, False]
    assert get(sides.decode, "token_ids_all", 1)[:9] == [*prompt, 101, 102, 103, 104, -1]
    assert step(sides.decode, 105)[0].tokens == [105]


def test_c61_generated_before_the_split_counts(framework: str) -> None:  # T, C61
    """A stop sequence may begin in what the prefill side generated, and never in the prompt."""
    sampling = sl.SamplingParams(stop_seqs=[[6, 7, 8]])
    sides = Split(framework, spec_method="none")
    (out,) = sides.compute(sl.Request("r", [5, 6], [6], sampling=sampling), 7, [])
    assert out.finish_reason == sl.FinishReason.HANDOVER
    sides.take(sides.carry("r"))
    (out,) = step(sides.decode, 8)
    assert (out.finish_reason, out.stop_match) == (sl.FinishReason.STOP, (0, 0))
    sides = Split(framework, spec_method="none")
    sides.compute(sl.Request("r", [5, 6], sampling=sampling), 7, [])
    sides.take(sides.carry("r"))
    assert step(sides.decode, 8)[0].finish_reason == sl.FinishReason.NONE
