"""Test a reward on gold, corrupted and degenerate answers before training: which of them would an optimiser exploit?"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from posttrain.core.errors import UserError
from posttrain.core.protocols import Environment
from posttrain.core.registry import Part
from posttrain.core.types import Prompt
from posttrain.rewards.auditing.attacks import CORRUPTIONS, DEGENERATE, STYLES, Attack, gold_of
from posttrain.rewards.runtime.score import RewardSum

_TIE = 1e-9


@dataclass(frozen=True)
class Row:
    """How a family of answers scored. n counts the answers that could be scored, failed those that could not."""

    family: str
    kind: str  # gold, corrupted or degenerate
    n: int
    failed: int
    mean: float
    min: float
    max: float
    as_good: int  # answers with at least the reward of the gold answer of their prompt
    verdict: str  # ok, exploit, paid, failed


@dataclass(frozen=True)
class AuditReport:
    """The families, and one plain sentence for each thing found."""

    rows: tuple[Row, ...]
    findings: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Nothing found."""
        return not self.findings

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for a log or a page."""
        return {"ok": self.ok, "rows": [asdict(row) for row in self.rows], "findings": list(self.findings)}

    def __str__(self) -> str:
        table = [f"{r.family:28} {r.n:4d} {r.mean:8.3f} {r.min:8.3f} {r.max:8.3f}  {r.verdict}" for r in self.rows]
        head = f"{'family':28} {'n':>4} {'mean':>8} {'min':>8} {'max':>8}  verdict"
        return "\n".join([head, *table, *(f"- {f}" for f in self.findings or ("nothing to exploit was found",))])


def audit(
    reward: Any, prompts: Sequence[Prompt], environment: Environment | None = None, timeout: float = 10.0
) -> AuditReport:
    """Score families of answers to the prompts and say which an optimiser would be paid for.

    reward is a rule or a function as the RewardSum takes them; the rule `task` is given the environment. Corrupted and
    degenerate answers are compared with the gold answer of the same prompt, written in the style the reward likes best.
    """
    golds = {p.id: gold_of(p) for p in prompts}
    prompts = [p for p in prompts if golds[p.id] is not None]
    if not prompts:
        raise UserError("an audit needs prompts with gold answers, got none; set Prompt.answer")
    if environment is not None and isinstance(reward, Part) and "environment" in reward.defaults():
        reward = reward.but(environment=environment)
    scorer = RewardSum([("audited", reward, 1.0)], timeout=timeout)

    def run(write: Attack) -> dict[str, float]:
        texts = {p.id: text for p in prompts if (text := write(p, golds[p.id] or "")) is not None}
        asked = [p for p in prompts if p.id in texts]
        return dict(zip(texts, scorer.texts(asked, list(texts.values()))[0], strict=True))

    gold_by_style = {name: run(style) for name, style in STYLES.items()}
    best = max(gold_by_style, key=lambda name: _mean(gold_by_style[name]))
    gold = gold_by_style[best]
    style = STYLES[best]
    wrong = {name: run(_styled(style, attack)) for name, attack in CORRUPTIONS.items()}
    empty = {n: run(attack) for n, attack in DEGENERATE.items()}
    return _judge(f"gold ({best})", gold, {k: v for k, v in wrong.items() if v}, {k: v for k, v in empty.items() if v})


def _styled(style: Callable[[Prompt, str], str], attack: Attack) -> Attack:
    def write(prompt: Prompt, gold: str) -> str | None:
        answer = attack(prompt, gold)
        return None if answer is None or answer == gold else style(prompt, answer)

    return write


def _judge(
    name: str, gold: dict[str, float], wrong: dict[str, dict[str, float]], empty: dict[str, dict[str, float]]
) -> AuditReport:
    floor = _mean({(f, k): x for f, xs in wrong.items() for k, x in xs.items()})
    floor = _mean(gold) if math.isnan(floor) else floor
    rows = [_row(name, "gold", gold, gold, math.inf)]
    rows += [_row(family, "corrupted", xs, gold, math.inf) for family, xs in wrong.items()]
    rows += [_row(family, "degenerate", xs, gold, floor) for family, xs in empty.items()]
    return AuditReport(tuple(rows), tuple(s for row in rows if (s := _sentence(row, rows[0].mean, floor))))


def _row(family: str, kind: str, scores: dict[Any, float], gold: dict[str, float], floor: float) -> Row:
    good = {k: x for k, x in scores.items() if not math.isnan(x)}
    failed = len(scores) - len(good)
    as_good = sum(x >= gold[k] - _TIE for k, x in good.items() if not math.isnan(gold[k]))
    mean = _mean(good)
    if kind == "gold":
        verdict = "failed" if failed else "ok"
    else:
        verdict = "exploit" if as_good else "paid" if mean > floor + _TIE else "failed" if failed else "ok"
    low, high = min(good.values(), default=math.nan), max(good.values(), default=math.nan)
    return Row(family, kind, len(good), failed, mean, low, high, as_good, verdict)


def _sentence(row: Row, gold: float, floor: float) -> str:
    if row.verdict == "failed":
        return f"{row.family}: the reward could not be computed on {row.failed} of {row.n + row.failed} answers"
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
