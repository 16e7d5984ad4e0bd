"""BARFI: a blend learned against the primary reward uses a good heuristic and drops a bad one."""

from __future__ import annotations

from functools import lru_cache, partial

import torch
from torch import Tensor

from claims.machinery.claim import Check, Claim, claim
from claims.worlds.tabular import TabularPolicy
from posttrain.core import rng
from posttrain.core.config import Config
from posttrain.core.types import Group
from posttrain.rewards.runtime.scorer import ScoreReport
from posttrain.rewards.shaping.blend import blend
from posttrain.rewards.shaping.kl_in_reward import kl_in_reward
from posttrain.rollouts.sample import sample
from posttrain.runs.in_memory import fit, numbered
from posttrain.systems.reward_shaping_safety.barfi import blended_rloo, outer_loop

P, V, STEPS, ROUNDS, BETA = 4, 8, 25, 8, 0.3


class World:
    """Four questions with eight answers: a primary reward on one of them, a heuristic that points there or elsewhere."""

    def __init__(self, seed: int, good: bool) -> None:
        self.seed, draws = seed, rng.torch_generator("barfi", seed)
        self.start = TabularPolicy(P, 1, V, memory=False).randomise(0.5, "barfi start", seed)
        best_P = torch.randint(0, V, (P,), generator=draws)
        self.primary_PV = torch.nn.functional.one_hot(best_P, V).float()
        wrong_P = (best_P + 1 + torch.randint(0, V - 1, (P,), generator=draws)) % V
        self.aux_PV = 2 * torch.nn.functional.one_hot(best_P if good else wrong_P, V).float()
        self.aux_PV += 0.1 * torch.randn(P, V, generator=draws)

    def score(self, groups: list[Group]) -> ScoreReport:
        rollouts = [r for g in groups for r in g.rollouts]
        for r in rollouts:
            p, v = r.prompt.info["row"], int(r.actions[0])
            r.reward = float(self.primary_PV[p, v])
            r.rewards = {"primary": r.reward, "aux": float(self.aux_PV[p, v])}
        return ScoreReport(len(rollouts))

    def blended(self, phi_2: Tensor) -> Tensor:
        return phi_2[0] * self.primary_PV + phi_2[1] * self.aux_PV

    def trained(self, phi_2: Tensor) -> TabularPolicy:
        """25 steps of RLOO with 64 answers on the blend, KL in the reward."""
        policy = self.start.clone()
        mix = blend.but(phi=(0.0, *phi_2.tolist()))  # type: ignore[attr-defined]
        method = blended_rloo.but(rollout=sample.but(n=16), shaping=(mix, kl_in_reward.but(coef=BETA)))
        config = Config(seed=self.seed, steps=STEPS, prompts=P, lr=0.2, warmup=0, max_norm=100.0)
        fit(policy, method, numbered(P), config, self)
        return policy

    def outer(self, theta_PV: Tensor) -> Tensor:
        return (theta_PV.softmax(-1) * self.primary_PV).sum(-1).mean()

    def update(self, theta_PV: Tensor, phi_2: Tensor) -> Tensor:
        """The expected inner update: the policy gradient of the blend less BETA KL to the start."""
        p_PV, ref_PV = theta_PV.softmax(-1), self.start.table.detach()[:, 0, 0].log_softmax(-1)
        worth_PV = self.blended(phi_2) - BETA * (theta_PV.log_softmax(-1) - ref_PV)
        return p_PV * (worth_PV - (p_PV * worth_PV).sum(-1, keepdim=True)) - 0.01 * theta_PV

    def learned(self) -> Tensor:
        def inner(phi_2: Tensor) -> Tensor:
            return self.trained(phi_2).table.detach()[:, 0, 0]

        return outer_loop(inner, self.outer, self.update, torch.tensor([1.0, 1.0]), ROUNDS, rate=1.0)


world = lru_cache(maxsize=2)(World)


def arm(seed: int, kind: str) -> dict[str, float]:
    """The primary reward after training on a blend of length 1, with a good and with a bad heuristic."""
    out: dict[str, float] = {}
    for name, good in (("good", True), ("bad", False)):
        w = world(seed, good)
        start = {"primary": torch.tensor([1.0, 0.0]), "sum": torch.tensor([0.5, 0.5]).sqrt()}
        phi_2 = w.learned() if kind == "barfi" else start[kind]
        out |= {
            f"return_{name}": float(w.outer(w.trained(phi_2).table.detach()[:, 0, 0])),
            f"aux_{name}": float(phi_2[1]),
        }
    return out


claim(
    Claim(
        id="barfi",
        title="BARFI",
        paper="arXiv:2310.19007",
        family="reward-shaping-safety",
        says="A blend of rewards learned by implicit bi-level gradients is as good as adding a helpful heuristic and unharmed by a "
        "misleading one, which the plain sum follows.",
        experiment="Four questions with eight answers, one of which pays; a heuristic of twice the size points to it or to another. RLOO "
        "with KL for 25 steps on blends of length 1: primary only, the plain sum, and BARFI (8 rounds of the implicit gradient, its "
        "derivatives exact). return: exact primary reward of the answers.",
        arms={kind: partial(arm, kind=kind) for kind in ("barfi", "sum", "primary")},
        checks=(
            Check("a bad heuristic does no harm", "return_bad", "barfi", "sum", margin=0.3),
            Check("a bad heuristic gets no weight", "aux_bad", "barfi", 0.1, lower=True),
            Check("a good one is used", "return_good", "barfi", "primary", margin=0.02),
            Check("as well as the sum uses it", "return_good", "barfi", "sum", margin=-0.05),
        ),
        seeds=tuple(range(5)),
        tried="One setting, seen on seeds 100-101. The inner update's derivatives are exact and the discount is not learned; the paper "
        "estimates both from samples. The fixed point is that of 25 steps, not of convergence, which was enough for the sign and size.",
    ),
    __file__,
)
