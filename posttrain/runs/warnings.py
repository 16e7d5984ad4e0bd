"""The monitors on a run: what they need is read from its database, the newest steps only where answers are concerned."""

from __future__ import annotations

import math
from typing import Any

from posttrain.core.codec import read
from posttrain.runs import monitors
from posttrain.runs.monitors import Curve, Finding
from posttrain.runs.reader import Reader
from posttrain.runs.schema import BUCKET

_LONG = 5000  # steps
_ANSWERS = 512  # newest answers that are looked at


def findings(reader: Reader, phase: str) -> list[Finding]:
    """Every warning about a phase, as its steps are now."""
    if phase not in reader.phases():  # which also waits for what is on its way
        return []
    curve = {name: history(reader, name, phase) for name in (
        "reward", "accuracy", "held_out_reward", "length", "truncated", "entropy", "logp_gap", "frac_reward_zero_std",
    )}  # fmt: skip
    held = curve["accuracy"] or curve["held_out_reward"]
    best = top(reader, phase)
    graded: Curve = curve["accuracy"] if len(curve["accuracy"]) > 2 * monitors.LEAST else curve["reward"]
    found = [
        monitors.over_optimised(curve["reward"], held),
        monitors.reward_falls(curve["reward"]),
        monitors.length_drift(curve["length"], curve["truncated"]),
        monitors.entropy_collapse(curve["entropy"], graded, 1.0 if graded is curve["accuracy"] else best),
        monitors.gap_growing(curve["logp_gap"]),
        monitors.silent_groups(curve["frac_reward_zero_std"], curve["reward"], best, unsolved(reader, phase, best)),
    ]
    if reader.version > 1:
        found += of_answers(reader, phase)
    return [f for f in found if f is not None]


def history(reader: Reader, name: str, phase: str) -> Curve:
    """A metric by steps; of a long phase the means of hundreds of them, which say the same in a hundredth of the time."""
    last = reader.db.execute("SELECT MAX(step) FROM metrics WHERE phase = ? AND name = ?", (phase, name)).fetchone()[0]
    if last is None or last < _LONG:
        return reader.series(name, phase)
    return [
        (BUCKET * (b["bucket"] + 1) - 1, math.nan if b["mean"] is None else b["mean"])
        for b in reader.buckets(name, phase)
    ]


def top(reader: Reader, phase: str) -> float:
    """The best total that any answer has earned, and at least 1: what "solved" is measured by."""
    if reader.version == 1:
        return 1.0
    row = reader.db.execute("SELECT MAX(total) FROM rollouts WHERE phase = ?", (phase,)).fetchone()
    return max(1.0, float(row[0])) if row[0] is not None else 1.0


def unsolved(reader: Reader, phase: str, best: float) -> float | None:
    """Of the groups of the last steps, the share whose answers all earn the same and less than SOLVED of the best."""
    if reader.version == 1:
        return None
    query = (
        "SELECT step, group_index, total FROM rollouts WHERE phase = ? "
        "ORDER BY step DESC, group_index DESC, sample_index DESC LIMIT ?"
    )
    rows = reader.db.execute(query, (phase, _ANSWERS)).fetchall()
    groups: dict[tuple[int, int], set[float]] = {}
    for step, group, total in rows:
        if total is not None and step > rows[0][0] - monitors.window(rows[0][0] + 1):
            groups.setdefault((step, group), set()).add(total)
    silent = [totals for totals in groups.values() if len(totals) == 1]
    return sum(max(t) < monitors.SOLVED * best for t in silent) / len(groups) if groups else None


def of_answers(reader: Reader, phase: str) -> list[Finding | None]:
    """Those that read the newest answers."""
    query = (
        "SELECT r.step, r.group_index, r.repetition, r.id FROM rollouts r WHERE r.phase = ? "
        "ORDER BY r.step DESC, r.group_index DESC, r.sample_index DESC LIMIT ?"
    )
    rows = reader.db.execute(query, (phase, _ANSWERS)).fetchall()
    if not rows:
        return []
    first, last = rows[-1]["step"], rows[0]["step"]
    marks = ",".join("?" * len(rows))
    query = (
        "SELECT b.id, b.text, b.rewards, COALESCE(b.prompt, g.prompt) AS prompt FROM bodies b JOIN rollouts r ON r.id = b.id LEFT JOIN "
        f"groups g ON g.phase = r.phase AND g.step = r.step AND g.group_index = r.group_index WHERE b.id IN ({marks})"
    )
    bodies = {b["id"]: b for b in reader.db.execute(query, [r["id"] for r in rows])}
    groups: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for r in rows:
        if r["id"] in bodies:
            parts = read(bodies[r["id"]]["rewards"]) or {}
            numbers = {k: v if isinstance(v, int | float) else math.nan for k, v in parts.items()}
            groups.setdefault((r["step"], r["group_index"]), []).append(numbers)
    pairs = [(b["prompt"] or "", b["text"] or "") for b in bodies.values()]
    query = "SELECT name, weight FROM components WHERE phase = ? ORDER BY rowid"  # as they were given
    weights = dict(reader.db.execute(query, (phase,)).fetchall())
    repeated = [r["repetition"] for r in rows if r["repetition"] is not None]
    return [
        monitors.repetition(repeated, first, last, before(reader, phase, first)),
        monitors.take_over(list(groups.values()), weights, rise(reader, phase, next(iter(weights), "")), first, last),
        monitors.echoes(pairs, first, last),
    ]


def before(reader: Reader, phase: str, first: int) -> list[float]:
    """How much the first answers of a phase repeat themselves, as far as they are not the newest."""
    query = (
        "SELECT repetition FROM rollouts WHERE phase = ? AND step < ? AND repetition IS NOT NULL "
        "ORDER BY step, group_index, sample_index LIMIT ?"
    )
    return [row[0] for row in reader.db.execute(query, (phase, first, _ANSWERS))]


def rise(reader: Reader, phase: str, component: str) -> float:
    """How much the mean of a component has risen since the start; 0 where that is not known."""
    found = monitors.ends(history(reader, f"reward/{component}", phase))
    return found.now - found.start if found else 0.0
