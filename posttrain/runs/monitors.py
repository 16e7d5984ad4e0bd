"""What often goes wrong in a run, as small functions of its curves; each returns a sentence with its evidence, or None.

`start` and `now` are means over the first and the last W = max(5, 5% of the steps) steps; fewer than 2 W steps tell nothing. The limits
were tried on published curves and on runs with planted faults (docs/page.md): they audit a run, they do not stop it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from statistics import median
from typing import Any

Curve = Sequence[tuple[int, float]]  # (step, value)
SHARE = 0.05  # of the steps, in a window
LEAST = 5  # steps of a window
DRIFT, MOVED = 1.5, 4.0  # times as long, or as short, and tokens more or less
CUT = 0.1  # share of answers cut off
COLLAPSE = 0.2  # of the entropy at the start
SOLVED = 0.9  # of the best reward: little entropy and equal answers are then what one wants
REPEATED, REPEATED_WORST = 0.2, 0.5  # mean and 90th percentile of repeated 4-grams
TAKEN = 0.5  # share of the reward's variance within groups
GROUPS = 10  # that a share of the variance is told of: of five it was wrong in 6% of sound runs
RISEN = 0.05  # of the first component
SILENT = 0.5  # share of groups whose answers all earned the same
GAP, GAP_TIMES = 0.01, 3.0  # nats, and times the start
SURE = 2.0  # standard errors beyond a limit, where what is measured varies much
RISE = 4.0  # standard errors of a window's mean that a reward must rise by
FALL, LOST = 6.0, 0.5  # standard errors that it must fall by from its best window, and of the way to its worst
ECHO = 0.1  # share of answers that repeat their prompt
NAMES = ("over-optimised", "length drift", "cut off", "entropy collapse", "silent groups", "take-over", "gap growing", "repetition",
         "echo", "reward falls")  # fmt: skip


@dataclass(frozen=True)
class Finding:
    """A warning in words. steps: where to look, as the store counts them; filter: the answers that show it, as the page filters them."""

    name: str
    says: str
    first: int
    last: int
    metrics: tuple[str, ...] = ()
    filter: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Ends:
    """A curve's beginning and end."""

    start: float
    now: float
    first: int  # the step that `now` begins at
    last: int


def window(steps: int) -> int:
    return max(LEAST, math.ceil(SHARE * steps))


def ends(curve: Curve) -> Ends | None:
    """None where there are too few steps to compare."""
    known = [(s, v) for s, v in curve if math.isfinite(v)]
    w = window(len(known))
    if len(known) < 2 * w:
        return None
    return Ends(_mean(known[:w]), _mean(known[-w:]), known[-w][0], known[-1][0])


def _mean(some: Sequence[tuple[int, float]]) -> float:
    return sum(v for _, v in some) / len(some)


def _noise(curve: Curve) -> float:
    """The standard error of a window's mean, from the differences of neighbouring steps, which a trend hardly changes."""
    known = [v for _, v in curve if math.isfinite(v)]
    steps = [b - a for a, b in zip(known, known[1:], strict=False)]
    variance = sum(d * d for d in steps) / (2 * len(steps)) if steps else 0.0
    return math.sqrt(variance / window(len(known)))


def over_optimised(reward: Curve, held_out: Curve) -> Finding | None:
    """The reward rises (by more than 4 standard errors) while the last three held-out scores are all at or below the first."""
    r, scores = ends(reward), [(s, v) for s, v in held_out if math.isfinite(v)]
    if r is None or len(scores) < 4 or r.now - r.start <= RISE * _noise(reward):
        return None
    before, last = scores[0][1], scores[-3:]
    if any(v > before for _, v in last) or last[-1][1] >= before:
        return None
    says = f"reward rises while held-out falls: reward {_f(r.start)} to {_f(r.now)}, held-out {_f(before)} to {_f(last[-1][1])}"
    return Finding(
        "over-optimised", says, last[0][0], r.last, ("reward", "accuracy", "held_out_reward"), {"order": "best"}
    )


