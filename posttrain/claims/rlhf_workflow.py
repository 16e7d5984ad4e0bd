"""RLHF workflow: learning from the present policy's best and worst answers beats learning from a fixed set of pairs."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from posttrain.core import rng
from posttrain.core.config import Config
from posttrain.core.types import Rollout
from posttrain.lab.claim import Check, Claim, claim
from posttrain.lab.exact import all_answers, answer_kl, answer_logp, expected
from posttrain.lab.fit import fit, numbered, repeated
from posttrain.lab.labels import labelled_pairs
from posttrain.lab.tabular import TabularPolicy
from posttrain.losses.preference.dpo import dpo as dpo_loss
from posttrain.methods.online_dpo import online_dpo
from posttrain.methods.reward_model import reward_model
from posttrain.rewards.models.reward_model import RewardModel
from posttrain.rollouts.sample import sample

P, T, V, THEMES = 32, 2, 8, 4
LABELS = 400  # comparisons the reward model learns from
ROUNDS, PAIRS, PASSES = 3, 128, 10  # a round: 128 pairs, 10 passes over them
BETA,LR,RM,SHARP=0.1,.05,(20,.03),2.

@lru_cache(maxsize=1)
def world(seed: int) -> tuple[TabularPolicy, Tensor, RewardModel]:
    """The supervised policy, the hidden utility of each of 64 answers to 32 prompts (sd 1 on it), the reward model."""
    draws = rng.torch_generator("workflow", seed)
    features_PF = torch.cat([torch.ones(P, 1), torch.randn(P, THEMES - 1, generator=draws)], 1)
    start = TabularPolicy(P, T, V, features_PF=features_PF).randomise(0.4, "workflow sft", seed)
    taste = TabularPolicy(P, T, V, features_PF=features_PF).randomise(1.0, "workflow taste", seed)
    tokens_NT, _ = all_answers(start)
    worth_PN = torch.stack([
        taste._look_up(taste.table, torch.full((len(tokens_NT),), p), tokens_NT).gather(-1, tokens_NT.unsqueeze(-1)).sum((-1, -2))
        for p in range(P)
    ]).detach()
    p_PN = answer_logp(start).exp()
    mean_P = (p_PN * worth_PN).sum(-1, keepdim=True)
    worth_PN = (worth_PN - mean_P) / (p_PN * (worth_PN - mean_P) ** 2).sum(-1, keepdim=True).mean().sqrt()

    def utility(rollouts: list[Rollout]) -> Tensor:
        return torch.stack([worth_PN[r.context[0], r.actions[0] * V + r.actions[1]] for r in rollouts])

    pairs = labelled_pairs(start, numbered(P).prompts, utility, LABELS, seed, sharpness=SHARP)
    judge = start.as_reward_model()
    fit(judge, reward_model.but(epochs=RM[0], minibatches=4), pairs, settings(seed, 1, pairs.size, lr=RM[1]))
    return start, worth_PN, RewardModel(judge)


def settings(seed: int, steps: int, prompts: int, lr: float = 0.05) -> Config:
    return Config(seed=seed, steps=steps, prompts=prompts, lr=lr, warmup=0, max_norm=100.0)

def arm(seed,n,rounds,lr=None,passes=None):
    start, worth_PN, model = world(seed)
    policy=start.clone(); path=[(0.,0.)]
    kl_P=None
    def look(step):
        path.append((float(answer_kl(policy,start).mean()), float(expected(policy,worth_PN).mean())))
    k=ROUNDS//rounds
    method=online_dpo.but(rollout=sample.but(n=n), loss=dpo_loss.but(beta=BETA), epochs=passes or PASSES, minibatches=4*k)
    fit(policy, method, repeated(P, ROUNDS*PAIRS//P), settings(seed, rounds, PAIRS*k, lr or LR), model, look)
    return {"gold":path[-1][1],"kl":path[-1][0], "path":path}
