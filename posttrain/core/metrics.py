"""The figures of a step's rollouts, and the seconds of its stages. docs/metrics.md has every name with its formula."""

from __future__ import annotations

import math
import time

from posttrain.core.types import Group, Origin, Rollout

Metrics = dict[str, float]


def describe(groups: list[Group], kept: list[Group]) -> Metrics:
    """Metrics of a step's rollouts. Each is a function of the rollouts alone, so a resumed run repeats it."""
    rollouts = [r for g in groups for r in g.rollouts]
    sums = [[float((t.logp_T * t.mask_T).sum()) for t in r.turns] for r in rollouts]
    scored = [r.total for g in groups for r in g.scored]
    lengths = [sum(map(len, r.turns)) for r in rollouts]
    tokens = sum(lengths)
    logp = sum(x for some in sums for x in some)
    out = {
        "reward": sum(scored) / len(scored) if scored else math.nan,
        **spread(groups),
        "failed": float(sum(r.failed for r in rollouts)),
        "groups_kept": len(kept) / max(len(groups), 1),
        "tokens": float(tokens),
        "length": tokens / max(len(rollouts), 1),
        "length_min": float(min(lengths, default=0)),
        "length_max": float(max(lengths, default=0)),
        "truncated": sum(r.truncated for r in rollouts) / max(len(rollouts), 1),
        "nll": -logp / max(tokens, 1),  # mean -log p of what was sampled: an unbiased entropy estimate
    }
    own = [
        (sum(some), sum(int(t.mask_T.sum()) for t in r.turns)) for r, some in zip(rollouts, sums) if sampled(r.origin)
    ]
    if count := sum(n for _, n in own):
        out["entropy"] = -sum(x for x, _ in own) / count  # a learner that knows the whole distribution replaces it
    names = sorted({k for r in rollouts for k in r.rewards})
    for name in names if len(names) > 1 else ():
        values = [r.rewards[name] for r in rollouts if name in r.rewards and r.rewards[name] == r.rewards[name]]
        out[f"reward/{name}"] = sum(values) / len(values) if values else math.nan
    return out | noted(rollouts)


def noted(rollouts: list[Rollout]) -> Metrics:
    """The means of what a rollout part notes of its answers (`info["figures"]`), over those that it noted it of."""
    told = [r.info["figures"] for r in rollouts if "figures" in r.info]
    of = {name: [float(x[name]) for x in told if name in x] for name in sorted({k for x in told for k in x})}
    return {f"answers/{name}": sum(values) / len(values) for name, values in of.items()}


def sampled(origin: Origin) -> bool:
    """Only the sampler's own answers come with the log-probabilities they were drawn with."""
    return origin is Origin.SAMPLED


def spread(groups: list[Group]) -> Metrics:
    """How much rewards differ within a group: the mean standard deviation (n - 1), and the share of groups that teach nothing.

    Of groups with two scored answers or more; nothing where there are none (written answers, one answer per prompt).
    """
    several = [[r.total for r in g.scored] for g in groups if len(g.scored) > 1]
    if not several:
        return {}
    stds = [_std(some) for some in several]
    equal = sum(max(some) == min(some) for some in several)
    return {"reward_std": sum(stds) / len(stds), "frac_reward_zero_std": equal / len(several)}


def _std(xs: list[float]) -> float:
    mean = sum(xs) / len(xs)
    return math.sqrt(sum((x - mean) ** 2 for x in xs) / (len(xs) - 1))


class Stopwatch:
    """Seconds by stage of a step; what is timed after the metrics are written counts for the next step."""

    def __init__(self) -> None:
        self.last = self.began = time.perf_counter()
        self.laps: Metrics = {}

    def lap(self, stage: str) -> None:
        """What went by since the last lap belongs to this stage."""
        now = time.perf_counter()
        self.laps[f"{stage}/seconds"] = self.laps.get(f"{stage}/seconds", 0.0) + now - self.last
        self.last = now

    def read(self, grading: float) -> tuple[float, Metrics]:
        """The seconds of the step and of its stages, and begin the next. grading: seconds of sampling that were grading."""
        now = time.perf_counter()
        seconds, laps = now - self.began, self.laps
        if "sampling/seconds" in laps and grading:
            laps["sampling/seconds"] = max(0.0, laps["sampling/seconds"] - grading)
            laps["grading/seconds"] = grading
        self.began, self.laps = now, {}
        return seconds, laps
