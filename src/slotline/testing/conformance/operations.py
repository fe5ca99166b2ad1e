"""Any sequence of operations leaves a batch as the reference has it (rules I, L, S, M, D, P, T)."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import slotline as sl
from slotline.testing import strategies as some
from slotline.testing import strategies_draft as some_drafts
from slotline.testing.reference import ReferenceBatch, RefReceipt, RefTicket
from slotline.testing.reference_draft import is_late, packed_draft, same
from slotline.testing.reference_faults import same_faults
from slotline.testing.reference_pack import packed
from slotline.testing.strategies_invalid import mixed_calls

Pair = tuple[sl.Ticket, RefTicket]


class Operations(RuleBasedStateMachine):
    """One batch and one reference, driven alike; ``on`` gives the machine for a device."""

    new_backend: ClassVar[Any]
    """Makes the device of an example: ``new_backend()``."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[Pair] = []
        self.committed: list[Pair] = []

    @initialize(data=st.data())
    def make(self, data: st.DataObject) -> None:
        self._begin(data)

    def _begin(self, data: st.DataObject) -> None:
        config = data.draw(some.configs())
        layout = data.draw(some.layouts(config))
        self.batch = sl.SlotBatch(layout, self._backend(data))
        self.ref = ReferenceBatch(layout)
        self.sides = self.batch.side_table("own_object", lambda request: [request.request_id])
        self.owners: dict[str, int] = {}
        self.batch.on_insert(lambda rid, slot, _epoch: self.owners.__setitem__(rid, slot))
        self.batch.on_release(lambda rid, slot: self._gone(rid, slot))
        self.batch.on_move(lambda rid, _src, dst: self.owners.__setitem__(rid, dst))

    def _backend(self, data: st.DataObject) -> sl.Backend:
        made: sl.Backend = self.new_backend()
        return made

    def _expect(self, name: str, tensor: Any, wanted: Any) -> None:
        """``tensor``, an array of a step, which never changes again, holds ``wanted``."""
        got = self.batch.backend.read(tensor).tolist()
        assert same(got, wanted) if name == "input_ids" else got == wanted, (name, got, wanted)

    def _gone(self, request_id: str, slot: int) -> None:
        assert self.owners.pop(request_id) == slot

    def _same_receipt(self, got: sl.InsertReceipt, want: RefReceipt) -> None:  # I7
        ended = {rid: tuple(e) for rid, e in got.ended.items()}
        assert ended == {rid: tuple(e) for rid, e in want.ended.items()}
        for name in ("slots", "epochs", "released", "cut", "launch_tokens", "num_active", "has_prefill"):
            assert getattr(got, name) == getattr(want, name), name

    # -- inserting

    @rule(data=st.data())
    def insert(self, data: st.DataObject) -> None:  # I
        self._insert(data)

    def _insert(self, data: st.DataObject) -> None:
        tasks = data.draw(some.calls(self.ref))
        assert self.ref.faults(tasks) == []
        self._same_receipt(sl.insert_tasks(self.batch, tasks), self.ref.insert(tasks))

    @rule(data=st.data(), skip=st.booleans())
    def insert_mixed(self, data: st.DataObject, skip: bool) -> None:  # I1
        tasks = data.draw(mixed_calls(self.ref))
        faults = self.ref.faults(tasks)
        assert same_faults(faults, sl.validate(self.batch, tasks)), (faults, sl.validate(self.batch, tasks))
        if skip:
            receipt = sl.insert_tasks(self.batch, tasks, on_invalid="skip")
            assert same_faults(faults, receipt.refused)
            self._same_receipt(receipt, self.ref.insert_skip(tasks))
        elif faults:
            before = self.batch.digest()
            with pytest.raises(sl.TaskError) as caught:
                sl.insert_tasks(self.batch, tasks)
            assert same_faults(faults, caught.value.errors)
            assert self.batch.digest() == before

    # -- steps

    @rule(data=st.data(), some_rows=st.booleans())
    def ticket(self, data: st.DataObject, some_rows: bool) -> None:  # L3
        ids = sorted(self.ref.slot_map())
        rows = data.draw(st.lists(st.sampled_from(ids), unique=True)) if some_rows and ids else None
        if data.draw(st.booleans()):
            pair: Pair = sl.prepare_step(self.batch, rows=rows), self.ref.ticket(rows)
            self._same_arrays(pair)
        else:
            pair = self.batch.ticket(rows), self.ref.ticket(rows)
        assert pair[0].slots == pair[1].slots
        assert pair[0].request_ids == pair[1].request_ids
        assert pair[0].epochs == pair[1].epochs
        self.open.append(pair)

    def _same_arrays(self, pair: Pair) -> None:  # L1, P4, M5
        step, ticket = pair
        assert isinstance(step, sl.Step)
        for name, wanted in packed(self.ref, ticket, step.num_tokens).items():
            self._expect(name, getattr(step, name), wanted)

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:  # L4, S2, T
        self._commit(data, self.open.pop(data.draw(st.integers(0, len(self.open) - 1))))

    def _commit(self, data: st.DataObject, pair: Pair) -> None:
        tokens, counts = data.draw(some.accepted(self.ref, pair[1]))
        sl.commit_step(self.batch, pair[0], tokens, counts)
        self.ref.commit(pair[1], tokens, counts)
        with pytest.raises(sl.TaskError):
            sl.commit_step(self.batch, pair[0], tokens, counts)
        self.committed.append(pair)

    @rule(data=st.data(), with_drafts=st.booleans(), late=st.booleans(), fetched=st.booleans())
    def whole_step(self, data: st.DataObject, with_drafts: bool, late: bool, fetched: bool) -> None:  # L
        """A step as engines make it; ``late``: the next one is opened before the result is taken."""
        pair = self.batch.ticket(), self.ref.ticket()
        self._commit(data, pair)
        if with_drafts:
            self._drafts(data, pair)
        if late:
            self.open.append((self.batch.ticket(), self.ref.ticket()))
        if fetched:
            self._fetch(self.committed.pop())

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def discard(self, data: st.DataObject) -> None:  # L3
        pair = self.open.pop(data.draw(st.integers(0, len(self.open) - 1)))
        pair[0].discard()
        pair[1].discard()

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def look_at_ticket(self, data: st.DataObject) -> None:  # L3
        pair = data.draw(st.sampled_from(self.open))
        rows = {row.epoch: slot for slot, row in self.ref.occupied()}
        assert pair[0].current() == {e: rows[e] for e in pair[1].epochs if e in rows}

    @precondition(lambda self: self.committed)
    @rule(data=st.data())
    def commit_drafts(self, data: st.DataObject) -> None:  # L5, M9
        self._drafts(data, data.draw(st.sampled_from(self.committed[-2:])))

    def _drafts(self, data: st.DataObject, pair: Pair) -> None:
        drafts = data.draw(some.drafts(self.ref))
        if self.ref.drafts_are_late(pair[1]):
            with pytest.raises(sl.TaskError):
                sl.commit_drafts(self.batch, pair[0], drafts)
            return
        sl.commit_drafts(self.batch, pair[0], drafts)
        self.ref.commit_drafts(pair[1], drafts)

    @precondition(lambda self: self.ref.config.num_levels and self.committed)
    @rule(data=st.data())
    def draft_level(self, data: st.DataObject) -> None:  # L5, M1 to M5
        pair = data.draw(st.sampled_from(self.committed[-2:]))
        level = data.draw(st.integers(1, self.ref.config.num_drafts))
        self._draft_level(data, pair, level, data.draw(some_drafts.drafted(self.ref, level)))

    def _draft_level(self, data: st.DataObject, pair: Pair, level: int, drafted: Any) -> None:
        step, ticket = pair  # a step, or the ticket of an engine that packs its rows itself
        rows = data.draw(some_drafts.micro_batches(ticket))
        given = None if level == 1 and data.draw(st.booleans()) else drafted
        if is_late(self.ref, ticket, rows):
            with pytest.raises(sl.TaskError):
                sl.prepare_draft(self.batch, step, level, given, rows)
            return
        draft = sl.prepare_draft(self.batch, step, level, given, rows)
        assert self.batch.backend.inspect(draft.input_ids).shape == (step.num_tokens,)
        for name, wanted in packed_draft(self.ref, ticket, level, step.num_tokens, drafted, rows).items():
            self._expect(name, getattr(draft, name), wanted)

    @precondition(lambda self: self.ref.config.num_levels)
    @rule(data=st.data(), disturbed=st.booleans())
    def mtp_step(self, data: st.DataObject, disturbed: bool) -> None:  # L5, M
        """A step and all its draft levels; ``disturbed``: rows move, leave and continue in between."""
        step = sl.prepare_step(self.batch)
        pair = step, self.ref.ticket()
        self._same_arrays(pair)
        self._commit(data, pair)
        drafts = data.draw(some_drafts.drafted(self.ref, self.ref.config.num_drafts + 1, lowest=0))
        for level in range(1, self.ref.config.num_drafts + 1):
            if disturbed:
                self._disturb(data)
            self._draft_level(data, pair, level, drafts[:, : level - 1])
        if not self.ref.drafts_are_late(pair[1]):
            sl.commit_drafts(self.batch, pair[0], drafts)
            self.ref.commit_drafts(pair[1], drafts)

    def _disturb(self, data: st.DataObject) -> None:
        kind = data.draw(st.sampled_from(["condense", "swap", "insert", "step"]))
        if kind == "condense":
            self._condense()
        elif kind == "swap":
            self._swap(data)
        elif kind == "insert":
            self._insert(data)
        else:  # of a row that the drafted step does not hold, or it comes too late
            self.open.append((self.batch.ticket(), self.ref.ticket()))

    @precondition(lambda self: self.committed)
    @rule(data=st.data())
    def fetch(self, data: st.DataObject) -> None:  # L6, M7
        self._fetch(self.committed.pop(data.draw(st.integers(0, len(self.committed) - 1))))

    def _fetch(self, pair: Pair) -> None:
        outputs: list[Any] = [tuple(entry) for entry in self.batch.fetch(pair[0]).result()]
        assert outputs == [tuple(entry) for entry in self.ref.outputs(pair[1])]
        self.ref.taken(pair[1])

    # -- slots

    @rule(data=st.data())
    def swap(self, data: st.DataObject) -> None:  # S4
        self._swap(data)

    def _swap(self, data: st.DataObject) -> None:
        slots = st.integers(0, self.ref.config.max_num_seqs - 1)
        i, j = data.draw(slots), data.draw(slots)
        self.batch.swap(i, j)
        self.ref.swap(i, j)

    @rule()
    def condense(self) -> None:  # S5
        self._condense()

    def _condense(self) -> None:
        assert self.batch.condense() == self.ref.condense()

    @precondition(lambda self: self.ref.slot_map())
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:  # L7
        ids = data.draw(st.lists(st.sampled_from(sorted(self.ref.slot_map())), unique=True))
        self._same_receipt(self.batch.release(ids), self.ref.release(ids))

    @precondition(lambda self: len(self.committed) > 3)
    @rule()
    def reset(self) -> None:  # S6
        names = [f.name for f in self.batch.layout if f.on_device]
        pointers = [self.batch.backend.inspect(self.batch[n]).pointer for n in names]
        self.batch.reset()
        self.ref.reset()
        assert pointers == [self.batch.backend.inspect(self.batch[n]).pointer for n in names]

    def teardown(self) -> None:
        if hasattr(self, "batch"):
            self._leave(self.batch.backend)

    def _leave(self, backend: sl.Backend) -> None:
        """The example is over."""
        backend.close()

    # -- what always holds

    @invariant()
    def equal(self) -> None:
        if hasattr(self, "batch"):
            found = self.ref.compare(self.batch)
            assert found is None, found
            assert self.owners == self.ref.slot_map()
            want = [row and [row.request_id] for row in self.ref.rows]
            assert list(self.sides) == want  # F5
            assert self.batch.stats["stale_results"] == self.ref.stale_results  # S2

    @invariant()
    def no_placeholder_within_lengths(self) -> None:  # M5
        if not hasattr(self, "batch"):
            return
        for slot, row in self.ref.occupied():
            speculative = self.ref.config.spec_method != "none" and row.encoder == 0
            ids = self.batch.host_array("draft_tokens" if speculative else "input_ids")[slot]
            assert (ids[: row.length] >= 0).all()
