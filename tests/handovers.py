"""Batches, requests and records of the prefill/decode split, for the tests of the hand-over."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest

import slotline as sl

HEADER = "<4sHHQ8s"
PROMPT = [5, 6, 7, 8]


def make(role: str, **values: Any) -> sl.SlotBatch:
    settings: dict[str, Any] = {
        "max_num_seqs": 3,
        "max_model_len": 24,
        "vocab_size": 100,
        "block_size": 4,
        "eos_token_ids": (2,),
        "spec_method": "mtp",
        "num_draft_tokens": 2,
        "hidden_size": 4,
        **values,
    }
    config = sl.BatchConfig(role=role, **settings)
    layout = sl.target_layout(config)
    return sl.SlotBatch(
        layout | sl.mtp_layout(config) if config.spec_method == "mtp" else layout, sl.load_backend("cpu")
    )


def request(**values: Any) -> sl.Request:
    sampling = sl.SamplingParams(temperature=0.5, max_dec_len=9, stop_seqs=[[1, 2], [3, -1]], bad_tokens=[4], top_k=7)
    return sl.Request("r1", PROMPT, [9], **{"sampling": sampling, "extra": {"own": [[1, 2], [3, 4]]}, **values})


def step(batch: sl.SlotBatch, token: int, draft: int = 8) -> list[sl.Output]:
    """One step that gives every row ``token``, and drafts."""
    size, width = batch.config.max_num_seqs, batch.config.num_drafts
    ticket = batch.ticket()
    sl.commit_step(batch, ticket, np.full((size, width + 1), token), np.ones(size, np.int32))
    if width:
        sl.commit_drafts(batch, ticket, np.full((size, width), draft))
    return batch.fetch(ticket).result()


def prefilled(asked: sl.Request | None = None, **values: Any) -> sl.SlotBatch:
    """A prefill batch that holds a request which is ready to be handed over."""
    batch = make("prefill", **values)
    asked = request() if asked is None else asked
    sl.insert_tasks(batch, [sl.PrefillTask(asked, 0, len(asked.history), range(6), slot=1)])
    if batch.layout.by_key("mtp.first_token_hidden_states") is not None:
        sl.async_set_value(batch["mtp.first_token_hidden_states"][1], [0.5, -1.25, 3, 4])
    step(batch, 77)
    return batch


def record(**values: Any) -> bytes:
    return sl.export_handover(prefilled(**values), "r1").encode()


def framed(body: bytes, magic: bytes = b"SLHO", version: int = 1, flags: int = 0) -> bytes:
    """As ``docs/handover.md`` describes it."""
    return struct.pack(HEADER, magic, version, flags, len(body), hashlib.blake2b(body, digest_size=8).digest()) + body


def body_of(raw: bytes) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.msgpack.decode(raw[24:])
    return found


def altered(change: Callable[[dict[str, Any]], Any], raw: bytes | None = None, magic: bytes = b"SLHO") -> bytes:
    body = body_of(record() if raw is None else raw)
    change(body)
    return framed(msgspec.msgpack.encode(body), magic)


def ids(*numbers: int) -> bytes:
    return np.array(numbers, "<i4").tobytes()


def setter(*path: Any) -> Callable[[dict[str, Any]], None]:
    """Sets the part at ``path[:-1]`` to ``path[-1]``."""

    def change(body: dict[str, Any]) -> None:
        at: Any = body
        for key in path[:-2]:
            at = at[key]
        at[path[-2]] = path[-1]

    return change


def hostile(raw: bytes, text: str | None = None) -> None:
    for read in (sl.Handover.decode, sl.Request.from_handover):
        with pytest.raises(sl.PacketError, match=text):
            read(raw)
