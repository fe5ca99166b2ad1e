"""Every array of every draft level as the reference has it, along steps in which rows move, leave and come (L5, M)."""

from __future__ import annotations

from typing import Any

import numpy as np
from frameworks import backend, fewer, host, tensor
from hypothesis import given
from hypothesis import strategies as st

import slotline as sl
from slotline.testing import strategies as some
from slotline.testing import strategies_draft as some_drafts
from slotline.testing.reference import ReferenceBatch, RefTicket
from slotline.testing.reference_draft import is_late, packed_draft, same


def disturb(data: st.DataObject, batch: sl.SlotBatch, ref: ReferenceBatch) -> None:
    """Between two levels: rows move, leave, come, or continue their prompt."""
    kind = data.draw(st.sampled_from(["nothing", "swap", "condense", "release", "insert", "continue"]))
    ids = sorted(ref.slot_map())
    if kind == "swap":
        i, j = (data.draw(st.integers(0, batch.config.max_num_seqs - 1)) for _ in range(2))
        batch.swap(i, j)
        ref.swap(i, j)
    elif kind == "condense":
        assert batch.condense() == ref.condense()
    elif kind == "release" and ids:
        gone = [data.draw(st.sampled_from(ids))]
        batch.release(gone)
        ref.release(gone)
    elif kind in ("insert", "continue"):
        rows = [row for _, row in ref.occupied() if row.committed and not row.last and not row.in_open_step]
        tasks: list[Any] = [data.draw(some.prefills(ref.config, row.request, row.end)) for row in rows]
        tasks = data.draw(some.calls(ref)) if kind == "insert" else tasks
        sl.insert_tasks(batch, tasks)
        ref.insert(tasks)


def check_levels(
    data: st.DataObject, batch: sl.SlotBatch, ref: ReferenceBatch, step: sl.Ticket, ticket: RefTicket
) -> Any:
    """All levels of a committed step; the drafts [S, K] that they were given."""
    framework, config = batch.backend.framework, batch.config
    drafts = data.draw(some_drafts.drafted(ref, config.num_drafts + 1, lowest=0))
    rows = data.draw(some_drafts.micro_batches(ticket))
    for level in range(1, config.num_drafts + 1):
        disturb(data, batch, ref)
        if is_late(ref, ticket, rows):
            break
        before = drafts[:, : level - 1]
        draft = sl.prepare_draft(batch, step, level, tensor(framework, before), rows)
        for name, wanted in packed_draft(ref, ticket, level, step.num_tokens, before, rows).items():
            got = host(getattr(draft, name)).tolist()
            assert same(got, wanted) if name == "input_ids" else got == wanted, (level, name, got, wanted)
    return drafts


def test_l5_rows_that_take_no_part(framework: str) -> None:
    """A chunk that was continued since the commit, a row that the stop rule ended, one that was released."""
    config = sl.BatchConfig(
        max_num_seqs=4, max_model_len=16, max_chunk_tokens=4, block_size=4, vocab_size=99, spec_method="mtp",
        num_draft_tokens=2, mtp_levels=1,
    )  # fmt: skip
    batch = sl.SlotBatch(some.full_layout(config), backend(framework))
    long, ended = sl.Request("long", range(10, 20)), sl.SamplingParams(max_dec_len=1)
    others = [sl.Request("ended", [1, 2], sampling=ended), sl.Request("gone", [3]), sl.Request("on", [4, 5, 6])]
    whole = [sl.PrefillTask(r, 0, len(r.history), [0]) for r in others]
    sl.insert_tasks(batch, [sl.PrefillTask(long, 0, 4, [1]), *whole])
    step = sl.prepare_step(batch, rows=["long", "ended", "gone", "on"])
    sl.commit_step(batch, step, np.full((4, 3), 50), np.ones(4, np.int32))
    first = host(sl.prepare_draft(batch, step, 1).cu_seqlens_q).tolist()
    assert first == [0, 4, 4, 5, 8]  # the chunk is drafted as long as its buffers are there
    sl.insert_tasks(batch, [sl.PrefillTask(long, 4, 8, [1, 2]), sl.FinishTask("gone")])
    draft = sl.prepare_draft(batch, step, 1)
    assert host(draft.cu_seqlens_q).tolist() == [0, 0, 0, 0, 3]
    assert host(draft.input_ids)[:3].tolist() == [5, 6, 50]
    assert host(draft.hidden_rows)[:3].tolist() == [7, 8, 9]  # behind the 4, 2 and 1 tokens of the others
    above = sl.prepare_draft(batch, step, 2, tensor(framework, np.full((4, 1), 60)))
    assert host(above.cu_seqlens_q).tolist() == [0, 0, 0, 0, 1]
    assert [host(above.input_ids)[0], host(above.positions)[0], host(above.hidden_rows)[0]] == [60, 3, 2]


def test_l5_every_level_as_the_reference(framework: str) -> None:
    @fewer(1, framework)
    @given(st.data())
    def every_level(data: st.DataObject) -> None:
        config = data.draw(
            some.configs(
                methods=["mtp"], eos_token_ids=(), max_stop_seqs=data.draw(st.sampled_from([0, 1])), max_num_seqs=4,
                max_model_len=data.draw(st.integers(20, 40)), num_blocks=60, block_size=4,
            )
        )  # fmt: skip
        layout = some.full_layout(config)
        batch, ref = sl.SlotBatch(layout, backend(framework)), ReferenceBatch(layout)
        for _ in range(data.draw(st.integers(2, 5))):
            tasks = data.draw(some.calls(ref))
            sl.insert_tasks(batch, tasks)
            ref.insert(tasks)
            step, ticket = sl.prepare_step(batch), ref.ticket()
            tokens, counts = data.draw(some.accepted(ref, ticket))
            sl.commit_step(batch, step, tensor(framework, tokens), tensor(framework, counts))
            ref.commit(ticket, tokens, counts)
            drafts = check_levels(data, batch, ref, step, ticket)
            if not ref.drafts_are_late(ticket):
                sl.commit_drafts(batch, step, tensor(framework, drafts))
                ref.commit_drafts(ticket, drafts)
            if data.draw(st.booleans()):
                outputs = [tuple(o) for o in batch.fetch(step).result()]
                assert outputs == [tuple(o) for o in ref.outputs(ticket)]
                ref.taken(ticket)
            assert np.array_equal(host(batch["step_idx"]), ref.arrays["step_idx"])
        assert ref.compare(batch) is None

    every_level()
