"""Reach: how far each row may differ from the fill, so that clearing touches only what can have been written (P2).

Kept on the host in the order of the calls, which is the order on the stream. It is a bound: cells behind it hold the
fill, cells before it may. Fields that others write too (``engine_writes``, adopted tensors) have none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from slotline.core.field import Field
from slotline.core.layout import BufferLayout
from slotline.core.segments import Rows

Mark = tuple[int, Rows, "NDArray[np.int64] | int"]
"""(field, rows, cells): rows that were written, and how far."""
HISTORY, ALL = "history", "all"


class Reach:
    """One line for each of ``fields`` (index in the layout, field): those whose rows have more than one cell.

    ``steps``: the keys that steps write, and how many cells of a row: a number, ``ALL``, or ``HISTORY`` for a field
    that accepted tokens are appended to.
    """

    def __init__(
        self, layout: BufferLayout, fields: Sequence[tuple[int, Field]], steps: Mapping[str, int | str]
    ) -> None:
        self._line = {index: line for line, (index, _) in enumerate(fields)}
        self.cells = np.array([layout.row_cells(f.name) for _, f in fields], np.int64)
        self._least = np.zeros((len(fields), 1), np.int64)
        self._grows: list[int] = []
        for line, (_, f) in enumerate(fields):
            others = f.step_writes or f.twin_of is not None
            written = ALL if f.twin_of is not None else steps.get(f.key, ALL if others else 0)
            if written == HISTORY:
                self._grows.append(line)
            else:
                self._least[line] = self.cells[line] if written == ALL else min(int(written), int(self.cells[line]))
        self._least_of: list[int] = self._least[:, 0].tolist()
        self.rows = np.zeros((len(fields), layout.config.max_num_seqs), np.int64)
        """[lines, S]"""

    def has(self, index: int) -> bool:
        """Whether the field, by its index in the layout, is one of these."""
        return index in self._line

    def of(self, index: int, rows: Rows) -> NDArray[np.int64]:
        """How far the field's ``rows`` reach."""
        found: NDArray[np.int64] = self.rows[self._line[index], rows]
        return found

    def clear(self, rows: Rows | list[int] | slice) -> None:
        """They hold the fill."""
        self.rows[:, rows] = 0

    def take(self, rows: list[int]) -> None:
        """They have an owner now, whose steps write what steps write."""
        if len(rows) == 1:  # a column by itself: half of the time
            self.rows[:, rows[0]] = self._least[:, 0]
        else:
            self.rows[:, rows] = self._least

    def note(self, marks: Sequence[Mark]) -> None:
        """Rows that were written: further than steps reach, or not."""
        for index, rows, cells in marks:
            line = self._line[index]
            least = self._least_of[line]
            self.rows[line, rows] = np.maximum(cells, least) if least else cells

    def grow(self, rows: NDArray[Any], tokens: int) -> None:
        """At most that many accepted tokens were appended in ``rows``."""
        for line in self._grows:
            self.rows[line, rows] = np.minimum(self.rows[line, rows] + tokens, self.cells[line])

    def extend(self, index: int, row: int, cells: int) -> None:
        """The host wrote ``row`` of a field up to ``cells``."""
        line = self._line.get(index)
        if line is not None:
            self.rows[line, row] = max(int(self.rows[line, row]), cells)

    def permute(self, dst: Rows, src: Rows) -> None:
        self.rows[:, dst] = self.rows[:, src]
