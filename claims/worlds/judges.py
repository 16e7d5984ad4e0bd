"""A small network that reads letters: a language model of answers, and with a head a reward model of them."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from claims.worlds.tabular import TabularPolicy
from posttrain.core import rng
from posttrain.core.errors import UserError
from posttrain.core.turn import Turn
from posttrain.core.types import Prompt, Rollout


class LetterModel(nn.Module):
    """Reads bigrams, adds them up, thinks once about the sum; what it has read so far predicts the next letter.

    read_t = prompt + 1/sqrt(T) sum_{s <= t} relu(letter_s + before_{s-1});  thought_t = relu(W read_t)
    log pi(next letter) = log_softmax(S thought_t);  score = head . thought_last
    It reads the answers of `writer`; its weights are drawn by identity.
    """

    def __init__(self, writer: TabularPolicy, width: int, *identity: object) -> None:
        super().__init__()
        self.writer = [writer]  # in a list, so that its table is no parameter of this network
        self.prompt = nn.Embedding(writer.P, width)
        self.letter = nn.Embedding(writer.V, width)
        self.before = nn.Embedding(writer.V + 1, width)
        self.think = nn.Linear(width, width)
        self.speak = nn.Linear(width, writer.V)
        self.score: nn.Linear | None = None
        self.critic = None
        draw(self, *identity)

    def as_reward_model(self, *identity: object) -> LetterModel:
        """A copy with a score head of its own, drawn by identity; the speaking head is left as it is."""
        other = self.clone()
        other.speak.requires_grad_(False)
        other.score = nn.Linear(self.think.out_features, 1, bias=False)
        draw(other.score, *identity)
        return other

    def clone(self) -> LetterModel:
        return copy.deepcopy(self)

    def written(self, prompt: Prompt, text: str) -> Rollout:
        return self.writer[0].written(prompt, text)

    @property
    def provides(self) -> frozenset[str]:
        return frozenset({"logp_BT"} | ({"score_B"} if self.score is not None else set()))

    def forward(self, rollouts: Sequence[Turn | Rollout], needs: Iterable[str] = ("logp_BT",)) -> dict[str, Tensor]:
        """logp_BT as a language model, score_B after the last letter, as asked."""
        needs = set(needs)
        actions_BT = nn.utils.rnn.pad_sequence([r.actions for r in rollouts], batch_first=True)
        length_B = torch.tensor([len(r) for r in rollouts])
        prompt_BD = self.prompt(torch.cat([r.context for r in rollouts]))
        thought_BTD = self.thoughts(prompt_BD, actions_BT)
        out: dict[str, Tensor] = {}
        if "logp_BT" in needs:
            logp_BTV = torch.log_softmax(self.speak(thought_BTD[:, :-1]), -1)
            real_BT = torch.arange(actions_BT.shape[1]) < length_B.unsqueeze(-1)
            out["logp_BT"] = logp_BTV.gather(-1, actions_BT.unsqueeze(-1)).squeeze(-1) * real_BT
        if "score_B" in needs:
            if self.score is None:
                raise UserError("this network has no score head; make one with as_reward_model()")
            out["score_B"] = self.score(thought_BTD[torch.arange(len(rollouts)), length_B]).squeeze(-1)
        return out

    def thoughts(self, prompt_BD: Tensor, actions_BT: Tensor) -> Tensor:
        """What it makes of nothing, of the first letter, of the first two...: (B, T + 1, D)."""
        start_B1 = torch.full_like(actions_BT[:, :1], self.writer[0].V)
        before_BT = torch.cat([start_B1, actions_BT[:, :-1]], 1)
        pairs_BTD = torch.relu(self.letter(actions_BT) + self.before(before_BT))
        sums_BTD = pairs_BTD.cumsum(1) / self.writer[0].T ** 0.5
        read_BTD = torch.cat([prompt_BD.unsqueeze(1), prompt_BD.unsqueeze(1) + sums_BTD], 1)
        return torch.relu(self.think(read_BTD))


@torch.no_grad()
def draw(net: nn.Module, *identity: object) -> None:
    """Normal weights of scale 1/sqrt(fan in) (embeddings: 1), biases 0; a function of identity alone."""
    generator = rng.torch_generator("letters", *identity)
    for module in net.modules():
        if isinstance(module, nn.Embedding | nn.Linear):
            scale = 1.0 if isinstance(module, nn.Embedding) else module.in_features**-0.5
            module.weight.copy_(scale * torch.randn(module.weight.shape, generator=generator))
            if isinstance(module, nn.Linear) and module.bias is not None:
                module.bias.zero_()
