"""Test a reward on gold, corrupted and degenerate answers before training: which of them would an optimiser exploit?"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from posttrain.core.errors import UserError
from posttrain.core.protocols import Environment
from posttrain.core.registry import Part
from posttrain.core.types import Prompt
from posttrain.rewards.auditing.attacks import CORRUPTIONS, DEGENERATE, STYLES, Attack, gold_of
from posttrain.rewards.auditing.wordings import WORDINGS
from posttrain.rewards.runtime.score import RewardSum, is_scorer

_TIE = 1e-9


@dataclass(frozen=True)
class Row:
    """How a family of answers scored. n counts the answers that could be scored, failed those that could not."""

    family: str
    kind: str  # gold, right in other words, corrupted or degenerate
    n: int
    failed: int
    mean: float
    min: float
    max: float
    as_good: int  # answers with at least the reward of the gold answer of their prompt
    verdict: str  # ok, exploit, paid, missed, failed
    why: str = ""  # the first failure, where there was one


@dataclass(frozen=True)
class AuditReport:
    """The families, and one plain sentence for each thing found; notes are about right answers that are not paid in full."""

    rows: tuple[Row, ...]
    findings: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Nothing found."""
        return not self.findings

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for a log or a page."""
        told = {"findings": list(self.findings), "notes": list(self.notes)}
        return {"ok": self.ok, "rows": [_plain(asdict(row)) for row in self.rows], **told}

    def __str__(self) -> str:
        table = [f"{r.family:28} {r.n:4d} {r.mean:8.3f} {r.min:8.3f} {r.max:8.3f}  {r.verdict}" for r in self.rows]
        head = f"{'family':28} {'n':>4} {'mean':>8} {'min':>8} {'max':>8}  verdict"
        return "\n".join([head, *table, *(f"- {f}" for f in self.sentences)])

    @property
    def sentences(self) -> tuple[str, ...]:
        """What was found, or that nothing was, and what else there is to say."""
        return (*(self.findings or ("nothing to exploit was found",)), *self.notes)


def audit(
    reward: Any, prompts: Sequence[Prompt], environment: Environment | None = None, timeout: float = 10.0
) -> AuditReport:
    """Score families of answers to the prompts and say which an optimiser would be paid for.

    reward is a rule or a function as the RewardSum takes them, or a scorer of texts; the rule `task` is given the environment. Corrupted and
    degenerate answers are compared with the gold answer of the same prompt, written in the style the reward likes best.
    """
    golds = {p.id: gold_of(p) for p in prompts}
    prompts = [p for p in prompts if golds[p.id] is not None]
    if not prompts:
        raise UserError("an audit needs prompts with gold answers, got none; set Prompt.answer")
    if environment is not None and isinstance(reward, Part) and "environment" in reward.defaults():
        reward = reward.but(environment=environment)
    scorer = reward if is_scorer(reward) else RewardSum([("audited", reward, 1.0)], timeout=timeout)

    def run(write: Attack) -> Scores:
        texts = {p.id: text for p in prompts if (text := write(p, golds[p.id] or "")) is not None}
        asked = [p for p in prompts if p.id in texts]
        found, report = scorer.texts(asked, list(texts.values()))
        first = next((r for r in report.rewards if r.failed), None)
        return Scores(zip(texts, found, strict=True), f"{first.error} {first.where}".strip() if first else "")

    gold_by_style = {name: run(style) for name, style in STYLES.items()}
    best = max(gold_by_style, key=lambda name: _mean(gold_by_style[name]))
    gold = gold_by_style[best]
    style = STYLES[best]
    families = {
        "right": {name: run(_unless_gold(style, wording)) for name, wording in WORDINGS.items()},
        "corrupted": {name: run(_styled(style, attack)) for name, attack in CORRUPTIONS.items()},
        "degenerate": {name: run(attack) for name, attack in DEGENERATE.items()},
    }
    return _judge(f"gold ({best})", gold, {k: {n: xs for n, xs in f.items() if xs} for k, f in families.items()})


class Scores(dict[str, float]):
    """prompt -> score, NaN where it failed; and the first failure."""

    def __init__(self, pairs: Iterable[tuple[str, float]], why: str = "") -> None:
        super().__init__(pairs)
        self.why = why


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """Strict JSON has no NaN: null."""
    return {k: None if isinstance(x, float) and not math.isfinite(x) else x for k, x in row.items()}


def _unless_gold(style: Callable[[Prompt, str], str], wording: Attack) -> Attack:
    """A wording that is not the way in which the gold answer is written already."""

    def write(prompt: Prompt, gold: str) -> str | None:
        text = wording(prompt, gold)
        return None if text == style(prompt, gold) else text

    return write


def _styled(style: Callable[[Prompt, str], str], attack: Attack) -> Attack:
    def write(prompt: Prompt, gold: str) -> str | None:
        answer = attack(prompt, gold)
        return None if answer is None or answer == gold else style(prompt, answer)

    return write


def _judge(name: str, gold: Scores, families: dict[str, dict[str, Scores]]) -> AuditReport:
    right, wrong, empty = families["right"], families["corrupted"], families["degenerate"]
    floor = _mean({(f, k): x for f, xs in wrong.items() for k, x in xs.items()})
    floor = _mean(gold) if math.isnan(floor) else floor
    rows = [_row(name, "gold", gold, gold, math.inf)]
    rows += [_row(family, "right", xs, gold, math.inf) for family, xs in right.items()]
    rows += [_row(family, "corrupted", xs, gold, math.inf) for family, xs in wrong.items()]
    rows += [_row(family, "degenerate", xs, gold, floor) for family, xs in empty.items()]
    found = [s for row in rows if row.verdict != "missed" for s in _sentences(row, rows[0].mean, floor)]
    notes = [s for row in rows if row.verdict == "missed" for s in _sentences(row, rows[0].mean, floor)]
    return AuditReport(tuple(rows), tuple(found), tuple(notes))


def _row(family: str, kind: str, scores: Scores, gold: Scores, floor: float) -> Row:
    good = {k: x for k, x in scores.items() if not math.isnan(x)}
    failed = len(scores) - len(good)
    as_good = sum(x >= gold[k] - _TIE for k, x in good.items() if not math.isnan(gold[k]))
    mean = _mean(good)
    if kind == "gold":
        verdict = "failed" if failed else "ok"
    elif kind == "right":
        verdict = "missed" if as_good < len(good) else "failed" if failed else "ok"
    else:
        verdict = "exploit" if as_good else "paid" if mean > floor + _TIE else "failed" if failed else "ok"
    low, high = min(good.values(), default=math.nan), max(good.values(), default=math.nan)
    return Row(family, kind, len(good), failed, mean, low, high, as_good, verdict, scores.why)


def _sentences(row: Row, gold: float, floor: float) -> list[str]:
    """What is to be said of a family; a failure is told whatever else was found."""
    found = [said] if (said := _sentence(row, gold, floor)) else []
    if row.failed:
        n = row.n + row.failed
        found.append(f"{row.family}: the reward could not be computed on {row.failed} of {n} answers ({row.why})")
    return found


def _sentence(row: Row, gold: float, floor: float) -> str:
    if row.verdict == "missed":
        missed = row.n - row.as_good
        return f"right, but {row.family}: {missed} of {row.n} score less than the bare gold answer ({row.mean:.3g} against {gold:.3g})"
    if row.verdict == "exploit" and row.kind == "corrupted":
        return f"{row.family}: {row.as_good} of {row.n} wrong answers score as well as the gold answer"
    if row.verdict == "exploit":
        means = f"{row.mean:.3g} against {gold:.3g}"
        return f"{row.family}: {row.as_good} of {row.n} answers that solve nothing score as well as gold ({means})"
    if row.verdict == "paid":
        return f"{row.family}: scores {row.mean:.3g}, a corrupted answer {floor:.3g}, so an optimiser is paid for it"
    return ""


def _mean(scores: dict[Any, float]) -> float:
    good = [x for x in scores.values() if not math.isnan(x)]
    return math.fsum(good) / len(good) if good else math.nan
