from __future__ import annotations

from collections import Counter
from functools import lru_cache
from typing import Any

from posttrain.core import rng
from posttrain.core.protocols import Environment, Policy
from posttrain.core.registry import prompt_sampler
from posttrain.core.types import Group, Prompt
from posttrain.environments.base import size_of


@prompt_sampler()
class uniform:
    """Uniform: every prompt as often as any other; a finite set is shuffled anew each epoch, an endless one is fresh.

    There is no state: what comes at a step is a function of (seed, step).
    """

    def __init__(self, pool: int = 0, repeat: int = 1) -> None:
        self.pool, self.repeat = pool, repeat  # pool > 0: only the first `pool` prompts; repeat: copies of each

    def start(self, env: Environment, seed: int) -> None:
        self.env, self.seed = env, seed

    def propose(self, n: int, step: int, policy: Policy | None = None) -> list[Prompt]:
        """The n prompts of a step."""
        env, seed = self.env, self.seed
        size = self.pool or size_of(env, "train")
        distinct = max(1, n // self.repeat)
        at = range(step * distinct, (step + 1) * distinct)
        chosen = [env.prompt(self._index(i, size, seed), "train") for i in at]
        return [copy_of(p, k) for p in chosen for k in range(self.repeat)]

    @staticmethod
    def _index(i: int, size: int, seed: int) -> int:
        if not size:
            return i + (rng.key(seed, "prompts") & 0xFFFFFFFF) * 1_000_003  # another seed sees other prompts
        return epoch_order(size, seed, i // size)[i % size]

    def observe(self, groups: list[Group]) -> None:
        """Other curricula use the results; this one does not."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


@lru_cache(maxsize=4)
def epoch_order(size: int, seed: int, epoch: int) -> tuple[int, ...]:
    """The shuffled places of an epoch; kept, because every prompt of the epoch asks for it."""
    order = list(range(size))
    rng.python(seed, "epoch", epoch).shuffle(order)
    return tuple(order)


def copy_of(prompt: Prompt, k: int) -> Prompt:
    """The k-th copy of a prompt in one step: its own identity, so that its answers differ."""
    return prompt if k == 0 else Prompt(f"{prompt.id}#{k}", prompt.content, prompt.answer, prompt.info)


def distinct(env: Environment, places: range) -> list[Prompt]:
    """The training prompts of these places; where a small set comes round, a prompt has an identity of its own each time."""
    seen: Counter[str] = Counter()
    out = []
    for i in places:
        prompt = env.prompt(i, "train")
        out.append(copy_of(prompt, seen[prompt.id]))
        seen[prompt.id] += 1
    return out
