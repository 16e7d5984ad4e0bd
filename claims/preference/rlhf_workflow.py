"""RLHF workflow: learning from the present policy's best and worst answers beats learning from a fixed set of pairs."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

import torch
from torch import Tensor

from claims.machinery.claim import Check, Claim, claim
from claims.worlds.exact import all_answers, answer_kl, answer_logp, expected
from claims.worlds.labels import labelled_pairs
from claims.worlds.tabular import TabularPolicy
from posttrain.core import rng
from posttrain.core.config import Config
from posttrain.core.sampling import Sampling
from posttrain.core.types import Group, Rollout
from posttrain.losses.preference.dpo import dpo as dpo_loss
from posttrain.methods.dpo import dpo
from posttrain.methods.reward_model import reward_model
from posttrain.rewards.scorers.reward_model import RewardModel
from posttrain.rollouts.sample import sample
from posttrain.runs.in_memory import Listed, fit, numbered, repeated
from posttrain.select.best_worst import best_worst
from posttrain.systems.preference.online_dpo import online_dpo

P, T, V, LABELS = 8, 5, 6, 800
ROUNDS, PAIRS, PASSES = 3, 128, 10  # a round: 128 pairs, 10 passes over them in 4 pieces
PLACE = V ** torch.arange(T - 1, -1, -1)  # an answer's place in all_answers
LOSS = dpo_loss.but(beta=0.1)
ASKED = repeated(P, ROUNDS * PAIRS // P)
Path = list[tuple[float, float]]  # (KL to the start, gold) as training goes on


@lru_cache(maxsize=1)
def world(seed: int) -> tuple[TabularPolicy, Tensor, RewardModel]:
    """The supervised policy; hidden utility of each of 7776 answers to 8 prompts (mean 0, sd 1 there); reward model."""
    theme_P = torch.randn(P, 1, generator=rng.torch_generator("workflow", seed))
    blank = TabularPolicy(P, T, V, features_PF=torch.cat([torch.ones(P, 1), theme_P], 1))
    start, taste = blank.clone().randomise(0.4, "workflow start", seed), blank.as_reward_model()
    taste.score.data.copy_(blank.clone().randomise(1.0, "workflow taste", seed).table)  # type: ignore[union-attr]
    p_PN, worth_PN = answer_logp(start).exp(), worth_of_all(taste)
    worth_PN -= (p_PN * worth_PN).sum(-1, keepdim=True)
    worth_PN /= (p_PN * worth_PN**2).sum(-1).mean().sqrt()

    def utility(rollouts: list[Rollout]) -> Tensor:
        return torch.stack([worth_PN[r.context[0], (r.actions * PLACE).sum()] for r in rollouts])

    pairs = labelled_pairs(start, numbered(P).prompts, utility, LABELS, seed, sharpness=2.0)
    judge = start.as_reward_model()
    fit(judge, reward_model.but(epochs=20, minibatches=4), pairs, settings(seed, 1, pairs.size, 0.03))
    return start, worth_PN, RewardModel(judge)


def worth_of_all(taste: TabularPolicy) -> Tensor:
    """The score of every answer to every prompt (P, N)."""
    tokens_NT, _ = all_answers(taste)
    state_NT = torch.cat([torch.full_like(tokens_NT[:, :1], V), tokens_NT[:, :-1]], 1)
    table_PTWV = torch.einsum("pf,f...->p...", taste.features_PF, taste.score.detach())  # type: ignore[union-attr]
    return table_PTWV[:, torch.arange(T), state_NT, tokens_NT].sum(-1)


def settings(seed: int, steps: int, prompts: int, lr: float) -> Config:
    return Config(seed=seed, steps=steps, prompts=prompts, lr=lr, warmup=0, max_norm=100.0)


def point(seed: int, policy: TabularPolicy) -> tuple[float, float]:
    start, worth_PN, _ = world(seed)
    return float(answer_kl(policy, start).mean()), float(expected(policy, worth_PN).mean())


def by_rounds(seed: int, n: int) -> dict[str, float]:
    """Three rounds: n answers to each prompt, the best and the worst by the reward model, DPO towards the first."""
    start, _, model = world(seed)
    policy, path = start.clone(), []
    method = online_dpo.but(rollout=sample.but(n=n), loss=LOSS, epochs=PASSES, minibatches=4)
    config = settings(seed, ROUNDS, PAIRS, 0.02)
    fit(policy, method, ASKED, config, model, lambda _: path.append(point(seed, policy)))
    yardstick = fixed_pairs(seed, 2 * PASSES, 0.05)
    over = [gold - at(kl, yardstick) for kl, gold in path[1:]]
    return {"gold": path[-1][1], "kl": path[-1][0], "over_offline": sum(over) / len(over)}


@lru_cache(maxsize=1)
def fixed_pairs(seed: int, passes: int, lr: float) -> Path:
    """As many pairs, best and worst of 8 by the same reward model, all from the start; the path after each pass."""
    start, _, model = world(seed)
    made = start.sample(ASKED.prompts, 8, Sampling(), seed)
    groups = [Group(p, rollouts) for p, rollouts in zip(ASKED.prompts, made, strict=True)]
    model.score(groups)
    chosen = [(g.prompt, best, worst) for g in best_worst(groups) for best, worst in [g.rollouts]]
    pairs = Listed([replace(p, info=p.info | {"chosen": a.text, "rejected": b.text}) for p, a, b in chosen])
    policy, path = start.clone(), [(0.0, 0.0)]
    config = settings(seed, passes, pairs.size, lr)
    fit(policy, dpo.but(loss=LOSS, minibatches=12), pairs, config, after=lambda _: path.append(point(seed, policy)))
    return path


def offline(seed: int) -> dict[str, float]:
    """As many updates on them as the rounds make, with the same learning rate."""
    kl, gold = fixed_pairs(seed, PASSES, 0.02)[-1]
    return {"gold": gold, "kl": kl, "over_offline": 0.0}


def at(kl: float, path: Path) -> float:
    """Gold where a path passes a KL; its last value beyond."""
    for (x0, y0), (x1, y1) in zip(path, path[1:], strict=False):
        if x0 <= kl <= x1:
            return y0 + (y1 - y0) * (kl - x0) / max(x1 - x0, 1e-9)
    return path[-1][1]


claim(
    Claim(
        id="rlhf-workflow",
        title="Online iterative RLHF",
        paper="arXiv:2405.07863",
        family="preference",
        says="Iterated DPO on the best and worst of 8 fresh answers of the present policy, labelled by a reward model, "
        "with the reference kept at the start, beats offline DPO; best and worst beat a random pair.",
        experiment="Words of 5 letters for 8 prompts with a hidden utility; a reward model from 800 noisy comparisons. "
        "Three rounds of 128 pairs against 384 pairs of the start policy, same reward model and updates. "
        "over_offline: gold after rounds 2 and 3 less what offline DPO, trained until it has gone as far, has at the "
        "same KL. Gold in sd of the start.",
        arms={
            "online, best and worst of 8": lambda seed: by_rounds(seed, 8),
            "online, random pair": lambda seed: by_rounds(seed, 2),
            "offline, best and worst of 8": offline,
        },
        checks=(
            Check("online ends higher", "gold", "online, best and worst of 8", "offline, best and worst of 8", margin=0.1),
            Check("also at equal KL", "over_offline", "online, best and worst of 8", 0.0, margin=0.05),
            Check("best and worst beat a random pair", "over_offline", "online, best and worst of 8", "online, random pair",
                  margin=0.1),
        ),
        seeds=tuple(range(10, 16)),
        tried="Sizes and learning rates set on seeds 100-103. With 64 answers a prompt, all of which the start policy "
        "gives, online and offline are equal at equal KL: the gain needs answers that the first pairs do not show. At "
        "equal KL it was 0.1-0.25 sd there, less than the 0.3 expected before any run. A first record on seeds 0-5 gave "
        "offline a learning rate of 0.05 and online 0.02: at equal KL +0.12 [+0.06, +0.19], but `online ends higher` "
        "+0.14 [+0.02, +0.28], not above its margin, at less KL. Now both have 0.02 there, on seeds not seen before.",
    ),
    __file__,
)  # fmt: skip
