"""The smallest policy that can learn: a softmax table over 6 actions for each of 4 prompts and 2 or 3 tokens.

The reward of an answer is the share of its tokens that are the prompt's own right ones, so the expected reward is known
exactly: the mean probability of the right tokens.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from posttrain.core.batch import Batch

P, T, V = 4, 3, 6
LENGTH_P = torch.tensor([3, 2, 3, 2])
MASK_PT = (torch.arange(T) < LENGTH_P.unsqueeze(-1)).float()
RIGHT_PT = torch.tensor([[0, 1, 2], [5, 4, 0], [3, 3, 1], [2, 0, 0]])
Step = Callable[[Batch], Tensor]


class Tabular:
    """logits_PTV is the whole policy."""

    def __init__(self) -> None:
        self.logits_PTV = torch.zeros(P, T, V, requires_grad=True)
        self.draw = torch.Generator().manual_seed(0)

    def expected_reward(self) -> float:
        right_PT = self.logits_PTV.detach().softmax(-1).gather(-1, RIGHT_PT.unsqueeze(-1)).squeeze(-1)
        return float(((right_PT * MASK_PT).sum(-1) / LENGTH_P).mean())

    def logp(self, prompt_B: Tensor, tokens_BT: Tensor) -> Tensor:
        return self.logits_PTV.log_softmax(-1)[prompt_B].gather(-1, tokens_BT.unsqueeze(-1)).squeeze(-1)

    def entropy(self, prompt_B: Tensor) -> Tensor:
        logp_PTV = self.logits_PTV.log_softmax(-1)
        return -(logp_PTV.exp() * logp_PTV).sum(-1)[prompt_B]

    def sample(self, G: int) -> tuple[Tensor, Tensor]:
        """Prompts and tokens of G answers to each prompt."""
        prompt_B = torch.arange(P).repeat_interleave(G)
        p_BTV = self.logits_PTV.detach().softmax(-1)[prompt_B]
        return prompt_B, torch.multinomial(p_BTV.view(-1, V), 1, generator=self.draw).view(-1, T)

    def step(self, loss: Tensor, lr: float) -> None:
        (grad,) = torch.autograd.grad(loss, self.logits_PTV)
        with torch.no_grad():
            self.logits_PTV -= lr * grad


def scored(policy: Tabular, G: int) -> tuple[Tensor, Tensor, Batch]:
    """Answers with their rewards on the last token; old_logp is the policy's own, the reference is uniform."""
    prompt_B, tokens_BT = policy.sample(G)
    mask_BT, last_B = MASK_PT[prompt_B], LENGTH_P[prompt_B] - 1
    hits_B = ((tokens_BT == RIGHT_PT[prompt_B]) * mask_BT).sum(-1) / LENGTH_P[prompt_B]
    reward_BT = torch.zeros_like(mask_BT)
    reward_BT[torch.arange(len(prompt_B)), last_B] = hits_B
    logp_BT = policy.logp(prompt_B, tokens_BT)
    uniform_BT = torch.full_like(mask_BT, -torch.log(torch.tensor(float(V))))
    batch = Batch(
        logp_BT=logp_BT, mask_BT=mask_BT, old_logp_BT=logp_BT.detach(), ref_logp_BT=uniform_BT, reward_BT=reward_BT, group_B=prompt_B,
        old_value_BT=torch.full_like(mask_BT, 0.5), **{"length_B": LENGTH_P[prompt_B]},
    )  # fmt: skip
    return prompt_B, tokens_BT, batch


def train(prepare: Callable[[Batch], Batch], step: Step, steps: int, lr: float, G: int = 8, epochs: int = 2) -> Tabular:
    """Sample, prepare (credit, pairs), then a few steps on the same answers so that ratios leave 1."""
    policy = Tabular()
    for _ in range(steps):
        prompt_B, tokens_BT, batch = scored(policy, G)
        batch = prepare(batch.but(logp_BT=batch.logp_BT.detach()))
        for _ in range(epochs):
            fresh = batch.but(logp_BT=policy.logp(prompt_B, tokens_BT), entropy_BT=policy.entropy(prompt_B))
            policy.step(step(fresh), lr)
    return policy
