"""DR-IRL: does credit scaled by difficulty bring rare classes to safety sooner than plain GRPO?"""

from __future__ import annotations

from functools import lru_cache, partial

import torch

from claims.machinery.claim import Check, Claim, claim
from claims.worlds.tabular import LETTERS, TabularPolicy
from posttrain.core import rng
from posttrain.core.config import Config
from posttrain.core.sampling import Sampling
from posttrain.core.types import Group, Rollout
from posttrain.methods.grpo import grpo
from posttrain.methods.reward_model import reward_model
from posttrain.rewards.runtime.scorer import ScoreReport
from posttrain.rewards.scorers.reward_model import RewardModel
from posttrain.runs.in_memory import Listed, fit, row
from posttrain.systems.reward_shaping_safety.dr_irl import grpo_s, irl_pairs

COPIES, T, V, STEPS = (24, 16, 10, 6, 4, 2, 2), 4, 6, 40  # seven classes of long-tailed frequency
P = len(COPIES)


class World:
    """One safe word a class as demonstration, and a reward model a class that puts it above the start's own words."""

    def __init__(self, seed: int) -> None:
        self.start = TabularPolicy(P, T, V, memory=False).randomise(0.5, "irl start", seed)
        draws = rng.torch_generator("irl demo", seed)
        self.demo_PT = torch.randint(0, V, (P, T), generator=draws)
        texts = ["".join(LETTERS[i] for i in word) for word in self.demo_PT.tolist()]
        self.prompts = [row(p, c, demonstration=texts[p]) for p, copies in enumerate(COPIES) for c in range(copies)]
        asked = [row(p, "irl", demonstration=texts[p]) for p in range(P)]
        pairs = Listed(irl_pairs(self.start, asked, Sampling(), seed, n=24), "irl")
        judge = self.start.as_reward_model()
        fit(
            judge, reward_model.but(epochs=10), pairs, Config(seed=seed, steps=1, prompts=pairs.size, lr=0.05, warmup=0)
        )
        made = self.start.sample(asked, 16, Sampling(), seed, -1)
        self.model = RewardModel(judge).centred([r for rollouts in made for r in rollouts])
        self.worth_P = self.model.scores([self.start.written(p, t) for p, t in zip(asked, texts, strict=True)])

    def score(self, groups: list[Group]) -> ScoreReport:
        """Rewards measured from the demonstration's, whose gap is then 0 less the reward."""
        rollouts: list[Rollout] = [r for g in groups for r in g.rollouts]
        for r, x in zip(rollouts, self.model.scores(rollouts).tolist(), strict=True):
            p = r.prompt.info["row"]
            alike = float((r.actions == self.demo_PT[p]).float().mean())
            r.reward, r.rewards = x - float(self.worth_P[p]), {"similarity": alike, "demonstration": 0.0}
        return ScoreReport(len(rollouts))

    def safe(self, policy: TabularPolicy) -> torch.Tensor:
        """The share of letters that are the safe word's, by class, exactly."""
        p_PTV = policy.table.detach()[:, :, 0].softmax(-1)
        return p_PTV.gather(-1, self.demo_PT.unsqueeze(-1)).squeeze(-1).mean(-1)


world = lru_cache(maxsize=1)(World)


def train(seed: int, scaled: bool, lr: float = 0.1) -> dict[str, float]:
    """40 steps of 8 prompts with 8 answers each."""
    w = world(seed)
    policy, curve = w.start.clone(), []
    method = grpo_s if scaled else grpo
    config = Config(seed=seed, steps=STEPS, prompts=8, lr=lr, warmup=0, max_norm=100.0)
    env = Listed(w.prompts)
    fit(policy, method.but(terms=()), env, config, w, after=lambda step: curve.append(w.safe(policy)))
    return {"safe": float(curve[-1].mean()), "safe_rare": float(curve[-1][-3:].mean())}


claim(
    Claim(
        id="dr-irl",
        title="DR-IRL",
        paper="arXiv:2503.18991",
        family="reward-shaping-safety",
        says="GRPO on rewards that inverse RL learned from demonstrations aligns better when its credit is scaled by task "
        "difficulty (GRPO-S), on rare classes above all.",
        experiment="Seven classes from 24 to 2 prompts, a safe word each; reward models from demonstrations against the start policy's "
        "words. 40 steps of 64 answers: GRPO-S and GRPO. safe: share of letters of the safe word, exact; rare: the 3 rarest classes.",
        arms={"GRPO-S": partial(train, scaled=True), "GRPO": partial(train, scaled=False)},
        checks=(
            Check("safer on rare classes", "safe_rare", "GRPO-S", "GRPO", margin=0.02),
            Check("not less safe in all", "safe", "GRPO-S", "GRPO", margin=-0.02),
        ),
        seeds=tuple(range(6)),
        tried="A first record (not shown: 0.01 lower on rare classes) scaled rewards instead of credit, by sigmoids of our own. "
        "With the paper's formula, on seeds 100-103, GRPO-S and GRPO are alike (0.62 on rare classes, differences up to 0.003): similarities "
        "between 0 and 1 leave its factor between 0.7 and 1.4, and nearer to 1 for most prompts. One batch stands for the seven "
        "categories that the paper treats one by one; over-refusal and a text encoder's similarity are not tested.",
    ),
    __file__,
)
