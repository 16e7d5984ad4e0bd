"""The value of a prompt: a small head on the states that a frozen model has of it, fitted to what answers earned."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from posttrain.core import rng
from posttrain.core.batch import pad
from posttrain.core.errors import UserError
from posttrain.core.types import Prompt

HEADS = (8, 4, 2, 1)
ROWS = 16  # prompts that are read at once
RATE = 1e-3


class PromptValue(nn.Module):
    """Attention of one learned query over the states of a prompt, and a linear layer; it begins at `start` for every prompt."""

    def __init__(self, width: int, start: float = 0.0) -> None:
        super().__init__()
        self.query = nn.Parameter(torch.zeros(width))
        self.attention = nn.MultiheadAttention(width, next(n for n in HEADS if width % n == 0), batch_first=True)
        self.out = nn.Linear(width, 1)
        nn.init.zeros_(self.out.weight)
        nn.init.constant_(self.out.bias, start)

    def forward(self, h_PLD: Tensor, length_P: Tensor) -> Tensor:
        """(P,) of states of prompts, right-padded."""
        query_P1D = self.query.expand(len(h_PLD), 1, -1)
        padding_PL = torch.arange(h_PLD.shape[1], device=h_PLD.device) >= length_P.unsqueeze(-1)
        mixed_P1D, _ = self.attention(query_P1D, h_PLD, h_PLD, key_padding_mask=padding_PL, need_weights=False)
        value_P: Tensor = self.out(mixed_P1D).squeeze(-1).squeeze(-1)
        return value_P


@torch.no_grad()
def states(policy: Any, prompts: Sequence[Prompt]) -> tuple[Tensor, Tensor]:
    """The frozen model's states of prompts (P, L, D), and how many of them are real."""
    tokens = [policy.encode(p) for p in prompts]
    tokens_PL = pad(tokens, max(map(len, tokens))).to(policy.device)
    h_PLD: Tensor = policy.model.hidden(tokens_PL)
    return h_PLD.float(), torch.tensor([len(t) for t in tokens], device=policy.device)


def drawn(width: int, start: float, seed: int) -> PromptValue:
    """A head whose weights are drawn by the seed alone."""
    head, made = PromptValue(width, start), rng.torch_generator("prompt value", seed)
    with torch.no_grad():
        for p in (head.query, head.attention.in_proj_weight, head.attention.out_proj.weight):
            p.copy_(torch.randn(p.shape, generator=made) * width**-0.5)
    return head


def fitted(
    policy: Any, prompts: Sequence[Prompt], earned: Sequence[float], passes: int, seed: int, rate: float = RATE
) -> tuple[PromptValue, float]:
    """A head fitted by squared error, as it was after the pass with the least; and that error."""
    if not prompts:
        raise UserError("no answer to a held-out prompt could be scored, so there is nothing to learn values from")
    head = drawn(policy.width, sum(earned) / len(earned), seed).to(policy.device)
    learner = torch.optim.AdamW(head.parameters(), lr=rate)
    best, least = copy.deepcopy(head), float("inf")
    for k in range(passes):
        order = torch.randperm(len(prompts), generator=rng.torch_generator("values", seed, k)).tolist()
        total = 0.0
        for at in range(0, len(order), ROWS):
            some = order[at : at + ROWS]
            found_P = head(*states(policy, [prompts[i] for i in some]))
            loss = F.mse_loss(found_P, torch.tensor([earned[i] for i in some], device=found_P.device))
            learner.zero_grad()
            loss.backward()
            learner.step()
            total += float(loss.detach()) * len(some)
        if total / len(order) < least:
            best, least = copy.deepcopy(head), total / len(order)
    return best, least


@torch.no_grad()
def prompt_values(policy: Any, head: PromptValue, prompts: Sequence[Prompt]) -> list[float]:
    """What the head says of each prompt."""
    out: list[float] = []
    for at in range(0, len(prompts), ROWS):
        out += head(*states(policy, prompts[at : at + ROWS])).tolist()
    return out
