"""Thinking as a choice of length: an answer is so many letters of work, then the end letter, and work raises the chance
to be right up to a point that depends on how hard the question is. Accuracy, length and truncation are known exactly.

The last letter is the end. Of two, the other is work; of more, the one before the end is idle and the others are work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import replace as changed
from typing import Any

import torch
from torch import Tensor

from claims.worlds.tabular import TabularPolicy
from posttrain.core import rng
from posttrain.core.config import Config
from posttrain.core.method import Method
from posttrain.core.sampling import Sampling
from posttrain.core.types import End, Prompt, Rollout
from posttrain.runs.in_memory import FunctionScorer, Listed, fit, row


class Thinker(TabularPolicy):
    """A tabular policy that the length limit of sampling cuts off: what comes after it was never written."""

    @torch.no_grad()
    def sample(
        self, prompts: Sequence[Prompt], n: int, how: Sampling, seed: int = 0, step: int = 0
    ) -> list[list[Rollout]]:
        made = super().sample(prompts, n, how, seed, step)
        return [[self._cut(r, how.max_tokens) for r in rollouts] for rollouts in made]

    def _cut(self, r: Rollout, L: int) -> Rollout:
        if len(r) <= L:
            return r
        short = {k: getattr(r.row, k)[:L] for k in ("actions", "logp_T", "mask_T", "version_T")}
        turn = r.but_turn(**short, text=self.decode(short["actions"]), stopped=False)
        return changed(turn, end=End.TRUNCATED, stop="length")


def ramp(need_P: Sequence[float], T: int, low: float = 0.1, high: float | Sequence[float] = 0.95) -> Tensor:
    """right_PK: the chance to be right after k letters of work rises in a line from low to high at k = need."""
    need_P1 = torch.tensor(need_P, dtype=torch.float64).unsqueeze(-1)
    high_P1 = torch.tensor(high, dtype=torch.float64).reshape(-1, 1)
    return low + (high_P1 - low) * (torch.arange(T + 1) / need_P1).clamp(max=1.0)


@dataclass(frozen=True)
class Thinking:
    """Kinds of questions, right_PK[p, k] the chance of a right answer to kind p after k letters of work; an answer that
    is cut off before its end letter is wrong. Whether a given answer is right is drawn by its identity."""

    right_PK: Tensor
    seed: int
    V: int = 2  # letters: work, (more work, idle,) end

    @property
    def T(self) -> int:
        return self.right_PK.shape[1] - 1

    @property
    def W(self) -> int:
        """Letters that are work: the first ones."""
        return max(1, self.V - 2)

    @property
    def P(self) -> int:
        return len(self.right_PK)

    def start(self, stop: float = 0.05, idle: float = 0.0, features_PF: Tensor | None = None) -> Thinker:
        """A policy that ends with chance `stop` at every letter, idles with chance `idle` and works otherwise."""
        policy = Thinker(self.P, self.T, self.V, memory=False, end=self.V - 1, features_PF=features_PF)
        idling = [idle] if self.V > 2 else []
        p_V = torch.tensor([*[(1 - stop - idle) / self.W] * self.W, *idling, stop])
        shares = 1.0 if features_PF is None else float(features_PF.sum(-1)[0])
        with torch.no_grad():
            policy.table.copy_((p_V.log() / shares).expand_as(policy.table))
        return policy

    def asked(self, copies: int = 1, kinds: Sequence[int] | None = None) -> Listed:
        """Every kind (or these) as so many prompts."""
        return Listed([row(p, k) for k in range(copies) for p in (range(self.P) if kinds is None else kinds)])

    def right(self, rollouts: list[Rollout]) -> Tensor:
        """1 for a right answer, 0 for a wrong one."""
        work_B = torch.tensor([int((r.actions < self.W).sum()) for r in rollouts])
        chance_B = self.right_PK[torch.cat([r.context for r in rollouts]), work_B]
        luck_B = [rng.python(self.seed, "right", r.version, r.prompt.id, r.index).random() for r in rollouts]
        stopped_B = torch.tensor([(not r.truncated) for r in rollouts])
        return (stopped_B & (torch.tensor(luck_B, dtype=torch.float64) < chance_B)).float()

    def train(self, policy: Thinker, method: Method, steps: int, lr: float, **how: Any) -> list[dict[str, float]]:
        """The real loop on right and wrong. how: copies and kinds of the prompts, longest answer, first step's number."""
        asked = self.asked(how.get("copies", 1), how.get("kinds"))
        config = Config(
            seed=self.seed + 1000 * how.get("part", 0), steps=steps, prompts=asked.size, lr=lr, warmup=0, max_norm=100.0,
            sampling=Sampling(max_tokens=how.get("longest", self.T)),
        )  # fmt: skip
        return fit(policy, method, asked, config, FunctionScorer(how.get("worth", self.right)), how.get("after"))

    @torch.no_grad()
    def exact(self, policy: Thinker, longest: int | None = None) -> dict[str, Tensor]:
        """Of each kind: right_P, the chance of a right answer; length_P, its mean length with the end letter; cut_P, the
        chance of running into the limit; idle_P, letters that do not help; direct_P, the chance to end at once."""
        p_PTV = policy.logp_all(torch.arange(self.P), torch.zeros(self.P, self.T, dtype=torch.long)).exp().double()
        here_PK = torch.zeros(self.P, self.T + 1, dtype=torch.float64)  # chance to be writing, after k letters of work
        here_PK[:, 0] = 1.0
        right_P, length_P, idle_P = (torch.zeros(self.P, dtype=torch.float64) for _ in range(3))
        for t in range(self.T if longest is None else longest):
            work_P1, end_P = p_PTV[:, t, : self.W].sum(-1, keepdim=True), p_PTV[:, t, -1]
            length_P += here_PK.sum(-1)
            idle_P += here_PK.sum(-1) * (1 - work_P1.squeeze(-1) - end_P)
            right_P += end_P * (here_PK * self.right_PK).sum(-1)
            stay_PK = here_PK * (1 - work_P1 - end_P.unsqueeze(-1))
            here_PK = stay_PK + torch.cat([torch.zeros(self.P, 1).double(), (here_PK * work_P1)[:, :-1]], 1)
        cut_P = here_PK.sum(-1)
        return {"right_P": right_P, "length_P": length_P, "cut_P": cut_P, "idle_P": idle_P, "direct_P": p_PTV[:, 0, -1]}

    def told(self, policy: Thinker, longest: int | None = None) -> dict[str, float]:
        """Means over the kinds."""
        found = self.exact(policy, longest)
        names = {"right_P": "accuracy", "length_P": "length", "cut_P": "cut", "idle_P": "idle"}
        return {name: float(found[key].mean()) for key, name in names.items()}
