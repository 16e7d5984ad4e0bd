"""Every kind of policy that the types carry, each with an environment, a method and a scorer small enough to be killed often."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

import posttrain as pt
from claims.worlds.tabular import TabularPolicy
from examples import look
from examples.off_policy import SAC, sac
from examples.two_roles import ANSWERS, QUESTIONS, Chooser, School, objective
from posttrain.losses.value.value_loss import value_loss
from posttrain.methods.grpo import grpo
from posttrain.methods.ppo import ppo
from posttrain.policies.gaussian import GaussianPolicy, see
from posttrain.rewards.runtime.scorer import Prescored
from posttrain.rollouts.replay import ReplaySource
from posttrain.runs.in_memory import FunctionScorer, numbered
from tests.runs import tiny_run


@dataclass
class Kind:
    """How a policy of a kind is made and trained."""

    make: Callable[[int], Any]  # seed -> the policy that the method's first objective trains
    method: pt.Method
    env: pt.Environment
    scorer: Any = field(default_factory=Prescored)
    others: Callable[[int], dict[str, Any]] = lambda seed: {}  # policies of other roles
    source: Any = None
    samples: bool = True  # its rows were sampled by the policy as it is: the sampler can be compared with the trainer


class Push(pt.Environment):
    """Push a point to the origin: the state moves by the action, each moment costs its distance."""

    name = "push"

    def prompt(self, index: int, split: str = "train") -> pt.Prompt:
        return pt.Prompt.text(f"push-{split}-{index}", "")

    def open(self, prompt: pt.Prompt, key: int) -> Pushed:
        draw = pt.rng.python("push", prompt.id)
        return Pushed(torch.tensor([draw.uniform(-1, 1), draw.uniform(-1, 1)]))


class Pushed(pt.Episode):
    def __init__(self, at: torch.Tensor) -> None:
        self.at, self.left = at, 5

    def start(self) -> pt.Observation:
        return see(self.at)

    def step(self, turn: pt.Turn) -> pt.Step:
        self.at, self.left = self.at + 0.5 * torch.tanh(turn.actions[0]), self.left - 1
        worth = -float(self.at.norm())
        return pt.Step(see(self.at) if self.left else None, reward=worth)


class Hints(pt.Environment):
    """A game in turns for the letter model: say the letter; told once more if it did not."""

    name = "hints"

    def prompt(self, index: int, split: str = "train") -> pt.Prompt:
        letter = "abcd"[index % 4]
        return pt.Prompt.text(f"hint-{split}-{index}", f"write {letter}", letter)

    def open(self, prompt: pt.Prompt, key: int) -> Hint:
        return Hint(prompt.answer)


class Hint(pt.Episode):
    def __init__(self, letter: str) -> None:
        self.letter, self.left = letter, 3

    def step(self, turn: pt.Turn) -> pt.Step:
        self.left -= 1
        worth = turn.text.count(self.letter) / max(len(turn.text), 1)
        return pt.Step([{"role": "user", "content": f"more {self.letter}"}] if self.left else None, reward=worth)


def _table(seed: int) -> TabularPolicy:
    return TabularPolicy(4, 5, 6, end=5).randomise(0.5, seed, "kinds")


def _same_letter(rollouts: list[pt.Rollout]) -> torch.Tensor:
    return torch.tensor([float((r.actions == r.prompt.info["row"]).float().mean()) for r in rollouts])


def _many_letters(rollouts: list[pt.Rollout]) -> torch.Tensor:
    return torch.tensor([float(len(set(r.actions.tolist()))) for r in rollouts])


def _dark(rollouts: list[pt.Rollout]) -> torch.Tensor:
    return torch.tensor([-float(r.actions[-1].mean()) for r in rollouts])


def _gaussian(seed: int) -> GaussianPolicy:
    return GaussianPolicy(2, 2, width=8, seed=seed)


KINDS: dict[str, Kind] = {
    "language": Kind(
        tiny_run.policy, tiny_run.method().but(shaping=()), tiny_run.Count(), tiny_run.RewardSum([("share", tiny_run.Count().grade, 1.0)])
    ),
    "turns": Kind(tiny_run.policy, grpo.but(rollout=grpo.rollout.but(n=4), advantage="turns", terms=()), Hints()),
    "table": Kind(
        _table, grpo.but(rollout=grpo.rollout.but(n=4)), numbered(4), FunctionScorer(_same_letter),
    ),
    "gaussian": Kind(
        _gaussian,
        ppo.but(rollout=ppo.rollout.but(n=2), shaping=(), terms=(value_loss.but(clip=None),), epochs=2, minibatches=2),
        Push(),
    ),
    "roles": Kind(
        lambda seed: Chooser(QUESTIONS, ANSWERS, seed),
        grpo.but(terms=(), rollout=grpo.rollout.but(n=4), others=(objective("proposer"),)),
        School(), others=lambda seed: {"proposer": Chooser(1, QUESTIONS, seed + 100)},
    ),
    "picture": Kind(
        look.policy_of, look.METHOD.but(rollout=look.METHOD.rollout.but(n=4)), look.Look(), FunctionScorer(_many_letters)
    ),
    "replay": Kind(
        lambda seed: SAC(2, 2, width=8, seed=seed), sac, Push(),
        source=partial(ReplaySource, size=16, every=2), samples=False,
    ),
}  # fmt: skip


if find_spec("sklearn"):
    from examples import denoise

    KINDS["denoising"] = Kind(
        lambda seed: denoise.Denoiser(width=16, seed=seed), grpo.but(rollout=grpo.rollout.but(n=4), terms=()),
        denoise.draws("train", 12), FunctionScorer(_dark),
    )  # fmt: skip


def config(**changes: Any) -> pt.Config:
    plain: dict[str, Any] = {
        "name": "kind", "steps": 5, "prompts": 3, "lr": 3e-3, "warmup": 2, "save_every": 2, "log_rollouts": 4,
        "micro_tokens": 64, "eval_problems": 2, "sampling": pt.Sampling(max_tokens=6),
    }  # fmt: skip
    return pt.Config(**(plain | changes))


def start(name: str, folder: Path) -> None:
    """A whole run of a kind, from wherever its folder stands."""
    kind = KINDS[name]
    given = {"source": kind.source} if kind.source else {}
    pt.run_config(
        config(name=folder.name), folder.parent, method=kind.method, policy=kind.make(0), env=kind.env,
        scorer=kind.scorer, others=kind.others(0), **given,
    )  # fmt: skip