def reward_falls(reward: Curve) -> Finding | None:
    """From its best window the reward has fallen by more than 6 standard errors, and by more than half of the way to its worst window."""
    known = [(s, v) for s, v in reward if math.isfinite(v)]
    w = window(len(known))
    if len(known) < 2 * w:
        return None
    sums = list(accumulate((v for _, v in known), initial=0.0))
    means = [(b - a) / w for a, b in zip(sums, sums[w:], strict=False)]
    at = max(range(len(means)), key=lambda i: means[i])
    fall = means[at] - means[-1]
    if fall <= FALL * _noise(known) or fall <= LOST * (means[at] - min(means)):
        return None
    says = (
        f"reward falls: {_f(means[at])} at steps {known[at][0] + 1} to {known[at + w - 1][0] + 1}, {_f(means[-1])} now"
    )
    return Finding("reward falls", says, known[-w][0], known[-1][0], ("reward", "kl", "grad_norm"), {"order": "worst"})


def length_drift(length: Curve, truncated: Curve = ()) -> Finding | None:
    """Answers become half as long again or a third shorter, or more than a tenth are cut off and more than at the start."""
    e, cut = ends(length), ends(truncated)
    if cut is not None and cut.now > CUT and cut.now > cut.start + 2 * _noise(truncated):
        says = f"{_p(cut.now)} of answers are cut off at the longest length ({_p(cut.start)} at the start)"
        return Finding("cut off", says, cut.first, cut.last, ("length", "truncated"), {"stop": "length"})
    if e is None or e.start <= 0 or 1 / DRIFT <= e.now / e.start <= DRIFT or abs(e.now - e.start) < MOVED:
        return None
    says = f"answers grow {'longer' if e.now > e.start else 'shorter'}: {e.start:.0f} to {e.now:.0f} tokens"
    some = {"shortest": math.ceil(e.start)} if e.now > e.start else {"longest": math.floor(e.start)}
    return Finding("length drift", says, e.first, e.last, ("length", "truncated"), some)


def entropy_collapse(entropy: Curve, score: Curve, best: float = 1.0) -> Finding | None:
    """Less than a fifth of the entropy is left, by two standard errors, and the task is not solved."""
    e, s = ends(entropy), ends(score)
    if e is None or e.start <= 0 or e.now >= COLLAPSE * e.start or (s is not None and s.now >= SOLVED * best):
        return None
    logs = [(s, math.log(max(v, 0.01 * e.start))) for s, v in entropy if math.isfinite(v)]  # its noise is in proportion
    if math.log(COLLAPSE * e.start / max(e.now, 1e-12)) <= SURE * math.sqrt(2) * _noise(logs):
        return None
    says = f"entropy collapsed: {_f(e.start)} to {_f(e.now)} nats per token, and the task is not solved"
    return Finding("entropy collapse", says, e.first, e.last, ("entropy",), {})


def repetition(recent: Sequence[float], first: int, last: int, before: Sequence[float] = ()) -> Finding | None:
    """Answers of the last steps repeat themselves: of all 4-grams of tokens, how many are there already; before: of the first answers. Calls
    of tools and tokens of one letter repeat much by nature, so up to REPEATED_WORST only what has grown is told."""
    known = sorted(v for v in recent if math.isfinite(v))
    if len(known) < 10:
        return None
    mean, worst = sum(known) / len(known), known[int(0.9 * (len(known) - 1))]
    usual = [v for v in before if math.isfinite(v)]
    grown = not usual or mean > DRIFT * sum(usual) / len(usual)
    if (mean <= REPEATED and worst <= REPEATED_WORST) or (mean <= REPEATED_WORST and not grown):
        return None
    says = f"answers repeat themselves: {_p(mean)} of their 4-grams on average, {_p(worst)} in the worst tenth"
    return Finding("repetition", says, first, last, (), {"order": "newest"})


