"""The size cap of a run's database: which texts and token streams are kept. Figures of answers are always kept.

Three quarters of the cap are for the newest steps, whole; a quarter is for the best and the worst answer of the steps before them.
Which those are follows from the sizes of all steps alone, not from when they were written, so a run that was killed and went
on ends with the same rows.
"""

from __future__ import annotations

import sqlite3

from posttrain.runs.schema import BY_TEXT

_WHOLE, _PINNED = 0.75, 0.25
_SIZES = "SELECT s.phase, s.step, s.bytes, s.pinned_bytes FROM steps s JOIN phases p ON p.phase = s.phase ORDER BY p.place, s.step"
_THERE = "SELECT DISTINCT r.phase, r.step, r.pinned FROM bodies b JOIN rollouts r ON r.id = b.id"
Size = tuple[
    str, int, int, int
]  # phase, step, bytes of its texts and streams without those of its best and worst, and theirs


class Cap:
    """Steps in order, and two borders: those from `whole` on are kept, of those from `some` to `whole` the best and the worst."""

    def __init__(self, db: sqlite3.Connection, limit: float) -> None:
        """All that was written so far; whatever lies below the borders is dropped."""
        self.limit = limit
        self.sizes: list[Size] = []
        self.whole = self.some = 0
        self.whole_bytes = self.some_bytes = 0
        there = {tuple(row) for row in db.execute(_THERE)}
        for row in db.execute(_SIZES).fetchall():
            for phase, step, pinned in self._add((row[0], row[1], row[2], row[3])):
                if (phase, step, pinned) in there:
                    drop(db, phase, step, pinned)

    def add(self, db: sqlite3.Connection, size: Size) -> None:
        """A step that was just written."""
        for phase, step, pinned in self._add(size):
            drop(db, phase, step, pinned)

    def _add(self, size: Size) -> list[tuple[str, int, int]]:
        """(phase, step, whether it is the best and the worst) of what must go now."""
        self.sizes.append(size)
        self.whole_bytes += size[2] + size[3]
        out = []
        while self.whole_bytes > _WHOLE * self.limit:
            phase, step, others, pinned = self.sizes[self.whole]
            out.append((phase, step, 0))
            self.whole_bytes -= others + pinned
            self.some_bytes += pinned
            self.whole += 1
        while self.some_bytes > _PINNED * self.limit:
            phase, step, _, pinned = self.sizes[self.some]
            out.append((phase, step, 1))
            self.some_bytes -= pinned
            self.some += 1
        return out


def drop(db: sqlite3.Connection, phase: str, step: int, pinned: int) -> None:
    """Texts and streams of a step's answers, and the prompts that no text is left of; the figures stay."""
    which = "SELECT id FROM rollouts WHERE phase = ? AND step = ? AND pinned = ?"
    for table in BY_TEXT:
        db.execute(f"DELETE FROM {table} WHERE id IN ({which})", (phase, step, pinned))
    left = "SELECT r.group_index FROM rollouts r JOIN bodies b ON b.id = r.id WHERE r.phase = ? AND r.step = ?"
    db.execute(f"DELETE FROM groups WHERE phase = ? AND step = ? AND group_index NOT IN ({left})", (phase, step) * 2)
    kept = left.replace("r.group_index FROM", "r.group_index, r.sample_index FROM")
    db.execute(
        f"DELETE FROM pictures WHERE phase = ? AND step = ? AND (group_index NOT IN ({left}) OR "
        f"(sample_index >= 0 AND (group_index, sample_index) NOT IN ({kept})))",
        (phase, step) * 3,
    )
