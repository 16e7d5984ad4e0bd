"""Answers of one turn from a policy that can observe and act: what every policy has for free."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Self, cast

from posttrain.core import rng
from posttrain.core.errors import UserError
from posttrain.core.sampling import Sampling
from posttrain.core.turn import Observation, Turn
from posttrain.core.types import Message, Prompt, Rollout, ended

if TYPE_CHECKING:
    from torch import Tensor

    from posttrain.core.protocols import Policy


class Actor:
    """What a policy inherits: `sample` from `observe` and `act`, and plain defaults."""

    temperature: float = 1.0

    @property
    def provides(self) -> frozenset[str]:
        """Streams that `forward` can give."""
        return frozenset({"logp_BT"})

    def sample(
        self, prompts: Sequence[Prompt], n: int, how: Sampling, seed: int = 0, step: int = 0
    ) -> list[list[Rollout]]:
        """n answers of one turn to each prompt, as a function of (seed, step, prompt id, sample index) alone."""
        me = cast("Policy", self)
        pending = [[Turn.empty(me.observe(p))] for p in prompts]
        keys = [[rng.key(seed, step, p.id, i) for i in range(n)] for p in prompts]
        made = me.act(pending, keys, how, version=step)
        return [
            [Rollout(p, [turn], *ended(turn.stopped), index=i) for i, turn in enumerate(turns)]
            for p, turns in zip(prompts, made, strict=True)
        ]

    def extend(self, turns: Sequence[Turn], messages: Sequence[Message]) -> Observation:
        raise UserError(f"{type(self).__name__} does not read messages; its environment must answer with observations")

    def decode(self, actions: Tensor) -> str:
        return ""

    def with_critic(self) -> Self:
        raise UserError(f"{type(self).__name__} has no critic; choose an advantage without values (grpo, rloo)")

    def as_reward_model(self) -> Self:
        raise UserError(f"{type(self).__name__} has no score head, so it cannot be a reward model")

    def written(self, prompt: Prompt, text: str) -> Rollout:
        raise UserError(f"{type(self).__name__} does not read texts, so nobody else can write its answers")
