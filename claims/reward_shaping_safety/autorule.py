"""AutoRule: rules read off the reasons for preferences are harder to hack than a learned score."""

from __future__ import annotations

from functools import lru_cache, partial
from statistics import fmean

import torch
from torch import Tensor

from claims.machinery.claim import Check, Claim, claim
from claims.worlds.labels import labelled_pairs
from claims.worlds.tabular import LETTERS, TabularPolicy
from posttrain.core import rng
from posttrain.core.config import Config
from posttrain.core.sampling import Sampling
from posttrain.core.types import Prompt, Rollout
from posttrain.rewards.runtime.score import RewardSum
from posttrain.rewards.shaping.kl_in_reward import kl_in_reward
from posttrain.runs.in_memory import fit, repeated
from posttrain.systems.reward_shaping_safety.autorule import (
    Checker,
    checked,
    extract_rules,
    listed,
    rule_fraction,
    ruled_grpo,
)

T, V, TRUE, PAIRS, RULES, NOISE = 6, 8, 4, 300, 6, 0.2
COPIES, STEPS, LATE = 4, 15, 45
KINDS = ("contains", "starts with", "ends with")
GRAMMAR = [f"{kind} {letter}" for kind in KINDS for letter in LETTERS[:V]]


def checker(statement: str) -> Checker | None:
    kind, letter = statement.rsplit(" ", 1)
    tests = {"contains": str.__contains__, "starts with": str.startswith, "ends with": str.endswith}
    return lambda prompt, text: tests[kind](text, letter)


class World:
    """Four hidden properties of a word, a reward model that also likes a letter, and a reasoner that errs."""

    def __init__(self, seed: int) -> None:
        self.seed, draw = seed, rng.python("autorule", seed)
        self.start = TabularPolicy(1, T, V, memory=False).randomise(0.5, "autorule start", seed)
        letters = draw.sample(LETTERS[:V], 5)  # the fifth is liked by the reward model for nothing
        self.true = [
            f"contains {letters[0]}",
            f"contains {letters[1]}",
            f"starts with {letters[2]}",
            f"ends with {letters[3]}",
        ]
        self.liked = letters[4]
        made = labelled_pairs(self.start, repeated(1, 1).prompts, self.utility, PAIRS, seed, sharpness=8.0)
        pairs = [(p, p.info["chosen"], p.info["rejected"]) for p in made.prompts]
        self.rules = extract_rules(pairs, self.explain, listed, most=RULES)
        self.checks = checked(self.rules, checker)

    def worth(self, text: str) -> float:
        return fmean(bool(checker(s)(None, text)) for s in self.true)  # type: ignore[misc, arg-type]

    def utility(self, rollouts: list[Rollout]) -> Tensor:
        return torch.tensor([self.worth(r.text) for r in rollouts])

    def score(self, prompt: Prompt, text: str) -> float:
        """The reward model: the worth, and 0.35 for each of a letter that is worth nothing."""
        return self.worth(text) + 0.35 * text.count(self.liked)

    def explain(self, prompt: Prompt, chosen: str, rejected: str) -> str:
        """Statements true of the chosen word and not of the other; one in five is a random one instead."""
        draw = rng.python("why", self.seed, prompt.id)
        fits = [s for s in GRAMMAR if checker(s)(prompt, chosen) and not checker(s)(prompt, rejected)]  # type: ignore[misc]
        return "\n".join(f"- {draw.choice(GRAMMAR) if draw.random() < NOISE else s}." for s in fits)


world = lru_cache(maxsize=1)(World)


def train(seed: int, rules: float, model: float) -> dict[str, float]:
    """45 steps of GRPO with 64 answers; the true worth after 15 and after 45."""
    w = world(seed)
    policy, worths = w.start.clone(), {}

    def after(step: int) -> None:
        if step + 1 in (STEPS, LATE):
            (made,) = policy.sample(repeated(1, 1).prompts, 256, Sampling(), seed, -2)
            worths[step + 1] = fmean(w.worth(r.text) for r in made)

    weighed = (("rules", rule_fraction.but(rules=w.checks), rules), ("model", w.score, model))
    scorer = RewardSum([x for x in weighed if x[2]], workers=1)
    config = Config(seed=seed, steps=LATE, prompts=COPIES, lr=0.1, warmup=0, max_norm=100.0)
    method = ruled_grpo.but(shaping=kl_in_reward.but(coef=0.005))
    fit(policy, method.but(rollout=method.rollout.but(n=16)), repeated(1, COPIES), config, scorer, after)
    return {"worth": worths[STEPS], "worth_late": worths[LATE], "precision": fmean(s in w.true for s in w.rules)}


claim(
    Claim(
        id="autorule",
        title="AutoRule",
        paper="arXiv:2506.15651",
        family="reward-shaping-safety",
        says="GRPO on the share of automatically extracted rules beside the reward model ends better than on the reward model alone, "
        "and keeps what it reached when trained on.",
        experiment="Words of 6 letters with 4 hidden properties; a reward model that also likes a worthless letter. A reasoner lists why "
        "each of 300 chosen words differs (one statement in 5 random), the 6 commonest statements are the rules. GRPO: the model alone, "
        "rules with 0.2 of the model, rules alone. worth: share of the 4 properties, after 15 and 45 steps of 64 answers.",
        arms={
            "rules and model": partial(train, rules=1.0, model=0.2),
            "model": partial(train, rules=0.0, model=1.0),
            "rules": partial(train, rules=1.0, model=0.0),
        },
        checks=(
            Check("better than the model alone", "worth_late", "rules and model", "model", margin=0.1),
            Check("more true rules than chance finds", "precision", "rules and model", TRUE / len(GRAMMAR), margin=0.1),
            Check("the model adds to the rules", "worth_late", "rules and model", "rules", margin=-0.05),
        ),
        seeds=tuple(range(6)),
        tried="One setting, seen on seeds 100-102: the model alone falls from 0.48 to 0.09, rules with the model reach 0.89, rules alone 0.65. "
        "2 or 3 of the 6 rules are true (the paper's judge would find more): statements of the commonest kind, 'contains', crowd out the "
        "others, and the model makes up for what they miss. The stand-in for the reasoning model is a program, and so is the verifier.",
    ),
    __file__,
)
