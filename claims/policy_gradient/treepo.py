"""TreePO: answers that share prefixes cost fewer sampled tokens, and at equal tokens teach as much as answers apart."""

from __future__ import annotations

from functools import lru_cache, partial

import torch
from torch import Tensor

from claims.machinery.claim import Check, Claim, claim
from claims.worlds.tabular import TabularPolicy
from posttrain.core import rng
from posttrain.core.assemble import assemble
from posttrain.core.config import Config
from posttrain.core.protocols import RolloutRequest
from posttrain.core.registry import Part
from posttrain.core.sampling import Sampling
from posttrain.core.types import Rollout
from posttrain.rollouts.sample import sample
from posttrain.rollouts.tree import tree
from posttrain.runs.in_memory import FunctionScorer, fit, numbered, repeated
from posttrain.systems.policy_gradient.treepo import against_ancestors as ancestors
from posttrain.systems.policy_gradient.treepo import treepo

P, T, L, V, N, TOKENS = 16, 16, 2, 6, 16, 32768  # answers of 8 segments of 2 letters; sampled tokens in all
CRITICAL, NOISE = 7, 0.3  # the second letter of the fourth segment decides; in 30% of answers a coin does


@lru_cache(maxsize=1)
def world(seed: int) -> tuple[TabularPolicy, Tensor]:
    """The start, and the letter that each prompt needs in the critical place."""
    key_P = torch.randint(0, V, (P,), generator=rng.torch_generator("treepo", seed))
    return TabularPolicy(P, T, V, memory=False).randomise(0.5, "treepo start", seed), key_P


def right(policy: TabularPolicy, key_P: Tensor) -> float:
    """How likely the critical letter is right, exactly."""
    p_PV = policy.table.detach()[:, CRITICAL, 0].softmax(-1)
    return float(p_PV.gather(-1, key_P.unsqueeze(-1)).mean())


def graded(seed: int, key_P: Tensor, rollouts: list[Rollout]) -> Tensor:
    """Right or wrong by the critical letter; a coin in its place in 30% of answers."""
    draws = [rng.python(seed, r.version, r.prompt.id, r.index, "noise") for r in rollouts]
    good = [bool(r.actions[CRITICAL] == key_P[r.prompt.info["row"]]) for r in rollouts]
    return torch.tensor(
        [float(d.random() < 0.5 if d.random() < NOISE else g) for d, g in zip(draws, good, strict=True)]
    )


def train(seed: int, rollout: Part, advantage: Part, lr: float) -> dict[str, float]:
    """Until 32768 tokens have been sampled; and what a group's gradient is like at the start."""
    start, key_P = world(seed)
    policy = start.clone()
    cost = sum(
        len(r) - (r.branch.at if r.branch else 0)
        for g in rollout(RolloutRequest({"policy": policy}, numbered(1).prompts))
        for r in g.rollouts
    )
    config = Config(seed=seed, steps=TOKENS // (cost * P), prompts=P, lr=lr, warmup=0, max_norm=100.0)
    method = treepo.but(rollout=rollout, advantage=advantage, select=(), shaping=(), minibatches=1, rounds=1)
    fit(policy, method, numbered(P), config, FunctionScorer(partial(graded, seed, key_P)))
    signal = signal_to_noise(seed, rollout, advantage)
    share = cost / (N * T)
    return {
        "right": right(policy, key_P),
        "tokens": share,
        "signal": signal,
        "signal_at_equal_tokens": signal / share**0.5,
    }


def signal_to_noise(seed: int, rollout: Part, advantage: Part) -> float:
    """|E g| / sqrt(E |g - E g|^2) of one group's gradient along the true one, over 6 groups of each prompt."""
    policy, key_P = world(seed)
    groups = rollout(RolloutRequest({"policy": policy}, repeated(P, 6).prompts, Sampling(), seed, -1))
    FunctionScorer(partial(graded, seed, key_P)).score(groups)
    rollouts, batch = assemble(groups)
    row_B = torch.cat([r.context for r in rollouts])
    p_PTV = policy.table.detach()[:, :, 0].softmax(-1)
    score_BTV = torch.nn.functional.one_hot(batch["token_BT"], V) - p_PTV[row_B]
    g_MTV = (advantage(batch).unsqueeze(-1) * score_BTV).view(len(groups), N, T, V).mean(1)
    row_M = row_B.view(-1, N)[:, 0]
    true_PV = torch.nn.functional.normalize(torch.nn.functional.one_hot(key_P, V) - p_PTV[:, CRITICAL], dim=-1)
    along_M = (g_MTV[:, CRITICAL] * true_PV[row_M]).sum(-1)
    total_M = (g_MTV**2).sum((1, 2))
    return float(along_M.mean() / (total_M.mean() - along_M.mean() ** 2).sqrt())


TREE = tree.but(n=N, fork=(L, 2), root=(2, 2), repeats=0)
ANCESTORS = ancestors.but(whiten="answers")
ROOT = ANCESTORS.but(root_only=True)
claim(
    Claim(
        id="treepo",
        title="TreePO",
        paper="arXiv:2508.17445",
        family="policy-gradient",
        says="Growing answers as a tree of segments samples fewer tokens for as many answers and learns as well; comparing an "
        "answer with the leaves under each of its ancestors says more than comparing it with all.",
        experiment="16 prompts, answers of 8 segments; one letter of the fourth decides, and in 30% of answers a coin. 16 answers a "
        "group, apart or as a tree that forks in two after each segment; all arms sample 32768 tokens (8 steps of GRPO, 10 of a "
        "tree). right: chance of the right letter at the end, exactly; signal: signal to noise of one group's gradient at the start, "
        "whole and at equal tokens.",
        arms={
            "GRPO": partial(train, rollout=sample.but(n=N), advantage=ROOT, lr=0.75),
            "tree, root only": partial(train, rollout=TREE, advantage=ROOT, lr=0.6),
            "TreePO": partial(train, rollout=TREE, advantage=ANCESTORS, lr=0.6),
        },
        checks=(
            Check("a quarter fewer tokens an answer", "tokens", "TreePO", 1.0, margin=0.25, lower=True, exact=True),
            Check("clearer gradient at equal tokens", "signal_at_equal_tokens", "TreePO", "GRPO", margin=0.03),
            Check("ancestors say more than the root", "signal", "TreePO", "tree, root only", margin=0.01),
            Check("learns as well from the same tokens", "right", "TreePO", "GRPO", margin=-0.02),
        ),
        seeds=tuple(range(300, 316)),
        tried="Two records before this: seeds 0-5 (4 prompts, rates tuned on four seeds) and seeds 10-19 (4 prompts, 6000 tokens, rate "
        "1.4 for all), where all but the last check showed: -0.037 [-0.142, +0.053] against -0.05, because in 5 steps of rate 1.4 an "
        "arm settles early on a wrong letter of single prompts, a quarter of its score. Hence 16 prompts, more and smaller steps, a "
        "stricter margin, 16 unseen seeds (300 had been run once for timing, with other settings). Run again on them when ancestors became those of the tree "
        "itself and no longer letters that happen to agree; before, the last check was +0.014 [-0.008, +0.037]. Each arm at its best of 0.3 to 1.4 on seeds 200-217: GRPO 0.75 (0.96), TreePO 0.6 (0.985). "
        "With 65536 tokens both end above 0.99. Forking in four saves fewer tokens and gains no signal; V(end) - V(start) of segments "
        "has a lower signal (0.20). Where all segments matter alike, a tree's few first segments cost it: 0.81 against 0.85 of GRPO "
        "(4 prompts).",
    ),
    __file__,
)
