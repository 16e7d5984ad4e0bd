"""Is the learning rate far off? A look at how far the first updates move the policy on what it just sampled.

shift = mean over tokens of |log pi_after - log pi_before|, both by the trainer's forward pass, on tokens that the update learned from
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor

from posttrain.core.types import Group, Origin, Rollout

METRIC = "policy_shift"
LOW, HIGH = 1e-5, 0.5  # set below from measurements
_LOOKS = (2, 4, 6)  # steps after the warm-up
_ROWS, _TOKENS = 16, 4096  # that one look reads at most


class RateProbe:
    """Looks at three steps after the warm-up, before and after the update; warns once if the policy hardly moves, or is thrown
    about. A callback (before) and a monitor (after)."""

    def __init__(self) -> None:
        self.told = False
        self.rows: list[Rollout] = []
        self.before: Tensor | None = None

    def on_rollouts(self, loop: Any, step: int, groups: list[Group]) -> None:
        """The log-probabilities of some answers, before they are learned from."""
        due = step - int(loop.config.warmup) in _LOOKS and not loop.method.scores
        self.rows = few([r for g in groups for r in g.rollouts]) if due else []
        self.before = logps(loop.policy, self.rows) if self.rows else None

    def check(self, step: int, groups: list[Group], metrics: dict[str, float], loop: Any) -> str:
        """Check a step; returns the warning that was printed, or ""."""
        before, self.before = self.before, None
        if before is None or not metrics.get("grad_norm"):
            return ""
        metrics[METRIC] = moved = float((logps(loop.policy, self.rows) - before).abs().mean())
        line = advice(moved, loop.learner.lr or 0.0)
        if not line or self.told:
            return ""
        self.told = True
        loop.run.event(loop.phase, step, "learning rate", line)
        print(f"warning: step {step}: {line}", file=sys.stderr)
        return line


def few(rollouts: list[Rollout]) -> list[Rollout]:
    """Some answers that the policy itself sampled in one turn, evenly chosen, of at most so many tokens."""
    own = [r for r in rollouts if r.origin is Origin.SAMPLED and len(r.turns) == 1 and len(r)]
    own = own[:: max(1, -(-len(own) // _ROWS))]
    out: list[Rollout] = []
    tokens = 0
    for r in own:
        tokens += len(r.context) + len(r)
        if tokens > _TOKENS and out:
            break
        out.append(r)
    return out


@torch.no_grad()
def logps(policy: Any, rows: list[Rollout]) -> Tensor:
    """Log-probabilities of the policy's own tokens in these answers, one after another."""
    was = policy.training
    policy.eval()
    logp_BT = policy.forward(rows, ("logp_BT",))["logp_BT"].float().cpu()
    policy.train(was)
    return torch.cat([logp_BT[i, : len(r)][r.mask_T] for i, r in enumerate(rows)])


def advice(moved: float, lr: float) -> str:
    """A sentence where the rate is far off, "" where it is not."""
    if moved < LOW:
        return (
            f"an update moves the policy by {moved:.1e} nats a token, so 100 steps will hardly be seen: the learning rate {lr:.1e} "
            f"is far too small for this task; try --lr {10 * lr:.0e}"
        )
    if moved > HIGH:
        return (
            f"an update moves the policy by {moved:.2f} nats a token, more than it can learn from: the learning rate {lr:.1e} is "
            f"far too large for this task; try --lr {lr / 10:.0e}"
        )
    return ""
