"""RLHF, generalisation and diversity: PPO carries over to unseen prompts better than SFT, and answers them all alike."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache, partial
from statistics import fmean

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from claims.machinery.claim import Check, Claim, claim
from claims.worlds.labels import labelled_pairs
from claims.worlds.tabular import TabularPolicy
from posttrain.core import rng
from posttrain.core.config import Config
from posttrain.core.sampling import Sampling
from posttrain.core.types import Prompt, Rollout
from posttrain.decoding.best_of_n import best_of_n
from posttrain.evals.diversity import across_input, per_input
from posttrain.methods.ppo import ppo
from posttrain.methods.reward_model import reward_model
from posttrain.methods.sft import sft
from posttrain.rewards.scorers.reward_model import RewardModel
from posttrain.rewards.shaping.kl_in_reward import kl_in_reward
from posttrain.rollouts.sample import sample
from posttrain.runs.in_memory import Listed, fit, row

KINDS, T, V = 7, 6, 16  # a prompt is (topic, form, tone), 7 of each; an answer has 6 of 16 letters
TEST, K = 40, 16  # test prompts at each distance, answers to each
DEMOS, STYLES, PAIRS = 16, 4, 3000  # demonstrations a prompt, styles they are written in, comparisons
TRAITS_P3 = torch.cartesian_prod(*[torch.arange(KINDS)] * 3)
FIRST_P3, SECOND_P3 = TRAITS_P3[:, [0, 0, 1]], TRAITS_P3[:, [1, 2, 2]]  # the three pairs of a prompt's traits
UNSEEN_P = ((FIRST_P3 + SECOND_P3) % KINDS >= 5).sum(-1)  # how many of them no training prompt has
TRAITS_PF, PAIRS_PF = one_hot(TRAITS_P3).flatten(1), one_hot(KINDS * FIRST_P3 + SECOND_P3).flatten(1)
FEATURES_PF = torch.cat([PAIRS_PF, TRAITS_PF, torch.ones(KINDS**3, 1)], 1)
P = len(FEATURES_PF)


class World:
    """What letters are worth by a prompt's traits, the supervised policy, and a reward model of noisy comparisons."""

    def __init__(self, seed: int) -> None:
        self.seed, draws = seed, rng.torch_generator("generalisation", seed)
        trait_FTV = torch.randn(FEATURES_PF.shape[1], T, V, generator=draws)
        trait_FTV[: 3 * KINDS**2] *= 0.5  # that two traits meet matters less than each of them
        self.worth_PTV = torch.einsum("pf,ftv->ptv", FEATURES_PF, trait_FTV) / 5**0.5
        self.style_STV = torch.randn(STYLES, T, V, generator=draws)
        near, middle, far = ([row(p) for p in range(P) if UNSEEN_P[p] in some] for some in ((0,), (1,), (2, 3)))
        for prompts in (near, middle, far):
            rng.python("generalisation prompts", seed).shuffle(prompts)
        self.tests, self.train = [near[:TEST], middle[:TEST], far[:TEST]], near[TEST:]
        self.policy = blank()
        fit(self.policy, sft, self.demonstrations(), settings(seed, 64, 0.02))
        pairs = labelled_pairs(self.policy, self.train, self.worth, PAIRS, seed)
        judge = blank().as_reward_model()
        fit(judge, reward_model, pairs, settings(seed, 128, 0.03))
        made = self.policy.sample(self.train, K, Sampling(), seed, -1)
        flat = [r for rollouts in made for r in rollouts]
        self.model = RewardModel(judge).centred(flat)
        self.unit = float(self.worth(flat).view(-1, K).std(-1).mean())
        self.first = [self.policy.sample(prompts, K, Sampling(), seed, -2) for prompts in self.tests]

    def demonstrations(self) -> Listed:
        """Answers of people who know a bit of what is good, and write each in a style of their own."""
        out: list[Prompt] = []
        for d in range(DEMOS):
            writer = TabularPolicy(P, T, V, memory=False)
            writer.table.data.copy_((self.worth_PTV + self.style_STV[d % STYLES]).unsqueeze(2))
            asked = [replace(p, id=f"{p.id}#{d}") for p in self.train]
            made = writer.sample(asked, 1, Sampling(), self.seed, -1)
            out += [replace(p, info=p.info | {"demonstration": r[0].text}) for p, r in zip(asked, made, strict=True)]
        return Listed(out)

    def worth(self, rollouts: list[Rollout]) -> Tensor:
        """The sum over its letters, each in its place."""
        told_BT, row_B = torch.stack([r.actions for r in rollouts]), torch.cat([r.context for r in rollouts])
        return self.worth_PTV[row_B].gather(-1, told_BT.unsqueeze(-1)).sum((-1, -2))


world = lru_cache(maxsize=1)(World)


def blank() -> TabularPolicy:
    """Chooses letters by what all prompts share, by traits and by pairs of traits; of an unseen pair it knows nothing."""
    return TabularPolicy(P, T, V, memory=False, features_PF=FEATURES_PF)


