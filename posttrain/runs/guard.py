"""The mismatch guard: the sampler's log-probabilities against the trainer's, with a diagnosis of the cause.

gap = |logp_trainer - logp_sampler| of the policy's own actions, before the step's first update: the mean over all of them sees
what is wrong everywhere, the maximum what is wrong at one token in a thousand. It is rounding error when the two agree;
anything larger makes importance ratios wrong, and no curve shows it. `truncation.py` sees what leaves no gap at all.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from posttrain.core.errors import UserError
from posttrain.core.protocols import Policy
from posttrain.core.sampling import Sampling
from posttrain.core.turn import Turn
from posttrain.core.types import Group, Origin, Rollout
from posttrain.runs.truncation import Truncation

LIMITS = {torch.float32: 1e-3, torch.float64: 1e-3}  # of the mean; any other type: _COARSE
_COARSE = 0.05
WORST = {torch.float32: 0.02, torch.float64: 0.02}  # of a single token; any other type: _COARSE_WORST
_COARSE_WORST = 1.0
_LOOKED_AT = 8  # rollouts whose tokens are compared one by one for a diagnosis
_FIRST, _STEEP = 1, 3.0  # a gap is at the beginning when the first actions' is that many times the others'
_TEMPERATURES = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.5, 2.0)


@dataclass
class Finding:
    """What is wrong, how one can tell, and what to do about it."""

    kind: str
    why: str
    todo: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.why}; {self.todo}"


@dataclass
class Guard:
    """Warns when the mean gap exceeds the limit, or a single token's `worst` (None: what suits the weights' type), or when
    answers come from a truncated distribution; `strict` makes it an error."""

    limit: float | None = None
    strict: bool = False
    counts: dict[str, int] = field(default_factory=dict)  # how often each finding was made
    worst: float | None = None
    truncation: Truncation = field(default_factory=Truncation)
    cut: tuple[str, float] | None = None  # what the answers of this step look truncated by

    def on_rollouts(self, loop: Any, step: int, groups: list[Group]) -> None:
        """Before the update: do answers come from the distribution that is trained?"""
        if loop.method.scores:
            return
        if not loop.shared:  # each role has a policy of its own
            groups = [g for g in groups if all(r.role == loop.learner.goal.rows for r in g.rollouts)]
        self.cut = self.truncation.look(step, groups, loop.learner.policy, loop.config.sampling)

    def check(self, step: int, groups: list[Group], seen: dict[str, float], loop: Any) -> Finding | None:
        """Check a step. Written answers have no sampler and a reward model has no log-probability: neither is checked."""
        own = own_rollouts(groups)
        if "logp_gap" not in seen or not own or loop.method.scores:
            return None
        if lagging(own, step, loop.config):
            return None
        policy = loop.learner.policy
        limit = self.limit if self.limit is not None else default_limit(policy)
        gap, most = seen["logp_gap"], seen.get("logp_gap_max", 0.0)
        worst = self.worst if self.worst is not None else max(default_worst(policy), limit)
        if gap <= limit and most <= worst and self.cut is None:
            return None
        if gap <= limit and most <= worst and self.cut is not None:
            finding, size = _cut(*self.cut), "in what is drawn"
        elif not math.isfinite(gap):
            finding, size = _not_finite(), f"by {gap} nats per token (limit {limit:g})"
        elif gap > limit:
            finding = diagnose(policy, own, loop.config.sampling, step)
            size = f"by {gap:.2g} nats per token (limit {limit:g})"
        else:
            finding = _stale(own, step) or single_tokens(policy, own, loop.learner.first_gap)
            size = f"by {most:.2g} nats at single tokens (limit {worst:g})"
        loop.run.event(loop.phase, step, f"mismatch: {finding.kind}", f"{size}; {finding}")
        self._tell(finding, f"step {step + 1}: sampler and trainer differ {size}: {finding}")
        return finding

    def _tell(self, finding: Finding, line: str) -> None:
        """Every finding is counted; the line is printed the 1st, 10th, 100th ... time."""
        n = self.counts[finding.kind] = self.counts.get(finding.kind, 0) + 1
        if self.strict:
            raise UserError(line)
        if math.log10(n).is_integer():
            print(f"warning: {line}" + (f" ({n} times so far)" if n > 1 else ""), file=sys.stderr)


def default_limit(policy: Policy) -> float:
    """fp32 rounds near 1e-6 and bf16 near 1e-2 per token; the limits are well above, real faults well above them."""
    return LIMITS.get(next(policy.parameters()).dtype, _COARSE)


def default_worst(policy: Policy) -> float:
    """fp32 stays below 1e-3 at every token; bf16 reaches a few tenths at tokens that were unlikely (docs/engine.md)."""
    return WORST.get(next(policy.parameters()).dtype, _COARSE_WORST)


def single_tokens(policy: Policy, rollouts: list[Rollout], place: tuple[Turn, int, float] | None) -> Finding:
    """The token that differs most, where nearly all agree, as the learner saw it before it moved the policy."""
    total = sum(int(r.mask_T.sum()) for r in rollouts)
    where = f"one of {total} tokens"
    if place is not None:
        row, t, gap = place
        token = _named(policy, row, t)
        whose = next((f" of answer {r.index} to {r.prompt.id}" for r in rollouts if any(x is row for x in r.turns)), "")
        where = f"token {t} ({token}){whose}, one of {total}, differs by {gap:+.2g} while the mean does not"
    todo = "check what the sampler does at such tokens: an end token, a forced or banned one, a changed id"
    return Finding("single tokens differ", where, todo)


def _named(policy: Policy, row: Turn, t: int) -> str:
    try:
        return repr(policy.decode(row.actions[t : t + 1]))[:40]
    except Exception:  # a policy whose actions are no text
        return "no text"


def lagging(rollouts: list[Rollout], step: int, config: Any) -> bool:
    """The answers are as old as the settings ask for, so the gap is what the policy has moved since."""
    oldest = min(r.versions[0] for r in rollouts)
    return bool(step > oldest >= step - max(config.lag, config.max_staleness))


def own_rollouts(groups: list[Group]) -> list[Rollout]:
    return [r for g in groups for r in g.rollouts if r.origin is Origin.SAMPLED and r.mask_T.any() and not r.failed]


def diagnose(policy: Policy, rollouts: list[Rollout], how: Sampling, step: int) -> Finding:
    """The likeliest cause: what the rollouts and settings say outright first, then the shape of the gap over tokens."""
    return (
        _stale(rollouts, step)
        or _temperature(policy, how)
        or _context(policy, rollouts)
        or _shape(policy, handful(rollouts), how)
        or Finding(
            "unexplained",
            "the settings agree and the gap is spread over the whole answer",
            "check that the sampler got the last update, that both see one system prompt, and one precision",
        )
    )


def _stale(rollouts: list[Rollout], step: int) -> Finding | None:
    newest = max(r.version for r in rollouts)
    if newest >= step:
        return None
    return Finding(
        "stale weights",
        f"all {len(rollouts)} answers were sampled from weights of step {newest} or older",
        "sync the sampler before each step, or use a loss that allows for it (truncated importance weights)",
    )


def _temperature(policy: Policy, how: Sampling) -> Finding | None:
    sampled, assumed = how.temperature or 1.0, policy.temperature  # greedy answers carry log-probabilities at 1
    if sampled == assumed:
        return None
    return _changed(
        f"sampled at temperature {sampled:g}, trained at {assumed:g}", f"set policy.temperature = {sampled:g}"
    )


def _context(policy: Policy, rollouts: list[Rollout]) -> Finding | None:
    """The context a rollout carries is not what the policy makes of its prompt."""
    odd = [r for r in rollouts if r.turns[0].observation.key != policy.observe(r.prompt).key]
    if not odd:
        return None
    return _template(f"{len(odd)} of {len(rollouts)} answers carry a context that is not their prompt as encoded here")


def _shape(policy: Policy, rollouts: list[Rollout], how: Sampling) -> Finding | None:
    """What the gaps of single tokens look like. The policy has moved by one step since; real faults are larger."""
    gaps = signed_gaps(policy, rollouts)
    size = float(torch.cat(gaps).abs().mean())
    cut = {k: getattr(how, k) for k, off in (("top_k", 0), ("top_p", 1.0), ("min_p", 0.0)) if getattr(how, k) != off}
    if cut and float((torch.cat(gaps) <= 0.1 * size).float().mean()) >= 0.95:
        told = ", ".join(f"{k}={v:g}" for k, v in cut.items())
        return _changed(f"the sampler is surer at every token, as after {told}", "return untruncated log-probabilities")
    first = torch.cat([g[:_FIRST] for g in gaps]).abs()
    later = torch.cat([g[_FIRST:] for g in gaps]).abs()
    if later.numel() and float(first.mean()) >= _STEEP * float(later.mean()):
        return _template(
            f"the gap is {float(first.mean()):.2g} at the first token and {float(later.mean()):.2g} after it"
        )
    best, left = fitted_temperature(policy, rollouts)
    if left < 0.25 * size:
        return _changed(f"temperature {best:g} explains what the sampler says", f"sample at {policy.temperature:g}")
    return None


@torch.no_grad()
def signed_gaps(policy: Policy, rollouts: list[Rollout]) -> list[Tensor]:
    """logp_trainer - logp_sampler of each rollout's own actions."""
    logp_BT = policy.forward(rollouts, ("logp_BT",))["logp_BT"].cpu().float()
    return [(logp_BT[b, : len(r)] - r.logp_T.float())[r.mask_T] for b, r in enumerate(rollouts)]


