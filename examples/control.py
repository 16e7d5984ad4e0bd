"""A Gaussian policy on a Gymnasium task with continuous actions, under PPO and under GRPO: the same loop as a language model's.

    pip install "posttrain[control]"
    python -m examples.control            # PPO, then GRPO, on Pendulum-v1

What you should see: the mean return of held-out episodes (100 moments each, rewards divided by 10) rises from -40 to -21, -24 and
-17 with PPO in 60 steps (seeds 0, 1, 2); GRPO, which has no critic and compares whole episodes from one start, reaches
-28, -28 and -27.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

import posttrain as pt
from posttrain.advantages.gae import gae
from posttrain.evals.accuracy import mean_reward
from posttrain.losses.value.value_loss import value_loss
from posttrain.methods.grpo import grpo
from posttrain.methods.ppo import ppo
from posttrain.policies.gaussian import GaussianPolicy, see
from posttrain.rewards.runtime.scorer import Prescored
from posttrain.runs.in_memory import fit


class Control(pt.Environment):
    """A Gymnasium task: a prompt is a start (the seed of its reset), an episode at most `moments` actions long."""

    def __init__(self, task: str = "Pendulum-v1", moments: int = 100, scale: float = 0.1) -> None:
        self.name, self.moments, self.scale = task, moments, scale

    def prompt(self, index: int, split: str = "train") -> pt.Prompt:
        seed = pt.rng.key(self.name, split, index) & 0x7FFFFFFF
        return pt.Prompt.text(f"{self.name}-{split}-{index}", "", seed=seed)

    def open(self, prompt: pt.Prompt, key: int) -> Moving:
        return Moving(self, prompt.info["seed"])


class Moving(pt.Episode):
    """One episode of the simulator."""

    def __init__(self, env: Control, seed: int) -> None:
        import gymnasium

        self.env, self.left = env, env.moments
        self.sim: Any = gymnasium.make(env.name)
        self.state, _ = self.sim.reset(seed=seed)

    def start(self) -> pt.Observation:
        return see(torch.as_tensor(self.state))

    def step(self, turn: pt.Turn) -> pt.Step:
        high = torch.as_tensor(self.sim.action_space.high)
        force = (torch.tanh(turn.actions[0]) * high).numpy()
        self.state, reward, ended, _, _ = self.sim.step(force)
        self.left -= 1
        worth = float(reward) * self.env.scale
        if ended or self.left == 0:
            return pt.Step(None, reward=worth)
        return pt.Step(see(torch.as_tensor(self.state)), reward=worth)

    def close(self) -> None:
        self.sim.close()


METHODS = {
    "ppo": ppo.but(
        rollout=ppo.rollout.but(n=1), shaping=(), advantage=gae.but(gamma=0.9, lam=0.9), epochs=10, minibatches=4,
        terms=(value_loss.but(coef=0.5, clip=None),),
    ),
    "grpo": grpo.but(rollout=grpo.rollout.but(n=8), terms=(), aggregate="token_mean", epochs=4, minibatches=2),
}  # fmt: skip


def returns(policy: GaussianPolicy, env: Control, method: pt.Method, episodes: int = 20) -> float:
    """Mean return of held-out episodes, acting without noise."""
    return mean_reward(policy, env, episodes, pt.Sampling(temperature=0.0), Prescored(), method.rollout).accuracy


def main(seed: int = 0, small: bool = False, name: str = "ppo") -> dict[str, float]:
    """Train; returns the mean held-out return before and after."""
    env, method = Control(), METHODS[name]
    policy = GaussianPolicy(states=3, actions=1, seed=seed, log_std=0.0)
    before = returns(policy, env, method)
    steps = 16 if small else 60
    prompts = 16 if name == "ppo" else 4
    config = pt.Config(steps=steps, prompts=prompts, lr=3e-3, warmup=0, max_norm=0.5, seed=seed)
    fit(policy, method, env, config, Prescored())
    return {"before": before, "after": returns(policy, env, method)}


if __name__ == "__main__":
    for name in METHODS:
        for seed in range(int(sys.argv[1]) if len(sys.argv) > 1 else 1):
            print(name, seed, main(seed, name=name))
