"""The hand-over of a request from a prefill batch to a decode batch, as a record that travels (rule D5).

Whatever ``Handover`` exists holds only what was checked: the checks run when it is made, by ``export_handover`` or from
bytes. The format is described in ``docs/handover.md``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from slotline.core import arrays, record
from slotline.core.arrays import PackedArray
from slotline.core.errors import Fault, LayoutError, PacketError, TaskError
from slotline.core.ids import Ids
from slotline.core.layout import BufferLayout
from slotline.core.peer import Peer, check_peer
from slotline.core.sampling import SCALAR_KINDS, UNSET, SamplingParams
from slotline.core.stop import FinishReason
from slotline.core.tasks import Request

if TYPE_CHECKING:
    from slotline.core.batch import SlotBatch
    from slotline.core.fetch import Output

    SamplingValues = msgspec.Struct
else:
    _int64 = Annotated[int, msgspec.Meta(ge=UNSET + 1, le=2**63 - 1)]
    _types = {"float": float, "int": _int64, "bool": bool}
    SamplingValues = msgspec.defstruct(
        "SamplingValues",
        [(n, _int64 | None if n == "max_dec_len" else _types[kind]) for n, kind in SCALAR_KINDS.items()],
        frozen=True, kw_only=True, forbid_unknown_fields=True,
    )  # fmt: skip
    """The numbers of SamplingParams; a new parameter there is a new one here."""

MAGIC = b"SLHO"
MAX_STOP_SEQS = 4096
"""More than anyone asks for; each costs an array on arrival."""
HIDDEN = "mtp.first_token_hidden_states"


class Handover(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request between its prefill side and its decode side. Immutable; token ids are little-endian int32.

    ``PacketError`` when made of values that contradict each other or the sides' limits.
    """

    peer: Peer
    """The prefill side, which the decode side must fit (``check_peer``)."""
    request_id: str
    prompt: bytes
    output: bytes
    """Tokens generated before the first token of this prefill."""
    first_step: bytes
    """The first token, then the drafts."""
    values: SamplingValues
    stop_lens: bytes
    """Lengths of the stop sequences, int32."""
    stop_ids: bytes
    """The stop sequences one behind the other."""
    bad_ids: bytes
    hidden: bytes | None
    """The row of ``mtp.first_token_hidden_states``, in the peer's hidden_dtype."""
    extras: tuple[PackedArray, ...]
    """The request's own values, ascending by name."""

    def __post_init__(self) -> None:
        peer, vocab = self.peer, self.peer.vocab_size
        if peer.role != "prefill":
            raise PacketError(f"a hand-over: peer.role is {peer.role!r}, allowed: 'prefill'")
        check = record.check_ids
        prompt = check("prompt", self.prompt, vocab, 1, peer.max_model_len - 1)
        output = check("output", self.output, vocab, 0, peer.max_model_len - len(prompt) - 1)
        check("first_step", self.first_step, vocab, 1, peer.max_model_len - len(prompt) - len(output))
        lens = check("stop_lens", self.stop_lens, 2**31 - 1, 0, MAX_STOP_SEQS)
        total = len(check("stop_ids", self.stop_ids, vocab))
        if (lens == 0).any() or int(lens.sum(dtype=np.int64)) != total:
            raise PacketError(
                f"stop_lens add up to {int(lens.sum())}, each at least 1; allowed: {total}, as stop_ids has"
            )
        check("bad_ids", self.bad_ids, vocab)
        for name in SCALAR_KINDS:
            value = getattr(self.values, name)
            if isinstance(value, float) and not math.isfinite(value):
                raise PacketError(f"values.{name} is {value}, allowed: finite numbers")
        self._check_hidden()
        names = [a.name for a in self.extras]
        if names != sorted(set(names)):
            raise PacketError(f"extras are named {names}, allowed: ascending, each once")

    def _check_hidden(self) -> None:
        size, dtype = self.peer.hidden_size, self.peer.hidden_dtype
        if (self.hidden is None) != (size is None):
            given = "missing" if self.hidden is None else f"{len(self.hidden)} bytes"
            raise PacketError(f"hidden is {given}, allowed: a row of hidden_size {size}")
        if self.hidden is not None and size is not None and dtype is not None:
            arrays.check("hidden", self.hidden, dtype, (size,))

    # -- what it says

    @property
    def prompt_token_ids(self) -> Ids:
        """int64 [n], a copy, as all that follow."""
        return record.ids_from_bytes(self.prompt)

    @property
    def output_token_ids(self) -> Ids:
        return record.ids_from_bytes(self.output)

    @property
    def first_token(self) -> int:
        return int(self.draft_token_ids[0])

    @property
    def draft_token_ids(self) -> Ids:
        """The first token and the drafts, as ``Request`` takes them."""
        return record.ids_from_bytes(self.first_step)

    @property
    def sampling(self) -> SamplingParams:
        ends = np.cumsum(record.ids_from_bytes(self.stop_lens))
        stops = np.split(record.ids_from_bytes(self.stop_ids), ends[:-1]) if len(ends) else []
        values = msgspec.structs.asdict(self.values)
        return SamplingParams(**values, stop_seqs=stops, bad_tokens=record.ids_from_bytes(self.bad_ids))

    @property
    def hidden_state(self) -> NDArray[Any] | None:
        """[hidden_size]; bfloat16 as float32, which holds the same numbers. None: the layout does not keep it."""
        if self.hidden is None or self.peer.hidden_dtype is None:
            return None
        return arrays.unpack(self.hidden, self.peer.hidden_dtype, (self.peer.hidden_size or 0,))

    @property
    def extra(self) -> Mapping[str, NDArray[Any]]:
        return {a.name: a.array for a in self.extras}

    def __repr__(self) -> str:
        counts = [len(ids) // 4 for ids in (self.prompt, self.output, self.first_step)]
        return (
            f"Handover({self.request_id!r}, {counts[0]} prompt tokens, {counts[1]} generated, {counts[2]} first step)"
        )

    # -- as bytes

    def encode(self) -> bytes:
        """The record as bytes. ``PacketError`` if it is longer than ``record.MAX_BYTES``."""
        return record.encode(self, MAGIC)

    @classmethod
    def decode(cls, data: record.Buffer) -> Handover:
        """The record in ``data``, checked; its arrays are copies. ``PacketError`` for anything else."""
        return record.decode(data, MAGIC, cls, "a hand-over")


def export_handover(batch: SlotBatch, request_id: str) -> Handover:
    """What the decode side needs of a request that a handover ended here (D5).

    Call it on role prefill, after the step's ``batch.fetch(step).result()`` and before the request is released. The
    hidden-state row is read from the device, which waits for it; all else is known on the host.

    Raises ``TaskError`` naming the request if it owns no slot, its result was not fetched, or the stop rule ended it;
    ``PacketError`` if its hidden-state row is not finite.
    """
    slot = batch.slot_of(request_id)
    if batch.config.role != "prefill":
        _refuse(request_id, "role", batch.config.role, "prefill", "only a prefill side hands over")
    occupant = batch.slots.occupant(slot)
    output: Output | None = occupant.output
    if output is None:
        hint = "take its result first: batch.fetch(step).result()"
        _refuse(request_id, "output", None, "a fetched result", hint)
    assert output is not None
    if output.finish_reason == FinishReason.NONE:
        _refuse(request_id, "end", occupant.end, len(occupant.request.history), "its last chunk is not committed yet")
    if output.finish_reason != FinishReason.HANDOVER:
        why = FinishReason(output.finish_reason).name.lower()
        hint = f"it ended here (reason {why}); answer the client and release it"
        _refuse(request_id, "finish_reason", output.finish_reason, int(FinishReason.HANDOVER), hint)
    request = occupant.request
    stops = () if request.sampling.lists is None else request.sampling.lists.stops
    words = np.frombuffer(request.sampling.packed, SamplingParams.RECORD)[0].item()
    number = {
        name: bool(word) if kind == "bool" else word
        for (name, kind), word in zip(SCALAR_KINDS.items(), words, strict=True)
    }
    if number["max_dec_len"] == UNSET:
        number["max_dec_len"] = None
    return Handover(
        peer=Peer.of(batch.layout),
        request_id=request_id,
        prompt=record.ids_to_bytes(request.prompt_token_ids),
        output=record.ids_to_bytes(request.output_token_ids),
        first_step=record.ids_to_bytes([*output.tokens, *output.draft_tokens]),
        values=SamplingValues(**number),
        stop_lens=record.ids_to_bytes([len(seq) for seq in stops]),
        stop_ids=record.ids_to_bytes(np.concatenate(stops) if stops else []),
        bad_ids=record.ids_to_bytes(request.sampling.bad_tokens),
        hidden=_hidden_row(batch, slot),
        extras=_extras(request),
    )


def to_request(handover: Handover | record.Buffer, layout: BufferLayout | None = None) -> Request:
    """``Request.from_handover``."""
    if not isinstance(handover, Handover):
        handover = Handover.decode(handover)
    if layout is not None:
        if layout.config.role != "decode":
            raise LayoutError(f"role is {layout.config.role!r}, allowed: 'decode', which takes what was handed over")
        check_peer(layout, handover.peer)
    return Request(
        handover.request_id,
        handover.prompt_token_ids,
        handover.output_token_ids,
        handover.draft_token_ids,
        handover.sampling,
        handover.hidden_state,
        handover.extra,
    )


def _refuse(request_id: str, field: str, value: Any, bound: Any, hint: str) -> None:
    raise TaskError([Fault(request_id, field, value, bound)], [f"export_handover: {hint}"])


def _hidden_row(batch: SlotBatch, slot: int) -> bytes | None:
    """The request's row as it stands on the device, little-endian."""
    field = batch.layout.by_key(HIDDEN)
    if field is None:
        return None
    row = batch[field.name][(slice(None),) * (field.slot_axis or 0) + (slot,)]
    host = row if isinstance(row, np.ndarray) else batch.backend.read(row, "export_handover", batch.stats)
    return arrays.pack(host.reshape(-1)[: batch.config.hidden_size])


def _extras(request: Request) -> tuple[PackedArray, ...]:
    packed = []
    for name, value in request.extra.items():
        try:
            name.encode()
            packed.append(PackedArray.of(name, value))
        except (AttributeError, TypeError, ValueError, PacketError) as error:
            allowed = "finite numbers: a number, nested lists or an array, by a name that UTF-8 can write"
            _refuse(request.request_id, f"extra[{name!r}]", type(value).__name__, allowed, str(error))
    return tuple(sorted(packed, key=lambda array: array.name))