def take_over(
    groups: Sequence[Sequence[dict[str, float]]], weights: dict[str, float], risen: float, first: int, last: int
) -> Finding | None:
    """A component other than the first explains most of what separates answers of one group, w Cov(c, R) / Var(R), and the first,
    which is taken to be what the run is for, has not risen and is not solved: where nearly all answers have the most of it that any has,
    the others are all that is left to decide. groups: the components of each answer of each group."""
    parts = contributions(groups, weights)
    shares = variance_shares(groups, weights)
    aim = [v for g in groups for c in g if math.isfinite(v := c.get(next(iter(weights), ""), math.nan))]
    if aim and max(aim) > 0 and sum(aim) / len(aim) >= SOLVED * max(aim):
        return None
    others = {name: share for name, share in shares.items() if name != next(iter(weights), None)}
    if not others or len(parts) < GROUPS or risen >= RISEN:
        return None
    name = max(others, key=lambda k: others[k])
    total = sum(whole for _, whole in parts)
    error = (
        math.sqrt(sum((by[name] - others[name] * whole) ** 2 for by, whole in parts)) / total
    )  # of a ratio of sums over groups
    if others[name] - SURE * error <= TAKEN:
        return None
    says = f"{name} takes over: it decides {_p(others[name])} of what separates answers to the same prompt"
    return Finding("take-over", says, first, last, (f"reward/{name}", "reward"), {"order": "best"})


def variance_shares(groups: Sequence[Sequence[dict[str, float]]], weights: dict[str, float]) -> dict[str, float]:
    """Component -> its share of the variance of R = sum w c within groups; they sum to 1. Empty where no answers differ."""
    parts = contributions(groups, weights)
    total = sum(whole for _, whole in parts)
    return {k: sum(by[k] for by, _ in parts) / total for k in weights} if total > 1e-12 else {}


def contributions(
    groups: Sequence[Sequence[dict[str, float]]], weights: dict[str, float]
) -> list[tuple[dict[str, float], float]]:
    """Of each group the sums of w (c - mean c) (R - mean R) by component, and that of (R - mean R)^2."""
    out = []
    for group in groups:
        known = [c for c in group if all(math.isfinite(c.get(k, math.nan)) for k in weights)]
        if len(known) < 2:
            continue
        totals = [sum(w * c[k] for k, w in weights.items()) for c in known]
        mean = sum(totals) / len(totals)
        by = {
            k: sum(
                w * (c[k] - sum(d[k] for d in known) / len(known)) * (r - mean)
                for c, r in zip(known, totals, strict=True)
            )
            for k, w in weights.items()
        }
        out.append((by, sum((r - mean) ** 2 for r in totals)))
    return out


def gap_growing(gap: Curve) -> Finding | None:
    """The trainer's log-probabilities move away from the sampler's: three times the start in half of the newest steps, and more than
    rounding."""
    e = ends(gap)
    if e is None:
        return None
    now = median([v for s, v in gap if s >= e.first and math.isfinite(v)])
    if now < GAP or now < GAP_TIMES * e.start:
        return None
    says = f"sampler and trainer drift apart: their log-probabilities differ by {_f(now)}, {_f(e.start)} at the start"
    return Finding("gap growing", says, e.first, e.last, ("logp_gap",), {})


def silent_groups(silent: Curve, reward: Curve, best: float = 1.0, unsolved: float | None = None) -> Finding | None:
    """In most groups all answers earn the same, and not because they are all right.

    unsolved: of the newest groups, the share whose answers earn the same and less than nine tenths of the best; where it is not known,
    the mean reward must be below that.
    """
    e, r = ends(silent), ends(reward)
    solved = r is not None and r.now >= SOLVED * best if unsolved is None else unsolved < SILENT
    if e is None or e.now < SILENT or solved:
        return None
    says = f"{_p(e.now)} of groups teach nothing: all their answers earn the same ({_p(e.start)} at the start)"
    return Finding("silent groups", says, e.first, e.last, ("frac_reward_zero_std", "reward_std"), {})


def echoes(pairs: Sequence[tuple[str, str]], first: int, last: int) -> Finding | None:
    """Answers that are their prompt again. pairs: (prompt, answer) of the last steps."""
    same = [p for p, a in pairs if p.strip() and a.strip() and a.strip() == p.strip()]
    if len(pairs) < 10 or len(same) / len(pairs) <= ECHO:
        return None
    says = f"{_p(len(same) / len(pairs))} of answers are their prompt again"
    return Finding("echo", says, first, last, (), {"text": same[0].strip()[:40]})


def _f(x: float) -> str:
    return f"{x:.3g}"


def _p(x: float) -> str:
    return f"{100 * x:.0f}%"