def fitted_temperature(policy: Policy, rollouts: list[Rollout]) -> tuple[float, float]:
    """The temperature under which the trainer comes nearest to the sampler, and the gap that is left."""
    was, found = policy.temperature, []
    try:
        for temperature in _TEMPERATURES:
            policy.temperature = temperature
            found.append((float(torch.cat(signed_gaps(policy, rollouts)).abs().mean()), temperature))
    finally:
        policy.temperature = was
    left, best = min(found)
    return best, left


def handful(rollouts: list[Rollout]) -> list[Rollout]:
    """A few rollouts spread over the step."""
    stride = max(1, len(rollouts) // _LOOKED_AT)
    return rollouts[::stride][:_LOOKED_AT]


def _changed(why: str, todo: str) -> Finding:
    return Finding("changed sampling parameters", why, todo)


def _template(why: str) -> Finding:
    todo = (
        "sample and train with one chat template, and keep the sampler's token ids instead of encoding the text again"
    )
    return Finding("template or context differs", why, todo)


def _cut(kind: str, x: float) -> Finding:
    return _changed(
        f"tokens come as after {kind}={x:g}, which the settings do not ask for, although their log-probabilities agree",
        "switch truncation off in the sampler, or say so in the settings (--sampling.top-p ...)",
    )


def _not_finite() -> Finding:
    return Finding(
        "not finite", "a log-probability is infinite or not a number", "check the weights and the sampler's masks"
    )