def settings(seed: int, prompts: int, lr: float) -> Config:
    return Config(seed=seed, steps=60, prompts=prompts, lr=lr, warmup=0, max_norm=100.0)


def measured(seed: int, answers: list[list[list[Rollout]]]) -> dict[str, float]:
    """FunctionScorer on seen, one and more unseen pairs of traits, in sd of a supervised answer; diversity over SFT's."""
    w, kept = world(seed), {}
    near, middle, far = (float(w.worth([r for made in some for r in made]).mean()) / w.unit for some in answers)
    for name, how in (("per_input_kept", per_input), ("across_input_kept", across_input)):
        now, first = ([how([[r.text for r in made] for made in some]) for some in sets] for sets in (answers, w.first))
        kept[name] = fmean(a / b for a, b in zip(now, first, strict=True))
    return {"near": near, "middle": middle, "far": far, "fall": near - far, **kept}


def best_of_16(seed: int) -> dict[str, float]:
    """Each of the 16 answers to a test prompt is the best of 16 by the reward model."""
    w, answers = world(seed), []
    for prompts in w.tests:
        asked = [replace(p, id=f"{p.id}#{k}") for p in prompts for k in range(K)]
        made = [r for r in best_of_n(w.policy, asked, Sampling(), w.model, seed, n=16) if r is not None]
        answers.append([made[i : i + K] for i in range(0, len(made), K)])
    return measured(seed, answers)


def reinforced(seed: int, price: float) -> dict[str, float]:
    """PPO on the reward model, on the training prompts."""
    w = world(seed)
    policy = w.policy.clone()
    method = ppo.but(rollout=sample.but(n=4), shaping=kl_in_reward.but(coef=price))
    fit(policy, method, Listed(w.train), settings(seed, 32, 0.05), w.model)
    return measured(seed, [policy.sample(prompts, K, Sampling(), seed, -2) for prompts in w.tests])


claim(
    Claim(
        id="rlhf-generalisation-diversity",
        title="RLHF effects: generalisation and diversity",
        paper="arXiv:2310.06452",
        family="study-benchmark-survey",
        says="RLHF generalises better than SFT, the more so the larger the shift from training to test; but it cuts the "
        "diversity of answers to one prompt sharply and from prompt to prompt somewhat, where best-of-16 keeps it.",
        experiment="A prompt has three traits; what an answer is worth depends on each and on each pair. SFT on "
        "demonstrations in 4 styles, a reward model of 3000 noisy comparisons, best of 16, PPO at three KL prices. "
        "Test prompts have 0 (near), 1 (middle) or more (far) pairs of traits never trained on. fall = near - far; "
        "kept: distinct n-grams over SFT's, mean of the three test sets.",
        arms={
            "SFT": lambda seed: measured(seed, world(seed).first),
            "best of 16": best_of_16,
            "PPO": partial(reinforced, price=0.1),
            "PPO, KL 0.03": partial(reinforced, price=0.03),
            "PPO, KL 0.3": partial(reinforced, price=0.3),
        },
        checks=(
            Check("PPO beats SFT in distribution", "near", "PPO", "SFT", margin=0.5),
            Check("PPO beats SFT far out of it", "far", "PPO", "SFT", margin=0.5),
            Check("PPO's advantage grows with the shift", "fall", "PPO", "SFT", margin=0.05, lower=True),
            Check("PPO: answers to one prompt grow alike", "per_input_kept", "PPO", 0.6, lower=True),
            Check("PPO: from prompt to prompt too", "across_input_kept", "PPO", 1.0, margin=0.05, lower=True),
            Check("best of 16 stays diverse", "per_input_kept", "best of 16", 0.85),
            Check("more than PPO at any price", "per_input_kept", "best of 16", "PPO, KL 0.3", margin=0.1),
        ),
        departures="The experiment does not run the plan. The paper fine-tunes LLaMA 7B on summaries and instructions, judges by GPT-4, and "
        "measures diversity by n-grams, sentence embeddings and entailment; here a table over prompts of three traits, its true "
        "worth, and n-grams alone. The paper's PPO freezes most layers and takes 4 epochs per batch.",
        seeds=tuple(range(10, 18)),
        tried="World and rates set on seeds 100-107; SFT's by the likelihood of held-out demonstrations. Decided before "
        "any recorded seed: the paper's remark that a larger KL price does not restore diversity is not checked, for "
        "there it did: 0.44, 0.50, 0.70 of SFT's is kept at 0.03, 0.1, 0.3, though never best of 16's 0.91. A first record "
        "(24 test prompts, seeds 0-5) showed all but the growth with the shift: +0.147 [+0.040, +0.244] against 0.05. "
        "Same margins now, 40 test prompts and 8 unseen seeds; no third try. The growth needs skilled demonstrators: at "
        "half their skill the advantage is the same near and far (seeds 100-102). Where prompts share no taste, answers "
        "differ from prompt to prompt nearly as before (0.96). A reward model that cannot see repeats is gamed by PPO.",
    ),
    __file__,
)
