"""What a scheduler says: requests, and the five tasks that move them through their slots.

Everything is normalised and copied once, when it is made, and never changed by slotline (rule I5).
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from slotline.core.ids import EMPTY, Ids, IdsLike, as_ids, pack_ids, whole_number
from slotline.core.sampling import DEFAULT, SamplingParams

if TYPE_CHECKING:
    from slotline.core.handover import Handover
    from slotline.core.layout import BufferLayout
    from slotline.core.record import Buffer

_NO_EXTRA: Mapping[str, Any] = MappingProxyType({})


class Request:
    """One request: its prompt, what it has generated so far, and what it asks of the sampler.

    - ``prompt_token_ids``, ``output_token_ids``: token ids [n], copied into one int64 array ``history``.
    - ``draft_token_ids``: role decode only: the first token and the drafts that the prefill side made (D1, D2).
    - ``hidden_state``: [hidden_size], for ``mtp.first_token_hidden_states``.
    - ``extra``: values for fields of your own, by the names that their ``extra(name)`` rules use.

    Raises ``TypeError`` or ``ValueError`` for what is not ids at all; ids outside the vocabulary are a ``TaskError``
    of ``insert_tasks``.
    """

    __slots__ = ("draft_token_ids", "extra", "hidden_state", "history", "num_prompt_tokens", "request_id", "sampling")

    def __init__(
        self,
        request_id: str,
        prompt_token_ids: IdsLike,
        output_token_ids: IdsLike = (),
        draft_token_ids: IdsLike = (),
        sampling: SamplingParams | None = None,
        hidden_state: Any = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        self.request_id = _request_id(request_id)
        prompt = as_ids(prompt_token_ids, "prompt_token_ids")
        output = as_ids(output_token_ids, "output_token_ids")
        self.history: Ids = prompt
        """prompt + output, int64 [n], read-only."""
        if len(output):
            self.history = np.concatenate((prompt, output))
            self.history.flags.writeable = False
        self.num_prompt_tokens: int = len(prompt)
        self.draft_token_ids: Ids = as_ids(draft_token_ids, "draft_token_ids")
        if sampling is not None and not isinstance(sampling, SamplingParams):
            raise TypeError(f"sampling is {sampling!r} ({type(sampling).__name__}), allowed: SamplingParams or None")
        self.sampling: SamplingParams = DEFAULT if sampling is None else sampling
        self.hidden_state: Any = None if hidden_state is None else np.array(hidden_state)
        self.extra: Mapping[str, Any] = MappingProxyType(dict(extra)) if extra else _NO_EXTRA

    @classmethod
    def from_handover(cls, record: Handover | Buffer, layout: BufferLayout | None = None) -> Request:
        """The request that a prefill side handed over, for a ``PrefillTask`` on role decode (D1, D5).

        ``record``: a ``Handover``, or the bytes of one. ``draft_token_ids`` is the first token and the drafts; the
        task's end is ``len(request.history)``. With ``layout`` (this side's) the sender must fit it. All arrays are
        copies.

        Raises ``PacketError`` for bytes that are not a record, ``LayoutError`` for a sender that does not fit.
        """
        from slotline.core.handover import to_request  # a hand-over is made of requests, so it imports this module

        return to_request(record, layout)

    @property
    def prompt_token_ids(self) -> Ids:
        return self.history[: self.num_prompt_tokens]

    @property
    def output_token_ids(self) -> Ids:
        return self.history[self.num_prompt_tokens :]

    def __reduce__(self) -> tuple[Any, ...]:
        parts = (self.prompt_token_ids, self.output_token_ids, self.draft_token_ids)
        return Request, (self.request_id, *parts, self.sampling, self.hidden_state, dict(self.extra))

    def __repr__(self) -> str:
        generated = len(self.history) - self.num_prompt_tokens
        return f"Request({self.request_id!r}, {self.num_prompt_tokens} prompt tokens, {generated} generated)"


class PrefillTask:
    """Prefill ``history[start:end]`` of ``request``. Takes a slot, or continues in the one the request owns.

    ``block_table``: block ids [n], the whole table. ``slot``: a slot to take; None: the lowest free one (rule S1).
    """

    __slots__ = ("block_table", "end", "request", "request_id", "slot", "start")

    def __init__(self, request: Request, start: int, end: int, block_table: IdsLike, slot: int | None = None) -> None:
        if not isinstance(request, Request):
            raise TypeError(f"request is {request!r} ({type(request).__name__}), allowed: a Request")
        self.request = request
        self.request_id = request.request_id
        self.start = whole_number("start", start)
        self.end = whole_number("end", end)
        self.block_table: Ids = as_ids(block_table, "block_table")
        self.slot = None if slot is None else whole_number("slot", slot)

    def __repr__(self) -> str:
        return f"PrefillTask({self.request_id!r}, [{self.start}, {self.end}), {len(self.block_table)} blocks)"


class DecodeTask:
    """New blocks for a running request: the whole ``block_table``, or ``new_blocks`` that are appended to it.

    Exactly one of the two is given (checked by ``insert_tasks``).
    """

    __slots__ = ("block_table", "packed_blocks", "request_id")

    def __init__(
        self, request_id: str, block_table: IdsLike | None = None, *, new_blocks: IdsLike | None = None
    ) -> None:
        self.request_id = _request_id(request_id)
        self.block_table: Ids | None = None if block_table is None else as_ids(block_table, "block_table")
        self.packed_blocks: bytes | None = None if new_blocks is None else pack_ids(new_blocks, "new_blocks")
        """``new_blocks`` as the bytes of its int64: those of many tasks are joined at once."""

    @property
    def new_blocks(self) -> Ids | None:
        packed = self.packed_blocks
        return np.frombuffer(packed, np.int64) if packed else EMPTY if packed is not None else None

    def __repr__(self) -> str:
        return f"DecodeTask({self.request_id!r})"


class _Release:
    __slots__ = ("request_id",)

    def __init__(self, request_id: str) -> None:
        self.request_id = _request_id(request_id)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.request_id!r})"


class PreemptTask(_Release):
    """Take the slot from a request that will be resumed later, by a new PrefillTask over its history so far."""

    __slots__ = ()


class AbortTask(_Release):
    """Take the slot from a request that is given up."""

    __slots__ = ()


class FinishTask(_Release):
    """Take the slot from a request that has ended."""

    __slots__ = ()


ReleaseTask = PreemptTask | AbortTask | FinishTask
Task = PrefillTask | DecodeTask | PreemptTask | AbortTask | FinishTask


def _request_id(value: str) -> str:
    if not isinstance(value, str):
        raise TypeError(f"request_id is {value!r} ({type(value).__name__}), allowed: text")
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ValueError(f"request_id is {value!r}, allowed: text that UTF-8 can write") from None
    return value
