"""Hypothesis strategies: small configs, layouts, requests, and calls that are valid in a reference's state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from slotline.core.config import ROLES, SPEC_METHODS, BatchConfig
from slotline.core.field import Field, column, extra
from slotline.core.layout import BufferLayout
from slotline.core.sampling import SamplingParams
from slotline.core.standard import mtp_layout, target_layout
from slotline.core.tasks import AbortTask, DecodeTask, FinishTask, PreemptTask, PrefillTask, Request, Task
from slotline.testing.reference import ReferenceBatch, RefTicket
from slotline.testing.reference_insert import first_step_tokens
from slotline.testing.reference_rows import RefRow


@st.composite
def configs(
    draw: st.DrawFn, /, *, roles: Sequence[str] = ROLES, methods: Sequence[str] = SPEC_METHODS, **fixed: Any
) -> BatchConfig:
    """A small config; keyword arguments fix some of its values."""
    method = draw(st.sampled_from(methods))
    drafts = draw(st.integers(1, 3))
    chunk = draw(st.integers(1, 16))
    vocab = draw(st.integers(3, 12))
    length = draw(st.integers(8, 40))
    block = draw(st.integers(1, 4))
    values: dict[str, Any] = {
        "max_num_seqs": draw(st.integers(1, 6)),
        "max_model_len": length,
        "max_chunk_tokens": chunk,
        "block_size": block,
        "num_blocks": -(-length // block) + draw(st.integers(0, 20)),
        "vocab_size": vocab,
        "eos_token_ids": draw(st.sampled_from([(), (1,), (1, 2)])),
        "pad_token_id": draw(st.integers(0, 2)),
        "max_stop_seqs": draw(st.integers(0, 3)),
        "stop_seqs_max_len": draw(st.integers(1, 4)),
        "max_bad_tokens": draw(st.integers(0, 3)),
        "token_dtype": draw(st.sampled_from(["int64", "int32"])),
        "null_block": draw(st.sampled_from([None, 0])),
        "spec_method": method,
        "num_draft_tokens": drafts,
        "mtp_levels": draw(st.integers(1, min(drafts, chunk))),
        "hybrid": draw(st.sampled_from([None, "ngram", "suffix"])) if method == "mtp" else None,
        "hidden_size": draw(st.sampled_from([None, 2])),
        "role": draw(st.sampled_from(roles)),
    }
    return BatchConfig(**{**values, **fixed})


def full_layout(config: BatchConfig, *, multimodal: bool = False) -> BufferLayout:
    """The target's fields, and the drafter's where the method is mtp."""
    layout = target_layout(config, multimodal=multimodal)
    return layout | mtp_layout(config) if config.spec_method == "mtp" else layout


def invented_fields() -> tuple[Field, ...]:
    """Fields that no engine has: one whose slots are axis 1, one on the host, one mirrored."""
    return (
        Field("own_positions", (3, "max_num_seqs", 2), "int32", -7, slot_axis=1,
              on={"prefill": extra("own_positions"), "chunk": 5}),
        Field("own_host", ("max_num_seqs", 2), "float32", 0.5, residency="host",
              on={"prefill": column("temperature"), "decode": column("num_blocks")}),
        Field("own_mirrored", ("max_num_seqs",), "int64", 3, residency="mirrored",
              on={"prefill": column("prompt_len"), "handover": column("num_generated"), "decode": 9}),
    )  # fmt: skip


@st.composite
def layouts(draw: st.DrawFn, config: BatchConfig) -> BufferLayout:
    """The layout of ``config``, sometimes without a group or with invented fields."""
    layout = full_layout(config)
    groups = draw(st.sets(st.sampled_from(["penalties", "bad_words", "thinking", "logprobs", "engine"])))
    layout = layout.without(*sorted(groups)) if groups else layout
    return layout.extend(*invented_fields()) if draw(st.booleans()) else layout


def token_lists(config: BatchConfig, low: int, high: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, config.vocab_size - 1), min_size=low, max_size=high)


@st.composite
def samplings(draw: st.DrawFn, config: BatchConfig, num_prompt: int, num_output: int) -> SamplingParams:
    """Valid sampling values for a request with that many tokens."""
    limit = config.max_model_len - num_prompt
    longest = draw(st.none() | st.integers(num_output + 1, limit + 3))
    least = min(limit, longest or limit)
    stops = draw(st.lists(token_lists(config, 1, config.stop_seqs_max_len), max_size=config.max_stop_seqs))
    return SamplingParams(
        temperature=draw(st.sampled_from([1.0, 0.0, 0.7])),
        top_p=draw(st.sampled_from([1.0, 0.25])),
        min_p=draw(st.sampled_from([0.0, 1.0])),
        top_k=draw(st.sampled_from([0, 40])),
        penalty_score=draw(st.sampled_from([1.0, 1.5])),
        infer_seed=draw(st.sampled_from([0, 2**40])),
        min_dec_len=draw(st.integers(0, min(least, num_output + 3))),
        max_dec_len=longest,
        max_think_lens=draw(st.sampled_from([-1, 8])),
        ignore_eos=draw(st.booleans()),
        enable_thinking=draw(st.booleans()),
        stop_seqs=[seq + [-1] * draw(st.integers(0, 1)) for seq in stops],
        bad_tokens=draw(token_lists(config, 0, config.max_bad_tokens)),
    )


@st.composite
def requests(draw: st.DrawFn, config: BatchConfig, request_id: str, resumed: RefRow | None = None) -> Request:
    """A valid request; ``resumed``: with the prompt and the output of this row, for as long as they leave room."""
    prompt = draw(token_lists(config, 1, config.max_model_len - 1)) if resumed is None else resumed.prompt
    room = config.max_model_len - len(prompt)
    output = draw(token_lists(config, 0, min(3, room - 1))) if resumed is None else resumed.output[: room - 1]
    sampling = draw(st.none() | samplings(config, len(prompt), len(output)))
    given = None if sampling is None else sampling.max_dec_len
    drafts: list[int] = []
    if config.role == "decode":
        need = first_step_tokens(config, room if given is None else min(given, room), len(output) + 1)
        drafts = draw(token_lists(config, need, need + 2))
    hidden = None
    if config.hidden_size is not None and draw(st.booleans()):
        hidden = np.arange(config.hidden_size) + 0.5
    own = (
        {"own_positions": draw(st.sampled_from([4, [[1], [2]], [[1, 2], [3, 4], [5, 6]]]))}
        if draw(st.booleans())
        else {}
    )
    return Request(request_id, prompt, output, drafts, sampling, hidden, own)


@st.composite
def tables(draw: st.DrawFn, config: BatchConfig, num_tokens: int) -> list[int]:
    """A block table that covers ``num_tokens``."""
    need = -(-num_tokens // config.block_size)
    size = draw(st.integers(need, config.max_blocks_per_seq)) if need < config.max_blocks_per_seq else need
    first = draw(st.integers(0, (config.num_blocks or size) - size))
    return list(range(first, first + size))[:: draw(st.sampled_from([1, -1]))]


@st.composite
def prefills(
    draw: st.DrawFn, config: BatchConfig, request: Request, start: int | None = None, slot: int | None = None
) -> PrefillTask:
    """A valid chunk of ``request`` from ``start`` on."""
    size = len(request.history)
    if config.role == "decode":
        given = request.sampling.max_dec_len
        room = config.max_model_len - request.num_prompt_tokens
        first = first_step_tokens(
            config, room if given is None else min(given, room), size - request.num_prompt_tokens + 1
        )
        return PrefillTask(request, draw(st.integers(-1, size)), size, draw(tables(config, size + first)), slot)
    begin = draw(st.integers(0, size - 1)) if start is None else start
    ends = [
        e
        for e in range(begin + 1, min(begin + config.max_chunk_tokens, size) + 1)
        if e == size or size - e >= config.num_levels
    ]
    end = draw(st.sampled_from(ends[::-1]))
    return PrefillTask(request, begin, end, draw(tables(config, end)), slot)


@st.composite
def decodes(draw: st.DrawFn, config: BatchConfig, request_id: str, blocks: list[int]) -> DecodeTask:
    """A valid decode task for a request with these blocks."""
    if draw(st.booleans()):
        return DecodeTask(request_id, draw(tables(config, 0)))
    fresh = [b for b in range(config.num_blocks or 0) if b not in blocks]
    room = min(config.max_blocks_per_seq - len(blocks), len(fresh), 2)
    return DecodeTask(request_id, new_blocks=fresh[: draw(st.integers(0, room))])


def releases(request_id: str) -> st.SearchStrategy[Task]:
    return st.sampled_from([PreemptTask(request_id), AbortTask(request_id), FinishTask(request_id)])


@st.composite
def calls(draw: st.DrawFn, ref: ReferenceBatch, ids: Sequence[str] = ("a", "b", "c", "d", "e", "f", "g")) -> list[Task]:
    """Valid tasks of every kind for one call, in the state of ``ref``."""
    owned = ref.slot_map()
    free = {slot for slot, row in enumerate(ref.rows) if row is None}
    chosen = draw(st.lists(st.sampled_from(ids), unique=True, max_size=4))
    for request_id in chosen:  # releases first, so that their slots count as free
        if request_id in owned and draw(st.integers(0, 3)) == 0:
            free.add(owned[request_id])
    named: list[Task] = []
    for request_id in chosen:
        slot = owned.get(request_id)
        row = None if slot is None else ref.rows[slot]
        released = slot in free
        if released:
            named.append(draw(releases(request_id)))
        if row is None or released:
            taken = [t for t in named if isinstance(t, PrefillTask)]
            if len(taken) < len(free) and draw(st.integers(0, 4)):
                named += draw(_taking(ref, request_id, row, _slot_choices(free, taken)))
        elif _continues(row) and draw(st.booleans()):
            named.append(draw(prefills(ref.config, row.request, row.end)))
        else:
            named.append(draw(decodes(ref.config, request_id, row.blocks)))
    return _mixed(draw, named)


def _slot_choices(free: set[int], taken: Sequence[PrefillTask]) -> list[int | None]:
    """Any slot, or a named one that is free and that no other task of the call claims."""
    return [None, *sorted(free - {t.slot for t in taken if t.slot is not None})]


@st.composite
def _taking(
    draw: st.DrawFn, ref: ReferenceBatch, request_id: str, row: RefRow | None, slots: list[int | None]
) -> list[Task]:
    resumed = row if row is not None and draw(st.booleans()) else None
    request = draw(requests(ref.config, request_id, resumed))
    task = draw(prefills(ref.config, request, slot=draw(st.sampled_from(slots))))
    if draw(st.integers(0, 3)):
        return [task]
    return [task, draw(decodes(ref.config, request_id, task.block_table.tolist()))]


def _continues(row: RefRow) -> bool:
    return row.committed and not row.last and not row.in_open_step


def _mixed(draw: st.DrawFn, tasks: list[Task]) -> list[Task]:
    """The same tasks in another order, the order within a request kept (I3)."""
    shuffled = draw(st.permutations(range(len(tasks))))
    queues: dict[str, list[Task]] = {}
    for task in tasks:
        queues.setdefault(task.request_id, []).append(task)
    return [queues[tasks[i].request_id].pop(0) for i in shuffled]


@st.composite
def accepted(draw: st.DrawFn, ref: ReferenceBatch, ticket: RefTicket) -> tuple[NDArray[Any], NDArray[Any]]:
    """(accept_tokens [S, K + 1], accept_num [S]) as a sampler may give them for a step."""
    config = ref.config
    width = config.num_drafts + 1
    tokens = np.full((config.max_num_seqs, width), -1, config.token_dtype)
    counts = np.zeros(config.max_num_seqs, np.int32)
    for entry in ticket.entries:
        prefilled = entry.prefill or entry.length == 0
        counts[entry.slot] = 1 if prefilled else draw(st.integers(1, min(entry.length, width)))
        tokens[entry.slot] = draw(token_lists(config, width, width))
    return tokens, counts


@st.composite
def drafts(draw: st.DrawFn, ref: ReferenceBatch) -> NDArray[Any]:
    """draft_tokens [S, K], -1 = none."""
    config = ref.config
    rows = st.lists(st.integers(-1, config.vocab_size - 1), min_size=config.num_drafts, max_size=config.num_drafts)
    made = [draw(rows) for _ in range(config.max_num_seqs)]
    return np.array(made, config.token_dtype).reshape(config.max_num_seqs, config.num_drafts)
