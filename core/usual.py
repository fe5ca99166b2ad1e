"""The usual call, in one pass: every request has one task, and nothing is wrong with any.

``look`` gives what ``core.validate`` would give, or None for any call that needs a closer look: then it is looked at
again there, which knows every order of tasks and says what is wrong. So what is refused here by mistake costs time
only; nothing may be let through here that is refused there (``tests/property/test_validation_property.py``).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from slotline.core.checks import Prefills
from slotline.core.field import Extra
from slotline.core.ids import EMPTY, Ids
from slotline.core.sampling import Lists
from slotline.core.scratch import below, each_once
from slotline.core.tables import Tables, appends_are_good, tables_of
from slotline.core.tasks import AbortTask, DecodeTask, FinishTask, PreemptTask, PrefillTask, Task
from slotline.core.words import Numbers

if TYPE_CHECKING:
    from slotline.core.batch import SlotBatch
    from slotline.core.validate import Checked

_INT32 = 2**31
_ID = attrgetter("request_id")


class Usual:
    """What the look needs of a batch, worked out once."""

    def __init__(self, batch: SlotBatch) -> None:
        self.batch, self.config, self.table = batch, batch.config, batch.slots
        config = batch.config
        take = "handover" if batch.config.role == "decode" else "prefill"
        rules = [(f.rule(take), f.rule("chunk")) for f in batch.layout]
        self._sizes = (
            config.max_model_len, config.max_chunk_tokens, config.num_levels, config.max_blocks_per_seq,
            config.block_size,
        )  # fmt: skip
        self._extras = any(isinstance(rule, Extra) for pair in rules for rule in pair)

    def look(self, tasks: Sequence[Task], checked: Checked) -> bool:
        """Whether the call is a usual one; fills ``checked`` then."""
        by_id = self.table.by_id
        takes: list[PrefillTask] = []
        chunks: list[PrefillTask] = []
        decodes: list[DecodeTask] = []
        for task in tasks:
            kind = task.__class__
            if kind is DecodeTask:
                decodes.append(task)  # type: ignore[arg-type]
            elif kind is PrefillTask:
                (chunks if task.request_id in by_id else takes).append(task)  # type: ignore[arg-type]
            elif kind is FinishTask or kind is AbortTask or kind is PreemptTask:
                slot = by_id.get(task.request_id)
                if slot is None:
                    return False
                checked.releases.append((task.request_id, slot))
            else:
                return False
        named = [task.request_id for task in tasks]
        if len(set(named)) < len(named):
            return False
        checked.named = named
        if len(checked.releases) > 1:
            checked.releases.sort(key=lambda pair: pair[1])
        tables = self._decodes(decodes)
        if tables is None:
            return False
        checked.tables = tables
        return self._prefills(takes, chunks, checked)

    # -- prefills

    def _prefills(self, takes: list[PrefillTask], chunks: list[PrefillTask], checked: Checked) -> bool:
        if not takes and not chunks:
            return True
        words = self.batch.planner.words
        rows = words.reserve(len(takes) + len(chunks))
        if takes:
            if len(takes) > 1:
                takes.sort(key=_ID)
            slots = self._slots(takes, checked.releases)
            if slots is None:
                return False
            checked.take_slots = slots
        if chunks:
            by_id = self.table.by_id
            chunks.sort(key=lambda task: by_id[task.request_id])
            checked.chunk_slots = [by_id[task.request_id] for task in chunks]
            if not all(map(self._continues, chunks, checked.chunk_slots)):
                return False
        row, numbers_of, put, fits = 0, words.numbers_of, words.put, self._fits
        try:
            for group, fresh in ((takes, True), (chunks, False)):
                for task in group:
                    numbers = numbers_of(task)
                    if not fits(task, numbers, fresh):
                        return False
                    put(row, numbers, task.request.sampling.packed)
                    row += 1
        except struct.error:  # beyond 64 bits
            return False
        if not self._ids(takes, chunks):
            return False
        if takes:
            checked.takes = Prefills(self.config, takes, rows[: len(takes)])
        if chunks:
            checked.chunks = Prefills(self.config, chunks, rows[len(takes) :])
        return True

    def _slots(self, takes: list[PrefillTask], releases: list[tuple[str, int]]) -> list[int] | None:
        """S1, for tasks in ascending request id; with named slots ``takes`` is put in the order of the slots."""
        free = self.table.lowest_free(len(takes), [slot for _, slot in releases])
        asked = [task.slot for task in takes if task.slot is not None]
        if not asked:
            return free if len(free) == len(takes) else None
        released = {slot for _, slot in releases}
        claimed = set(asked)
        if len(claimed) < len(asked) or not all(self.table.is_free(s) or s in released for s in claimed):
            return None
        free = self.table.lowest_free(len(takes) + len(claimed), list(released))
        others = iter([slot for slot in free if slot not in claimed])
        slots = [next(others, -1) if task.slot is None else task.slot for task in takes]
        if -1 in slots:
            return None
        order = sorted(range(len(takes)), key=slots.__getitem__)
        takes[:] = [takes[i] for i in order]
        return [slots[i] for i in order]

    def _continues(self, task: PrefillTask, slot: int) -> bool:
        occupant = self.table.occupant(slot)
        return (
            task.request is occupant.request
            and self.config.role != "decode"
            and not occupant.in_open_step
            and not occupant.last
            and occupant.committed
            and task.start == occupant.end
            and (task.slot is None or task.slot == slot)
        )

    def _fits(self, task: PrefillTask, numbers: Numbers, fresh: bool) -> bool:
        """The numbers of one task, as rule I2 wants them."""
        request = task.request
        longest, most_tokens, levels, most_blocks, block_size = self._sizes
        start, end, length, not_last, blocks, prompt, history, generated, most, _, bad, drafts, first, _, _, _ = numbers
        if first:  # role decode
            if end != history or drafts < first:
                return False
            generated -= 1
        elif not (0 <= start < end <= history and length <= most_tokens and (not not_last or history - end >= levels)):
            return False
        if blocks > most_blocks or blocks * block_size < end + first or (self._extras and request.extra):
            return False
        if not fresh:
            return True
        sampling = request.sampling
        return (
            0 < prompt < longest
            and history <= longest
            and generated < most
            and sampling.sound
            and sampling.min_dec_len <= most
            and request.hidden_state is None
            and (sampling.lists is None or self._lists_fit(sampling.lists, bad))
        )

    def _lists_fit(self, lists: Lists, bad: int) -> bool:
        config = self.config
        return (
            bad <= config.max_bad_tokens
            and len(lists.stops) <= config.max_stop_seqs
            and lists.shortest > 0
            and lists.longest <= config.stop_seqs_max_len
            and lists.lowest >= 0
            and lists.highest < config.vocab_size
        )

    def _ids(self, takes: list[PrefillTask], chunks: list[PrefillTask]) -> bool:
        """Token ids and block ids."""
        scratch = self.batch.scratch
        tokens: list[Ids] = [task.request.history for task in takes]
        tokens += [task.request.draft_token_ids for task in takes if len(task.request.draft_token_ids)]
        return scratch.all_below(tokens, self.config.vocab_size) and self._good_tables(
            [task.block_table for task in (takes + chunks if chunks else takes)]
        )

    def _good_tables(self, tables: list[Ids]) -> bool:
        joined = self.batch.scratch.joined(tables)
        num_blocks = _INT32 if self.batch.num_blocks is None else self.batch.num_blocks
        return below(joined, num_blocks) and each_once(joined, list(map(len, tables)), tables, self.config.null_block)

    # -- decode tasks

    def _decodes(self, tasks: list[DecodeTask]) -> Tables | None:
        if not tasks:
            return _NOTHING
        by_id = self.table.by_id
        try:
            slots = [by_id[task.request_id] for task in tasks]
        except KeyError:
            return None
        if any(map(int.__gt__, slots, slots[1:])):
            order = sorted(range(len(slots)), key=slots.__getitem__)
            slots, tasks = [slots[i] for i in order], [tasks[i] for i in order]
        rows = np.array(slots, np.intp)
        packed = [task.packed_blocks for task in tasks if task.block_table is None]
        if len(packed) == len(tasks):
            return self._appends(rows, packed)
        if packed or any(task.packed_blocks is not None for task in tasks):
            return None  # some of either kind, or both in one task
        tables: list[Any] = [task.block_table for task in tasks]
        lens = list(map(len, tables))
        if max(lens) > self.config.max_blocks_per_seq or not self._good_tables(tables):
            return None
        ids = np.concatenate(tables, dtype=np.int32, casting="unsafe")  # what is valid fits
        return tables_of({}, rows, np.zeros(len(rows), np.int64), np.array(lens, np.int64), ids)

    def _appends(self, rows: Any, packed: list[bytes | None]) -> Tables | None:
        if None in packed:
            return None
        ids = np.frombuffer(b"".join(packed), np.int64)  # type: ignore[arg-type]
        if len(ids) == len(packed) and all(map(len, packed)):  # type: ignore[arg-type]
            lens = np.ones(len(rows), np.int64)
        else:
            lens = np.array([len(p) >> 3 for p in packed], np.int64)  # type: ignore[arg-type]
        if not appends_are_good(rows, lens, ids, self.table, self.config, self.batch.num_blocks):
            return None
        return tables_of({}, rows, self.table.num_blocks[rows].astype(np.int64), lens, ids)


_NOTHING = tables_of({}, np.empty(0, np.intp), EMPTY, EMPTY, EMPTY)
