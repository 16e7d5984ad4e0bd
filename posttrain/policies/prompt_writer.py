"""A policy that writes prompts: a frozen language model with a small MLP before its head, whose logits are Q-values."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from posttrain.core import rng
from posttrain.core.turn import Turn
from posttrain.core.types import Prompt, Rollout
from posttrain.models.layout import Rows, hidden_states
from posttrain.policies.language import LanguagePolicy

ASK = "Write a prompt."


class Adapted(nn.Module):
    """logits = head(mlp(h)), h the frozen model's hidden states. The MLP starts near 0, so all tokens start about equally likely."""

    def __init__(self, model: Any, hidden: int = 256, seed: int = 0) -> None:
        super().__init__()
        self.inner = model.requires_grad_(False)
        weight = next(model.parameters())
        self.mlp = nn.Sequential(nn.Linear(model.width, hidden), nn.ReLU(), nn.Linear(hidden, model.width))
        self.mlp.to(weight.device)
        draw = rng.torch_generator("prompt writer", seed)
        for p in self.mlp.parameters():
            scale = 1e-2 if p.dim() == 2 else 0.0
            p.data.copy_(scale * torch.randn(p.shape, generator=draw))

    @property
    def width(self) -> int:
        return int(self.inner.width)

    def hidden(self, *args: Any) -> Tensor:
        h: Tensor = self.inner.hidden(*args)
        return h

    def hidden_shared(self, *args: Any) -> tuple[Tensor, Tensor]:
        both: tuple[Tensor, Tensor] = self.inner.hidden_shared(*args)
        return both

    def prefill(self, *args: Any) -> tuple[Tensor, Any]:
        both: tuple[Tensor, Any] = self.inner.prefill(*args)
        return both

    def step(self, *args: Any) -> Tensor:
        h: Tensor = self.inner.step(*args)
        return h

    def logits(self, h: Tensor) -> Tensor:
        out: Tensor = self.mlp(h.float())
        logits: Tensor = self.inner.logits(out.to(next(self.inner.parameters()).dtype))  # a head in half precision too
        return logits


class PromptWriter(LanguagePolicy):
    """Writes the same kind of prompt whatever the input, which it never sees. value_BT is V = log sum exp of its logits."""

    @staticmethod
    def of(policy: LanguagePolicy, hidden: int = 256, seed: int = 0) -> PromptWriter:
        """A writer on a copy of this model."""
        model = Adapted(copy.deepcopy(policy.model), hidden, seed)
        return PromptWriter(model, policy.tokenizer, policy.name, policy.stops)

    def encode(self, prompt: Prompt) -> Tensor:
        return super().encode(Prompt.text("writer", ASK))

    def lead(self, prompt: Prompt) -> str:
        return super().lead(Prompt.text("writer", ASK))

    def forward(self, rows: Sequence[Turn | Rollout], needs: Iterable[str] = ("logp_BT",)) -> dict[str, Tensor]:
        needs = set(needs)
        out = super().forward(rows, needs - {"value_BT"}) if needs - {"value_BT"} else {}
        if "value_BT" in needs:
            laid = Rows.of([r.row for r in rows], self.device)
            h_BTD, _ = hidden_states(self.model, laid, self.layout)
            logits_BTV = self.model.logits(h_BTD).float() / self.temperature  # type: ignore[operator]
            out["value_BT"] = torch.logsumexp(logits_BTV, -1) * laid.real_BT
        return out

    def with_critic(self, heads: int = 1, shared: bool = False) -> PromptWriter:
        """The logits are the critic."""
        return self

    def clone(self) -> PromptWriter:
        other = PromptWriter(copy.deepcopy(self.model), self.tokenizer, self.name, self.stops)
        other.temperature, other.layout = self.temperature, self.layout
        return other
