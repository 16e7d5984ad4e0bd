"""A replay memory as a source: new episodes every few steps, and transitions drawn from all of them at every step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from posttrain.core import rng
from posttrain.core.protocols import RolloutRequest
from posttrain.core.turn import Observation, Turn
from posttrain.core.types import Group, Origin, Prompt, Rollout
from posttrain.rollouts.sources import LocalSource

STREAMS = ("state", "next", "action", "reward", "done")


class ReplaySource(LocalSource):
    """Every `every` steps one step's prompts are played; each step gives `size` transitions drawn from all so far as one row.

    A transition is (state, action, reward, next state, whether the episode ended there). The row's observation has them as
    streams, with `noise` (size, 2 actions) for formulas that draw: all is a function of (seed, step) and of what was played.
    """

    def __init__(self, *args: Any, size: int = 256, every: int = 25, warmup: int = 4) -> None:
        super().__init__(*args)
        self.size, self.every, self.warmup = size, every, warmup
        self.memory: dict[str, Tensor] = {}

    def next(self, step: int) -> tuple[list[Group], Any]:
        if step % self.every == 0:
            for k in range(self.warmup if step == 0 else 1):
                self._play(step, k)
        row = self._draw(step)
        groups = [Group(row.prompt, [row])]
        return groups, self.scorer.score(groups)

    def _play(self, step: int, k: int) -> None:
        place = step // self.every + (self.warmup if step else k)
        prompts = self.curriculum.propose(self.prompts, place, next(iter(self.policies.values())))
        ask = RolloutRequest(self.policies, prompts, self.sampling, self.seed, step, self.env)
        for group in self.rollout(ask):
            for r in group.rollouts:
                self._remember(r)

    def _remember(self, r: Rollout) -> None:
        """The transitions of an episode; where it was cut off by time alone, the last one has not ended."""
        state_TO = torch.cat([t.observation.streams["state"] for t in r.turns])
        done_T = torch.zeros(len(r.turns))
        done_T[-1] = float(r.info.get("terminal", False))
        new = {
            "state": state_TO, "next": torch.cat([state_TO[1:], state_TO[-1:]]),
            "action": torch.cat([t.actions for t in r.turns]), "done": done_T.unsqueeze(-1),
            "reward": torch.tensor([t.reward or 0.0 for t in r.turns]).unsqueeze(-1),
        }  # fmt: skip
        new = {k: x[:-1] for k, x in new.items()} if not done_T[-1] else new  # what came after the last was not seen
        self.memory = {k: torch.cat([self.memory[k], x]) if self.memory else x for k, x in new.items()}

    def _draw(self, step: int) -> Rollout:
        draw = rng.torch_generator(self.seed, step, "replay")
        index = torch.randint(0, len(self.memory["state"]), (self.size,), generator=draw)
        got = {k: x[index] for k, x in self.memory.items()}
        noise = torch.randn(self.size, 2 * got["action"].shape[-1], generator=draw)
        seen = {"state": got["state"], "next": got["next"], "done": got["done"], "noise": noise}
        turn = Turn.of(Observation(torch.zeros(0, dtype=torch.long), seen), got["action"], torch.zeros(self.size))
        turn.streams_T["reward"] = got["reward"].squeeze(-1)
        return Rollout(Prompt.text(f"replay-{step}", ""), [turn], origin=Origin.REPLAYED, reward=0.0)

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "memory": dict(self.memory)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.memory = {k: state["memory"][k].clone() for k in STREAMS if k in state["memory"]}
