"""Step functions do the same operations on the same shapes whatever the buffers hold, and look at no value (L2)."""

from __future__ import annotations

from typing import Any

import numpy as np
from frameworks import fewer, tensor
from hypothesis import given
from hypothesis import strategies as st
from tracing import Trace, tracing_backend

import slotline as sl

SLOTS, DRAFTS = 4, 3


def life(framework: str, data: st.DataObject, levels: int, role: str) -> list[Trace]:
    """What every step function of two steps does, for requests and tokens drawn from ``data``."""
    config = sl.BatchConfig(
        max_num_seqs=SLOTS, max_model_len=32, max_chunk_tokens=8, block_size=32, vocab_size=9, eos_token_ids=(1, 2),
        max_stop_seqs=2, stop_seqs_max_len=3, spec_method="mtp", num_draft_tokens=DRAFTS, mtp_levels=levels, role=role,
    )  # fmt: skip
    backend, trace = tracing_backend(framework)
    batch = sl.SlotBatch(sl.target_layout(config) | sl.mtp_layout(config), backend)
    ids = st.integers(0, 8)
    for name in "abcd"[: data.draw(st.integers(0, 4))]:
        prompt = data.draw(st.lists(ids, min_size=1, max_size=12))
        stops = data.draw(st.lists(st.lists(ids, min_size=1, max_size=3), max_size=2))
        end = len(prompt) if len(prompt) <= 8 else 4
        request = sl.Request(name, prompt, sampling=sl.SamplingParams(stop_seqs=stops))
        sl.insert_tasks(batch, [sl.PrefillTask(request, 0, end, [0])])
    traces: list[Trace] = []

    def note(call: Any) -> Any:
        trace.clear()
        result = call()
        traces.append(list(trace))
        return result

    for _ in range(2):
        step = note(lambda: sl.prepare_step(batch, num_tokens=40))
        tokens = [data.draw(st.lists(ids, min_size=DRAFTS + 1, max_size=DRAFTS + 1)) for _ in range(SLOTS)]
        counts = tensor(framework, np.ones(SLOTS), "int32")
        note(
            lambda step=step, tokens=tokens, counts=counts: sl.commit_step(
                batch, step, tensor(framework, tokens), counts
            )
        )
        drafted = np.array([data.draw(st.lists(st.integers(-1, 8), min_size=3, max_size=3)) for _ in range(SLOTS)])
        for level in range(1, DRAFTS + 1):
            before = tensor(framework, drafted[:, : level - 1])
            note(lambda step=step, level=level, before=before: sl.prepare_draft(batch, step, level, before))
        note(lambda step=step, drafted=drafted: sl.commit_drafts(batch, step, tensor(framework, drafted)))
    return traces


def test_l2_the_same_operations_for_all_data(framework: str) -> None:
    wanted: dict[tuple[int, str], list[Trace]] = {}

    @fewer(3, framework)
    @given(data=st.data(), levels=st.integers(1, DRAFTS), role=st.sampled_from(["mixed", "prefill"]))
    def same(data: st.DataObject, levels: int, role: str) -> None:
        traces = life(framework, data, levels, role)
        assert all(traces)
        assert wanted.setdefault((levels, role), traces) == traces

    same()
