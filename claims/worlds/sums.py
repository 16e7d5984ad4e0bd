"""A small world where many answers are right: two letters whose weighted sum must come out, so diversity can be kept."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from claims.worlds.exact import all_answers, answer_entropy, expected
from claims.worlds.tabular import TabularPolicy
from posttrain.core import rng
from posttrain.core.config import Config
from posttrain.core.method import Method
from posttrain.core.types import Rollout
from posttrain.runs.in_memory import FunctionScorer, fit, numbered

P, T, V = 8, 2, 8


@dataclass(frozen=True)
class Sums:
    """Eight prompts with 8 right answers of 64 each, and a start policy of random taste: `spread` says how strong."""

    start: TabularPolicy
    right_PN: Tensor

    def graded(self, rollouts: list[Rollout]) -> Tensor:
        letters_BT = torch.stack([r.actions for r in rollouts])
        return self.right_PN[torch.cat([r.context for r in rollouts]), letters_BT[:, 0] * V + letters_BT[:, 1]]


@lru_cache(maxsize=2)
def sums(name: str, seed: int, spread: float = 1.5) -> Sums:
    """a + 3 b = aim (mod 8), the aim drawn for each prompt; worlds of different claims have different names."""
    start = TabularPolicy(P, T, V).randomise(spread, f"{name} start", seed)
    aim_P = torch.randint(0, V, (P,), generator=rng.torch_generator(f"{name} aim", seed))
    letters_NT = all_answers(start)[0]
    sums_N = (letters_NT[:, 0] + 3 * letters_NT[:, 1]) % V
    return Sums(start, (sums_N == aim_P.unsqueeze(-1)).float())


def learn(world: Sums, method: Method, seed: int, steps: int, lr: float) -> dict[str, float]:
    """Train a copy of the start policy. accuracy and entropy (over answers) are exact; later_gain is that of the second
    half; silent is the share of groups whose answers were all right or all wrong."""
    policy, accuracy, silent = world.start.clone(), [], []
    n = int(method.rollout.defaults()["n"])

    def graded(rollouts: list[Rollout]) -> Tensor:
        right_B = world.graded(rollouts)
        silent.append(float((right_B.view(-1, n).std(-1, correction=0) == 0).float().mean()))
        return right_B

    def look(step: int) -> None:
        accuracy.append(float(expected(policy, world.right_PN).mean()))

    config = Config(seed=seed, steps=steps, prompts=P, lr=lr, warmup=0, max_norm=100.0)
    fit(policy, method, numbered(P), config, FunctionScorer(graded), look)
    return {
        "accuracy": accuracy[-1],
        "later_gain": accuracy[-1] - accuracy[steps // 2],
        "entropy": float(answer_entropy(policy).mean()),
        "silent": sum(silent) / len(silent),
    }
