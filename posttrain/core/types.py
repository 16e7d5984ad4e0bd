"""What flows through the loop: Prompt -> Rollout -> Group -> Batch.

Shape letters, used as name suffixes everywhere:
    P  prompts or pairs        G  rollouts of one prompt      B  rows of a batch
    T  time (tokens, steps)    V  vocabulary                  D  width of the model
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from posttrain.core.errors import UserError

Message = dict[str, Any]  # {"role": "user", "content": "..."}; content may be a list of parts (text, image, audio)


@dataclass(frozen=True)
class Prompt:
    """A question: chat messages, the gold answer if one is known, and whatever its environment needs to grade it."""

    id: str
    content: tuple[Message, ...]
    answer: Any = None
    info: dict[str, Any] = field(default_factory=dict)

    @staticmethod
    def text(id: str, text: str, answer: Any = None, **info: Any) -> Prompt:
        """A prompt of one user message."""
        return Prompt(id, ({"role": "user", "content": text},), answer, info)

    @property
    def last(self) -> str:
        """The text of the last message, for people and for rewards that read the question."""
        content = self.content[-1]["content"] if self.content else ""
        if isinstance(content, str):
            return content
        return "".join(part.get("text", "") for part in content)


@dataclass
class Rollout:
    """One answer: the actions as sampled (never re-tokenised), and all that was learned about them since.

    reward is None until it is scored, and NaN when scoring failed: such a rollout is masked, never worth 0.
    """

    prompt: Prompt
    context: Tensor  # (S,) token ids the policy was conditioned on
    actions: Tensor  # (T,) token ids; for other policies (T, ...) denoising steps or controls
    logp_T: Tensor  # (T,) log-probability of each action under the weights that sampled it
    mask_T: Tensor  # (T,) bool: True where the policy itself chose the action
    text: str = ""
    reward: float | None = None
    rewards: dict[str, float] = field(default_factory=dict)  # by component
    reward_T: Tensor | None = None  # dense credit aligned with actions
    adv_T: Tensor | None = None
    value_T: Tensor | None = None
    ref_logp_T: Tensor | None = None
    version: int = 0  # the step of the weights it was sampled from
    index: int = 0  # which sample of its prompt: part of its random identity
    parent: int | None = None  # position in the group of the rollout it branched from
    fork: int = 0  # how many of the parent's actions it shares
    stopped: bool = True  # False when it ran into the length limit
    turns: list[int] = field(default_factory=list)  # start of each turn in actions
    earlier: list[Rollout] = field(default_factory=list)  # turns in contexts of their own; they share its credit
    info: dict[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return int(self.actions.shape[0])

    @property
    def failed(self) -> bool:
        """Scoring raised or timed out, so there is nothing to learn from it."""
        return self.reward is not None and self.reward != self.reward


@dataclass
class Group:
    """Siblings: G answers to one prompt, a preference pair (best first), a ranking, the leaves of a tree."""

    prompt: Prompt
    rollouts: list[Rollout]

    @property
    def scored(self) -> list[Rollout]:
        """The rollouts whose reward is a number."""
        return [r for r in self.rollouts if r.reward is not None and not r.failed]


@dataclass
class Batch:
    """All that a loss sees. Only logp_BT, entropy_BT, value_BT and score_B carry gradient.

    mask_BT is 1.0 (a float) where credit flows (the policy's own actions of rollouts that could be scored), 0 on padding.
    chosen_P and rejected_P index the rows of preference pairs.
    """

    logp_BT: Tensor
    mask_BT: Tensor
    old_logp_BT: Tensor | None = None
    ref_logp_BT: Tensor | None = None
    adv_BT: Tensor | None = None
    reward_BT: Tensor | None = None
    return_BT: Tensor | None = None
    value_BT: Tensor | None = None
    old_value_BT: Tensor | None = None
    entropy_BT: Tensor | None = None
    mark_BT: Tensor | None = None  # 1.0 at tokens that an advantage singled out for the loss
    score_B: Tensor | None = None
    group_B: Tensor | None = None
    chosen_P: Tensor | None = None
    rejected_P: Tensor | None = None
    version_B: Tensor | None = None
    token_BT: Tensor | None = None  # the actions themselves, where they are letters or token ids
    info: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        B, T = self.mask_BT.shape
        for f in fields(self):
            x = getattr(self, f.name)
            if isinstance(x, Tensor):
                want = {"BT": (B, T), "B": (B,)}.get(f.name.rsplit("_", 1)[-1])
                if want and tuple(x.shape) != want:
                    raise UserError(f"Batch.{f.name} has shape {tuple(x.shape)}, expected {want} as mask_BT says")

    def need(self, name: str) -> Tensor:
        """A stream the formula cannot do without; says which one is missing."""
        x = getattr(self, name)
        if x is None:
            raise UserError(f"this loss needs {name}, which the batch does not carry")
        return x

    def but(self, **changes: Any) -> Batch:
        """The same batch with some streams replaced."""
        return replace(self, **changes)

    @property
    def lengths_B(self) -> Tensor:
        """How many actions of each row carry credit."""
        return self.mask_BT.sum(-1)

    @property
    def live_B(self) -> Tensor:
        """Rows with any credit at all: a failed reward masks the whole row."""
        return (self.mask_BT > 0).any(-1)

    @property
    def returns_B(self) -> Tensor:
        """What each answer earned in all: the outcome sits on its last action, dense rewards where they fell."""
        return self.need("reward_BT").sum(-1)

    def rows(self, index: Tensor) -> Batch:
        """These rows only, time trimmed to the longest of them; pairs with both rows inside are kept."""
        T = max(int(self.info["length_B"][index].max()), 1) if "length_B" in self.info else self.mask_BT.shape[1]
        out: dict[str, Any] = {}
        for f in fields(self):
            x = getattr(self, f.name)
            if isinstance(x, Tensor) and f.name.endswith("_BT"):
                out[f.name] = x[index, :T]
            elif isinstance(x, Tensor) and f.name.endswith("_B"):
                out[f.name] = x[index]
        if self.chosen_P is not None and self.rejected_P is not None:
            place = torch.full((self.mask_BT.shape[0],), -1, dtype=torch.long)
            place[index] = torch.arange(index.numel())
            chosen_P, rejected_P = place[self.chosen_P], place[self.rejected_P]
            inside_P = (chosen_P >= 0) & (rejected_P >= 0)
            out |= {"chosen_P": chosen_P[inside_P], "rejected_P": rejected_P[inside_P]}
        info = {k: v[index] if isinstance(v, Tensor) and k.endswith("_B") else v for k, v in self.info.items()}
        return Batch(**out, info=info)


def pad(streams: Sequence[Tensor], T: int, value: float = 0.0) -> Tensor:
    """Streams of unequal length as one (B, T) tensor, padded on the right."""
    if not streams:
        return torch.zeros(0, T)
    out = pad_sequence(list(streams), batch_first=True, padding_value=value)
    return F.pad(out, (0, T - out.shape[1]), value=value)
