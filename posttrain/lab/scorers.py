"""Reward models for strings of letters: small networks that must generalise from the pairs they saw, and so can err."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from posttrain.core import rng
from posttrain.core.types import Prompt, Rollout
from posttrain.lab.tabular import TabularPolicy


def letters(rollouts: Sequence[Rollout], T: int) -> tuple[Tensor, Tensor]:
    """Letters of rollouts (B, T), 0 after the end, and 1.0 where one is."""
    tokens_BT = nn.utils.rnn.pad_sequence([r.actions for r in rollouts], batch_first=True)
    tokens_BT = nn.functional.pad(tokens_BT, (0, T - tokens_BT.shape[1]))
    return tokens_BT, (torch.arange(T) < torch.tensor([len(r) for r in rollouts]).unsqueeze(-1)).float()


class BagScorer(nn.Module):
    """score = head(relu(trunk(sum of the letters' embeddings / sqrt(T)))): which letters, not in which order.

    Weights are drawn by identity. `spread` is the standard deviation of the embeddings: letters that the data never
    shows keep what they were drawn with, and the network has an opinion on them all the same.
    """

    def __init__(self, policy: TabularPolicy, *identity: object, width: int = 64, inside: int = 8, spread: float = 1.0):
        super().__init__()
        self.policy = policy.clone().requires_grad_(False)  # knows the alphabet; it is not trained
        self.embed = nn.Embedding(policy.V, inside)
        self.trunk, self.score = nn.Linear(inside, width), nn.Linear(width, 1)
        draw = rng.torch_generator(*identity)
        with torch.no_grad():
            self.embed.weight.copy_(spread * torch.randn(self.embed.weight.shape, generator=draw))
            for layer in (self.trunk, self.score):
                layer.weight.copy_(torch.randn(layer.weight.shape, generator=draw) * layer.in_features**-0.5)
                layer.bias.zero_()

    def state(self, tokens_BT: Tensor, real_BT: Tensor) -> Tensor:
        bag_BD = (self.embed(tokens_BT) * real_BT.unsqueeze(-1)).sum(1) * tokens_BT.shape[1] ** -0.5
        return torch.relu(self.trunk(bag_BD))

    def forward(self, rollouts: Sequence[Rollout], needs: Iterable[str] = ("score",)) -> dict[str, Tensor]:
        return {"score_B": self.score(self.state(*letters(rollouts, self.policy.T))).squeeze(-1)}

    def written(self, prompt: Prompt, text: str) -> Rollout:
        return self.policy.written(prompt, text)

    def with_head(self, *identity: object) -> BagScorer:
        """A copy with another head: the same pre-trained network, another fine-tuning seed."""
        other = copy.deepcopy(self)
        with torch.no_grad():
            drawn = torch.randn(self.score.weight.shape, generator=rng.torch_generator(*identity))
            other.score.weight.copy_(drawn * self.score.in_features**-0.5)
        return other


def pretrain(scorer: BagScorer, rollouts: Sequence[Rollout], steps: int = 100, lr: float = 1e-2) -> BagScorer:
    """Teach embeddings and trunk, in place, to guess a hidden letter from the others: the network's pre-training."""
    tokens_BT, real_BT = letters(rollouts, scorer.policy.T)
    guess = nn.Linear(scorer.trunk.out_features, scorer.policy.V)
    with torch.no_grad():
        for p in guess.parameters():
            p.zero_()
    optimiser = torch.optim.Adam([*scorer.embed.parameters(), *scorer.trunk.parameters(), *guess.parameters()], lr=lr)
    for step in range(steps):
        b = torch.randint(len(tokens_BT), (256,), generator=rng.torch_generator("pretrain", step))
        at = (torch.rand(256, generator=rng.torch_generator("hide", step)) * real_BT[b].sum(-1)).long()
        seen_BT = real_BT[b].scatter(1, at.unsqueeze(-1), 0.0)
        loss = cross_entropy(guess(scorer.state(tokens_BT[b], seen_BT)), tokens_BT[b, at])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return scorer


@torch.no_grad()
def member_scores(members: Sequence[BagScorer], rollouts: Sequence[Rollout]) -> Tensor:
    """What each member says of each rollout (K, B)."""
    seen = letters(rollouts, members[0].policy.T)
    return torch.stack([m.score(m.state(*seen)).squeeze(-1) for m in members])
