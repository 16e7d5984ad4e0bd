"""RAFT: imitating the best of K of one's own answers raises the reward, the more the larger K."""

from __future__ import annotations

from functools import lru_cache, partial

import torch
from torch import Tensor

from claims.machinery.claim import Check, Claim, claim
from claims.worlds.exact import all_answers, answer_entropy, answer_kl, answer_logp, expected
from claims.worlds.tabular import TabularPolicy
from posttrain.core.config import Config
from posttrain.core.types import Rollout
from posttrain.rollouts.sample import sample
from posttrain.runs.in_memory import FunctionScorer, fit, repeated
from posttrain.systems.supervised_from_reward.raft import raft

P, T, V = 2, 5, 6
ROUNDS, KEPT, PASSES = 3, 256, 40
VOWELS = torch.tensor([0, 4])  # a and e of abcdef


def vowels_minus_repeats(tokens_NT: Tensor) -> Tensor:
    repeats_N = (tokens_NT[:, 1:] == tokens_NT[:, :-1]).sum(-1)
    return (torch.isin(tokens_NT, VOWELS).sum(-1) - repeats_N).float()


@lru_cache(maxsize=1)
def start(seed: int) -> TabularPolicy:
    return TabularPolicy(P, T, V).randomise(1.0, "raft", seed)


def best_of_k(policy: TabularPolicy, worth_N: Tensor, k: int) -> float:
    """The exact expected reward of the best of k answers: sum_w w [F(w)^k - F(w-)^k]."""
    p_PN, out = answer_logp(policy).exp(), 0.0
    for w in worth_N.unique():
        upto_P, below_P = p_PN[:, worth_N <= w].sum(-1), p_PN[:, worth_N < w].sum(-1)
        out += float(w) * float((upto_P**k - below_P**k).mean())
    return out


def rounds(seed: int, k: int, beta: float = 0.0) -> dict[str, float]:
    """K answers to each prompt, the best kept (by reward - beta log(pi/start)), 40 passes over what was kept; again."""
    ref = start(seed)
    policy, rewards = ref.clone(), []
    worth_N = vowels_minus_repeats(all_answers(ref)[0])

    def ranked_by(rollouts: list[Rollout]) -> Tensor:
        moved_B = torch.stack([r.logp_T.sum() for r in rollouts]) - ref.forward(rollouts)["logp_BT"].detach().sum(-1)
        return vowels_minus_repeats(torch.stack([r.actions for r in rollouts])) - beta * moved_B

    def look(step: int) -> None:
        rewards.append(float(expected(policy, worth_N).mean()))

    look(-1)
    config = Config(seed=seed, steps=ROUNDS, prompts=KEPT, lr=0.1, warmup=0, max_norm=100.0)
    method = raft.but(rollout=sample.but(n=k), epochs=PASSES, minibatches=1)
    fit(policy, method, repeated(P, KEPT // P), config, FunctionScorer(ranked_by), look)
    aim = best_of_k(ref, worth_N, k)
    return {
        "reward": rewards[-1],
        "gain": rewards[-1] - rewards[0],
        "first_round_error": abs(rewards[1] - aim) / aim,
        "entropy": float(answer_entropy(policy).mean()),
        "kl": float(answer_kl(policy, ref).mean()),
    }


claim(
    Claim(
        id="raft",
        title="RAFT",
        paper="arXiv:2304.06767",
        family="supervised-from-reward",
        says="Each round of ranking K own answers and fine-tuning on the best moves the policy to its best-of-K "
        "distribution: the reward grows with K, diversity falls, and ranking by a KL-penalised reward keeps it near.",
        experiment="Words of 5 letters out of 6, reward = vowels minus repeats. Three rounds of 256 kept answers with "
        "K = 1, 4, 16, and K = 16 ranked by reward - 0.3 log(pi/start). All figures exact over the 7776 words.",
        arms={
            "K=1": partial(rounds, k=1),
            "K=4": partial(rounds, k=4),
            "K=16": partial(rounds, k=16),
            "K=16, penalised": partial(rounds, k=16, beta=0.3),
        },
        checks=(
            Check("K=16 beats K=4", "reward", "K=16", "K=4", margin=0.5),
            Check("K=4 beats K=1", "reward", "K=4", "K=1", margin=0.5),
            Check("K=1 gains nothing", "gain", "K=1", 0.3, lower=True),
            Check("round one is the best of 16", "first_round_error", "K=16", 0.05, lower=True),
            Check("entropy falls with K", "entropy", "K=16", "K=4", margin=0.5, lower=True),
            Check("the penalty keeps it near", "kl", "K=16, penalised", "K=16", margin=1.0, lower=True),
            Check("and it still gains", "gain", "K=16, penalised", 1.0),
        ),
        seeds=tuple(range(6)),
        tried="Rounds, passes, learning rate and beta were set on seeds 100-102 so that no arm reaches the top reward "
        "of 5 too early (six rounds: K=4 and K=16 are both at 4.97) and each fit converges (with 10 passes round one "
        "falls short of best-of-16 by 10%). Penalised K=16 is no nearer at equal reward than plain K=4 is.",
    ),
    __file__,
)
