"""Hypothesis strategies: calls in which some tasks are wrong, in the state of a reference."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from hypothesis import strategies as st

from slotline.core.config import BatchConfig
from slotline.core.sampling import SamplingParams
from slotline.core.tasks import AbortTask, DecodeTask, PrefillTask, Request, Task
from slotline.testing.reference import ReferenceBatch
from slotline.testing.strategies import calls, prefills, requests

Change = Callable[[BatchConfig, PrefillTask], PrefillTask]


def with_request(task: PrefillTask, **changes: Any) -> PrefillTask:
    """The same task for a request with other attributes."""
    r = task.request
    values: dict[str, Any] = {
        "request_id": r.request_id,
        "prompt_token_ids": r.prompt_token_ids,
        "output_token_ids": r.output_token_ids,
        "draft_token_ids": r.draft_token_ids,
        "sampling": r.sampling,
        "hidden_state": r.hidden_state,
        "extra": r.extra,
    }
    return with_values(task, request=Request(**{**values, **changes}))


def with_values(task: PrefillTask, **changes: Any) -> PrefillTask:
    """The same task with other attributes."""
    values = {name: getattr(task, name) for name in ("request", "start", "end", "block_table", "slot")}
    return PrefillTask(**{**values, **changes})


def with_sampling(**changes: Any) -> Change:
    def change(_config: BatchConfig, task: PrefillTask) -> PrefillTask:
        old = task.request.sampling
        given = {f.name: getattr(old, f.name) for f in fields(SamplingParams) if f.init}
        return with_request(task, sampling=SamplingParams(**{**given, **changes}))

    return change


def _doubled(config: BatchConfig, task: PrefillTask) -> PrefillTask:
    blocks = task.block_table.tolist()
    return with_values(task, block_table=[*blocks, *blocks[:1]])


CHANGES: tuple[Change, ...] = (
    lambda c, t: with_values(t, start=-2),
    lambda c, t: with_values(t, start=t.end),
    lambda c, t: with_values(t, end=len(t.request.history) + 1),
    lambda c, t: with_values(t, end=t.start + c.max_chunk_tokens + 1),
    lambda c, t: with_values(t, end=len(t.request.history) - 1),
    lambda c, t: with_values(t, start=t.start + 1),
    lambda c, t: with_values(t, block_table=()),
    lambda c, t: with_values(t, block_table=[*t.block_table.tolist()[1:], c.num_blocks or 2**31]),
    lambda c, t: with_values(t, block_table=[*t.block_table.tolist(), -1]),
    lambda c, t: with_values(t, block_table=range(c.max_blocks_per_seq + 1)),
    _doubled,
    lambda c, t: with_values(t, slot=c.max_num_seqs),
    lambda c, t: with_values(t, slot=-1),
    lambda c, t: with_values(t, slot=0),
    lambda c, t: with_request(t, prompt_token_ids=()),
    lambda c, t: with_request(t, prompt_token_ids=[0] * c.max_model_len),
    lambda c, t: with_request(t, prompt_token_ids=[*t.request.prompt_token_ids.tolist()[:-1], c.vocab_size]),
    lambda c, t: with_request(t, output_token_ids=[0] * c.max_model_len),
    lambda c, t: with_request(t, output_token_ids=[-1]),
    lambda c, t: with_request(t, draft_token_ids=()),
    lambda c, t: with_request(t, draft_token_ids=[0, c.vocab_size, -5]),
    lambda c, t: with_request(t, hidden_state=[0.5] * ((c.hidden_size or 0) + 1)),
    with_sampling(temperature=math.nan),
    with_sampling(temperature=-0.5),
    with_sampling(top_p=0.0),
    with_sampling(top_p=1.5),
    with_sampling(min_p=-0.1),
    with_sampling(min_p=2.0),
    with_sampling(top_k=-1),
    with_sampling(penalty_score=0.0),
    with_sampling(penalty_score=math.inf),
    with_sampling(max_dec_len=0),
    with_sampling(max_dec_len=1),
    with_sampling(min_dec_len=-1),
    with_sampling(min_dec_len=1000),
    with_sampling(stop_seqs=[[]]),
    with_sampling(stop_seqs=[[1]] * 5),
    with_sampling(stop_seqs=[[1] * 6, [-1, -1], [0, -3, 0]]),
    with_sampling(bad_tokens=[0, 1, 2, 0, 1]),
    with_sampling(bad_tokens=[-1]),
)
"""Each makes most prefill tasks wrong in one way."""


@st.composite
def bad_decodes(draw: st.DrawFn, config: BatchConfig, request_id: str) -> DecodeTask:
    most = config.max_blocks_per_seq
    table, new = draw(
        st.sampled_from(
            [(None, None), ([1], [2]), (None, [-1]), ([0, 1, 1], None), (None, [3, 3]), (None, range(most + 1)),
             ([config.num_blocks or 0], None), (None, [1, 2])]
        )
    )  # fmt: skip
    return DecodeTask(request_id, table, new_blocks=new)


@st.composite
def mixed_calls(draw: st.DrawFn, ref: ReferenceBatch) -> list[Task]:
    """A valid call in which some tasks were made wrong, and to which some wrong or surplus ones were added."""
    config = ref.config
    tasks = draw(calls(ref))
    changed: list[Task] = []
    for task in tasks:
        if isinstance(task, PrefillTask) and draw(st.booleans()):
            for change in draw(st.lists(st.sampled_from(CHANGES), min_size=1, max_size=2)):
                task = change(config, task)
        changed.append(task)
    for request_id in draw(st.lists(st.sampled_from(["a", "b", "c", "x"]), max_size=3)):
        changed.insert(draw(st.integers(0, len(changed))), draw(_surplus(config, request_id)))
    return changed


@st.composite
def _surplus(draw: st.DrawFn, config: BatchConfig, request_id: str) -> Task:
    kind = draw(st.sampled_from(["abort", "decode", "prefill", "wrong"]))
    if kind == "abort":
        return AbortTask(request_id)
    if kind == "decode":
        return draw(bad_decodes(config, request_id))
    task = draw(prefills(config, draw(requests(config, request_id)), slot=draw(st.sampled_from([None, 0, 1, 99]))))
    return task if kind == "prefill" else draw(st.sampled_from(CHANGES))(config, task)
