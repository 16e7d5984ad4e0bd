"""Is the learning rate far off? Told early in a run, from what its first updates did.

Too small: the mean over tokens of |log pi_after - log pi_before|, both by the trainer's forward pass, on answers that the update learned
from. On the embedded model a rate that learns moves it by 3e-3 to 8e-3 nats, one of a hundredth by 2e-5 to 3e-5. The rounding of weights in
half precision alone moves 0.02 nats, at any rate: there the rate is compared with the one suggested for the model.
Too large: soon after the warm-up answers are more random and earn less than at the start (rates that broke SmolLM2 and the embedded model did
both within a few steps; benchmarks/sweeps/learning_rate.json).
"""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from posttrain.core.config import Config
from posttrain.core.errors import UserError
from posttrain.core.protocols import Policy
from posttrain.core.types import Group, Origin, Rollout
from posttrain.models.folder import read_json
from posttrain.models.shape import DecoderConfig
from posttrain.policies.load import EMBEDDED

METRIC = "policy_shift"
LOW = 1e-4  # nats a token
_LOOKS = (2, 4, 6)  # steps after the warm-up at which an update is looked at
_ROWS, _TOKENS = 16, 4096  # that one look reads at most
_FAR = 30.0  # a rate that many times below the suggested one is told, where the update cannot be seen
_FIRST, _SOON = 3, 10  # the first steps, and the step after the warm-up when they are compared with the last ones
_RANDOM, _POOR = 1.25, 0.7  # more than so many times as random, and less than this share of the reward


class RateProbe:
    """Looks at some steps after the warm-up; warns once for each. A callback (before an update) and a monitor (after it)."""

    def __init__(self) -> None:
        self.told: set[str] = set()
        self.rows: list[Rollout] = []
        self.before: Tensor | None = None
        self.unseen = False  # a look is due, at weights in half precision
        self.seen: list[tuple[float, float]] = []  # reward and -log p of each step since the start

    def on_rollouts(self, loop: Any, step: int, groups: list[Group]) -> None:
        """The log-probabilities of some answers, before they are learned from."""
        due = step - int(loop.config.warmup) in _LOOKS and not loop.method.scores
        self.unseen = due and not exact(loop.policy)
        due = due and not self.unseen
        own = [r for g in groups for r in g.rollouts if loop.shared or r.role == loop.learner.goal.rows]
        self.rows = few(own) if due else []
        self.before = logps(loop.policy, self.rows) if self.rows else None

    def check(self, step: int, groups: list[Group], metrics: dict[str, float], loop: Any) -> str:
        """Check a step; returns the warning that was printed, or ""."""
        before, self.before = self.before, None
        lr, line = loop.learner.lr or 0.0, ""
        if before is not None and metrics.get("grad_norm"):
            metrics[METRIC] = moved = float((logps(loop.policy, self.rows) - before).abs().mean())
            line = too_small(moved, lr)
        elif self.unseen:
            line = far_below(lr, suggested_lr(loop.policy))
        if len(self.seen) == step:  # from the first step on: not after a restart in between
            self.seen.append((metrics.get("reward", 0.0), metrics.get("nll", 0.0)))
        if step == int(loop.config.warmup) + _SOON and len(self.seen) > step:
            line = line or too_large(self.seen, lr)
        kind = line.partition(":")[0]
        if not line or kind in self.told:
            return ""
        self.told.add(kind)
        loop.run.event(loop.phase, step, "learning rate", line)
        print(f"warning: step {step + 1}: {line}", file=sys.stderr)
        return line


def exact(policy: Any) -> bool:
    """Whether weights are in full precision."""
    return all(p.dtype in (torch.float32, torch.float64) for p in policy.parameters())


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


def too_small(moved: float, lr: float) -> str:
    if moved >= LOW:
        return ""
    return (
        f"the learning rate {lr:.1e} looks far too small: an update moves the policy by {moved:.1e} nats a token, so 100 steps "
        f"will hardly be seen; try --lr {10 * lr:.0e}"
    )


def far_below(lr: float, suggested: float) -> str:
    if lr * _FAR >= suggested:
        return ""
    return (
        f"the learning rate {lr:.1e} looks far too small: {suggested:.0e} is what measurements suggest for a model of this size; "
        "try it without --lr"
    )


def too_large(seen: list[tuple[float, float]], lr: float) -> str:
    """The mean of the last steps against that of the first."""
    (r0, h0), (r1, h1) = (
        (sum(r for r, _ in some) / len(some), sum(h for _, h in some) / len(some))
        for some in (seen[:_FIRST], seen[-5:])
    )
    if not (h1 > _RANDOM * h0 and r0 > 0 and r1 < _POOR * r0):
        return ""
    return (
        f"the learning rate {lr:.1e} looks far too large: the reward fell from {r0:.2g} to {r1:.2g} while answers became more random "
        f"({h0:.2g} to {h1:.2g} nats a token); try --lr {lr / 10:.0e}"
    )


def suggested_lr(policy: Policy) -> float:
    """A learning rate that suits the size: 2e-4 for the embedded model, 5e-5 at 135 M, 8e-6 at 1.5 B, 3e-6 at 7 B parameters.

    Up to 135 M as measured over three tasks each (benchmarks/sweeps/learning_rate.json); above, where nothing was measured here, it
    falls with millions^(-3/4) towards the 1e-6 to 5e-6 of published recipes. Adapters of rank 16 measured best at 12 times the rate.
    Tokens a step do not enter: with 4, 16 and 64 questions a step (two tasks, four rates) the embedded model did best at 7e-5 to 2e-4 alike;
    more of them forgive a rate that is too large (5e-4: 0.50 to 0.74 right with 4 questions, 0.94 to 0.97 with 64).
    """
    adapted = any(n.endswith("lora_a") for n, _ in policy.named_parameters())
    return rate_of(sum(p.numel() for p in policy.parameters()), adapted)


def largest_rate(config: Config) -> float:
    """The most that can be suggested for the model that the settings name, before it is loaded: by its shape where that is on this disk."""
    folder = EMBEDDED.get(config.model, Path(config.model))
    shape = None
    if (folder / "config.json").is_file():
        with suppress(UserError):  # told when it is loaded
            shape = DecoderConfig.of(read_json(folder / "config.json"))
    return rate_of(shape.parameters if shape else 1, bool(config.lora or config.adapter))


def rate_of(parameters: int, adapted: bool) -> float:
    """By the number of parameters, and whether adapters are trained instead of them."""
    millions = max(1.0, parameters / 1e6)
    small = 3e-4 / min(millions, 2.0) ** 0.75
    base: float = small * (min(millions, 135.0) / 2) ** -0.3 if millions > 2 else small
    base *= (max(millions, 135.0) / 135) ** -0.75
    if adapted:
        base *= 10  # adapters start at no difference and have few directions to move in
    return base
