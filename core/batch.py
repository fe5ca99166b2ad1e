"""SlotBatch: the buffers of one layout on one backend, and who owns which row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slotline.core import derived, recorded
from slotline.core.backend import Backend
from slotline.core.buffers import Buffers
from slotline.core.errors import LayoutError, nearest
from slotline.core.fetch import Fetch, Output
from slotline.core.insert import InsertReceipt, insert_tasks
from slotline.core.layout import BufferLayout
from slotline.core.plan import Planner
from slotline.core.recording import Recorder
from slotline.core.scratch import Scratch
from slotline.core.segments import Block, write_rows
from slotline.core.side import Sides, SideTable
from slotline.core.slots import SlotTable
from slotline.core.stats import Stats
from slotline.core.stop import FinishReason
from slotline.core.tasks import FinishTask, Request
from slotline.core.ticket import Ticket, take_rows
from slotline.core.usual import Usual


class SlotBatch:
    """Buffers on a backend, slot map, epochs, mirrors, side tables and counters.

    - ``tensors``: tensors that the engine allocated already, by field (F4): shape, dtype and place are checked
      (``LayoutError``), the memory is used as it is and filled.
    - ``only``: the fields that insertion and clearing write; the engine keeps the others in order itself. Swap,
      condense, reset and digest cover all fields.

    ``batch[name]`` is the framework's own tensor (a CPU tensor for a host field), the same object for the batch's
    whole life. One thread at a time (W10).
    """

    def __init__(
        self,
        layout: BufferLayout,
        backend: Backend,
        *,
        tensors: Mapping[str, Any] | None = None,
        only: Iterable[str] | None = None,
    ) -> None:
        if not isinstance(layout, BufferLayout) or not isinstance(backend, Backend):
            raise TypeError("SlotBatch takes a BufferLayout and a Backend, see slotline.load_backend")
        self.layout, self.backend, self.config = layout, backend, layout.config
        self.stats = Stats()
        self.num_blocks = layout.config.num_blocks
        self.slots = SlotTable(layout.config)
        self.sides = Sides(layout.config.max_num_seqs)
        self.recorder: Recorder | None = None
        """What writes a recording of this batch, while there is one (``slotline.record``)."""
        adopted = dict(tensors or {})
        for name in (*adopted, *(chosen := set(only or ()))):
            layout[name]
        self.buffers = Buffers(layout, backend, self.stats, adopted)
        self.planner = Planner(layout, set(adopted), chosen if only is not None else None)
        self.scratch, self.usual = Scratch(), Usual(self)
        self.buffers.fill_all("allocate")
        backend.synchronize()  # once, so that a new batch may be used on any stream

    # -- looking at it

    def __getitem__(self, name: str) -> Any:
        self.layout[name]
        return self.buffers.tensors[name]

    def __contains__(self, request_id: object) -> bool:
        return isinstance(request_id, str) and request_id in self.slots.by_id

    def mirror(self, name: str) -> NDArray[Any]:
        """The host copy of a mirrored field; it always equals the device (F2). Read it only."""
        if self.layout[name].residency != "mirrored":
            raise LayoutError(f"field {name!r} is not mirrored{nearest(name, self.buffers.mirrors)}")
        return self.buffers.mirrors[name]

    def host_array(self, name: str) -> NDArray[Any]:
        """The field's bytes on the host: the array itself where it lives there, else a copy after all queued work."""
        tensor = self[name]
        if name in self.buffers.hosts:
            return self.buffers.hosts[name]
        return tensor if isinstance(tensor, np.ndarray) else self.backend.read(tensor, "read", self.stats)

    def slot_of(self, request_id: str) -> int:
        """The slot that a request owns; ``TaskError`` if it owns none (S7)."""
        return self.slots.slot_of(request_id)

    def epoch_of(self, request_id: str) -> int:
        """The epoch of a request that owns a slot; ``TaskError`` if it owns none."""
        return self.slots.occupant(self.slot_of(request_id)).epoch

    def owner(self, slot: int) -> str | None:
        """The request that owns ``slot``; None: it is free."""
        occupant = self.slots.occupants[self._slot(slot)]
        return None if occupant is None else occupant.request_id

    @property
    def occupied(self) -> list[int]:
        """The slots that have an owner, ascending."""
        return [slot for slot, _ in self.slots]

    @property
    def launch_tokens(self) -> int:
        """Tokens of the next step at most, as the host knows it (I7)."""
        return int(self.slots.bound.sum())

    @property
    def num_active(self) -> int:
        return int(np.count_nonzero(self.slots.bound))

    @property
    def has_prefill(self) -> bool:
        return self.slots.has_prefill

    def max_dec_len(self, request: Request) -> int:
        """The generated tokens that ``request`` may have here, after the cut of rule I2."""
        limit = self.config.max_model_len - request.num_prompt_tokens
        given = request.sampling.max_dec_len
        return limit if given is None else min(given, limit)

    # -- changing it

    def set_num_blocks(self, num_blocks: int) -> None:
        """Tell how many blocks the KV cache has, once it is known."""
        if isinstance(num_blocks, bool) or not isinstance(num_blocks, (int, np.integer)) or num_blocks < 1:
            raise ValueError(f"num_blocks is {num_blocks!r}, allowed: a whole number of at least 1")
        self.num_blocks = int(num_blocks)
        if self.recorder is not None:
            self.recorder.add(recorded.NumBlocks(num_blocks=min(self.num_blocks, recorded.MAX_NUMBER)))

    def swap(self, i: int, j: int) -> None:
        """Exchange two slots: every per-slot field, mirrors, side tables, owners (S4)."""
        derived.swap(self, self._slot(i), self._slot(j))

    def condense(self) -> list[tuple[int, int]]:
        """Close the gaps between occupied slots; the moves (from, to) in order (S5)."""
        return derived.condense(self)

    def release(self, request_ids: Iterable[str], *, stream: Any = None) -> InsertReceipt:
        """Free the slots of requests that have ended, as FinishTasks do (L7)."""
        if not isinstance(request_ids, Iterable):
            raise TypeError(f"request_ids is {request_ids!r}, allowed: a list of request ids")
        ids = [request_ids] if isinstance(request_ids, str) else list(request_ids)
        return insert_tasks(self, [FinishTask(r) for r in ids], stream=stream)

    def reset(self) -> None:
        """Everything as in a new batch, in the same memory; open steps become stale (S6)."""
        derived.reset(self)

    def digest(self) -> str:
        """A hash of every byte of every field, and of the slot map with its epochs."""
        return derived.digest(self)

    def diff(self, other: SlotBatch) -> list[derived.Difference]:
        """Where two batches of one layout differ: the first cell of each field and slot."""
        return derived.diff(self, other)

    # -- steps

    def ticket(self, rows: Iterable[str] | None = None) -> Ticket:
        """Open a step over ``rows`` (request ids), else over every row with a launch bound above 0 (L3).

        Rows in an open step take no part. ``TaskError`` for an unknown or doubled id.
        """
        self.buffers.require(("seq_lens_this_time",), "a ticket")
        ticket = Ticket(self, take_rows(self, rows))
        ticket.record_lengths()
        ticket.open()
        if self.recorder is not None:
            self.recorder.prepared_step(ticket, packed=False)
        return ticket

    def fetch(self, step: Ticket, *, extra: Mapping[str, Any] | None = None) -> Fetch:
        """Start bringing a committed step's results to the host (L6).

        ``extra``: tensors [S, ...] by slot when the step was prepared, such as logprobs, that ride along; each output
        gets its row. They are read at this point of the stream, so they may be written again afterwards.
        ``TaskError`` if the step is not committed, ``ValueError`` for a tensor without a row for each slot.
        """
        if extra is not None and not isinstance(extra, Mapping):
            raise TypeError(f"extra is {type(extra).__name__}, allowed: tensors by name")
        return Fetch(self, step, extra or {})

    def take_result(self, step: Ticket, order: int, outputs: Mapping[int, Output], step_idx: Mapping[int, int]) -> None:
        """What the host learns when a fetched result is taken (I7, M7); ``Fetch`` calls it.

        ``outputs`` and ``step_idx`` (generated tokens before the commit) by epoch; ``order`` among the step's fetches:
        one that was started later may know of drafts that an earlier one does not.
        """
        if order < step.taken:
            return
        step.taken = order
        field = self.layout.by_key("input_ids_cpu")
        for entry in step.entries:
            slot, output = self.slots.by_epoch.get(entry.epoch), outputs.get(entry.epoch)
            if slot is None or output is None:
                continue
            if not entry.occupant.finished or output.finish_reason != FinishReason.NONE:
                entry.occupant.output = output
            if output.finish_reason != FinishReason.NONE:
                entry.occupant.finished = True
                self.slots.bound[slot] = 0
            if field is not None and output.tokens:
                at = entry.occupant.request.num_prompt_tokens + step_idx[entry.epoch]
                host = self.buffers.hosts[field.name]
                tokens = np.array([output.tokens], host.dtype)
                index = self.layout.index(field.name)
                write_rows(Block(index, np.array([slot]), at, tokens), host, field.slot_axis or 0)
                self.planner.reach.extend(index, slot, at + len(output.tokens))
        if self.recorder is not None:
            self.recorder.taken(step)

    # -- side tables and callbacks (F5)

    def side_table(self, name: str, factory: Callable[[Request], Any]) -> SideTable:
        """A table of host objects that follow the requests; ``factory(request)`` makes one when a slot is taken."""
        if name in self.sides.tables or name in self.layout:
            raise LayoutError(f"{name!r} is taken already; a side table needs a name of its own")
        if not callable(factory):
            raise TypeError(f"factory is {factory!r} ({type(factory).__name__}), allowed: a function of a Request")
        table = SideTable(name, factory, self.config.max_num_seqs)
        for slot, occupant in self.slots:
            table.put(slot, factory(occupant.request))
        self.sides.tables[name] = table  # last: a factory may raise
        return table

    def on_insert(self, callback: Callable[[str, int, int], None]) -> None:
        """``callback(request_id, slot, epoch)`` after a request took a slot.

        Callbacks run when everything is in place. One that raises ends the call with its exception: the insertion
        stands, and the callbacks behind it are not called.
        """
        self.sides.inserted.append(callback)

    def on_move(self, callback: Callable[[str, int, int], None]) -> None:
        """``callback(request_id, from_slot, to_slot)`` after swap or condense moved a request."""
        self.sides.moved.append(callback)

    def on_release(self, callback: Callable[[str, int], None]) -> None:
        """``callback(request_id, slot)`` after a request lost its slot."""
        self.sides.released.append(callback)

    # -- for the operations of this package

    def argument(self, name: str, value: Any, shape: tuple[int, ...]) -> Any:
        """A step's argument: a tensor of the backend, or a host array of its own; ``ValueError`` for another shape."""
        allowed = f"whole numbers of shape {list(shape)}"
        if isinstance(value, (np.ndarray, list, tuple)):
            try:
                array = np.asarray(value)
            except ValueError:
                raise ValueError(f"{name} is a ragged list, allowed: {allowed}") from None
            if array.shape == shape and (array.dtype.kind in "iu" or not array.size):
                return array.astype(np.int64)
            got, dtype = array.shape, str(array.dtype)
        else:
            try:
                info = self.backend.inspect(value)
            except TypeError as error:
                raise TypeError(f"{name}: {error}; allowed: {allowed}") from None
            got, dtype = info.shape, info.dtype
            if got == shape and "int" in dtype:
                return value
        raise ValueError(f"{name} is {dtype} {list(got)}, allowed: {allowed}")

    def _slot(self, slot: int) -> int:
        if isinstance(slot, bool) or not isinstance(slot, (int, np.integer)) or not 0 <= slot < self.slots.size:
            raise ValueError(f"slot is {slot!r}, allowed: 0 to {self.slots.size - 1}")
        return int(slot)
