"""What a prompt is worth: how surely a frozen model, given the prompt, names the right label of an input."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from posttrain.core.errors import UserError
from posttrain.core.registry import scorer
from posttrain.core.types import Group, Prompt
from posttrain.rewards.runtime.scorer import BaseScorer, Verdict, answers_of

Reader = Callable[[Sequence[Prompt], Sequence[str]], Tensor]  # inputs, prompts for them -> label probabilities (B, K)


def gap(p_BK: Tensor, label_B: Tensor) -> Tensor:
    """P(right label) - max P(another): above 0 where the right one wins."""
    right_B = p_BK.gather(-1, label_B.unsqueeze(-1)).squeeze(-1)
    return right_B - p_BK.scatter(-1, label_B.unsqueeze(-1), -torch.inf).amax(-1)


def piecewise(gap_B: Tensor, wrong: float = 180.0, right: float = 200.0) -> Tensor:
    """RLPrompt's reward: R = right gap where gap > 0, else wrong gap; the step in slope pays for the last bit to right."""
    return torch.where(gap_B > 0, right, wrong) * gap_B


@scorer(title="Prompted classifier", paper="arXiv:2205.12548")
class Prompted(BaseScorer):
    """Prompted classifier: each rollout is a prompt, the Prompt it answers an input with its label (`answer`, one of `labels`).

    R = piecewise(gap);  components: `gap`, and `right` (1 where the frozen model is right under this prompt).
    """

    def __init__(self, read: Reader, labels: Sequence[str], wrong: float = 180.0, right: float = 200.0) -> None:
        if len(set(labels)) < 2:
            raise UserError(f"a classifier has at least two labels, got {', '.join(labels) or 'none'}")
        self.read, self.labels, self.slopes = read, list(labels), (wrong, right)

    def gaps(self, prompts: Sequence[Prompt], texts: Sequence[str]) -> Tensor:
        """The gap of each input under each prompt."""
        label_B = torch.tensor([self.labels.index(str(p.answer)) for p in prompts])
        return gap(self.read(prompts, texts), label_B)

    def verdicts(self, groups: list[Group]) -> list[Verdict]:
        rollouts = answers_of(groups)
        gap_B = self.gaps([r.prompt for r in rollouts], [r.text for r in rollouts])
        worth = piecewise(gap_B, *self.slopes).tolist()
        return [Verdict(y, {"gap": x, "right": float(x > 0)}) for x, y in zip(gap_B.tolist(), worth, strict=True)]


def label_reader(frozen: Any, labels: Sequence[str]) -> Reader:
    """A frozen language model as a classifier: the prompt is put before the question, labels are compared as answers."""

    @torch.no_grad()
    def read(prompts: Sequence[Prompt], texts: Sequence[str]) -> Tensor:
        asked = [with_prompt(p, text) for p, text in zip(prompts, texts, strict=True)]
        rows = [frozen.written(p, label) for p in asked for label in labels]
        logp_BT = frozen.forward(rows)["logp_BT"].cpu()
        return logp_BT.sum(-1).view(len(asked), len(labels)).softmax(-1)

    return read


def with_prompt(question: Prompt, text: str) -> Prompt:
    """The question with a written prompt before it; nothing where the prompt is empty."""
    if not text.strip():
        return question
    last = {**question.content[-1], "content": f"{text.strip()} {question.last}"}
    return replace(question, content=(*question.content[:-1], last))
