from __future__ import annotations

from typing import Any, cast

from posttrain.core.errors import UserError
from posttrain.core.protocols import Environment, Policy
from posttrain.core.registry import Part, prompt_sampler
from posttrain.core.types import Group, Prompt
from posttrain.environments.base import size_of
from posttrain.prompts.uniform import epoch_order, uniform


@prompt_sampler(title="Task-balanced sampling", paper="arXiv:2512.12967", base="uniform", system="qwenlong-l15")
class task_balanced:
    """Task-balanced sampling (QwenLong-L1.5): as many prompts of each task in every step, however many there are of each.

    n // K of each of K tasks, the rest to those whose turn it is;  a task's prompts are shuffled anew each pass over them
    Tasks: the parts of a mixture (`--task "arithmetic + counting"`), or what `info[by]` says in a finite set. An endless set
    without parts is one task. There is no state: what comes is a function of (seed, step).
    """

    def __init__(self, by: str = "task") -> None:
        self.by = by
        self._known: tuple[Any, dict[str, list[int]]] | None = None

    def start(self, env: Environment, seed: int) -> None:
        self.env, self.seed = env, seed

    def propose(self, n: int, step: int, policy: Policy | None = None) -> list[Prompt]:
        """The n prompts of a step, task by task."""
        env, seed = self.env, self.seed
        parts: dict[str, Any] = getattr(env, "tasks", {})
        rows = {} if parts or not size_of(env, "train") else self.rows(env)
        names = list(parts or rows)
        if not names:
            plain = cast(Part, uniform).live()
            plain.start(env, seed)
            return list(plain.propose(n, step, policy))
        out = []
        for k, name in enumerate(names):
            first, end = share(step, n, k, len(names)), share(step + 1, n, k, len(names))
            for i in range(first, end):
                if parts:
                    size = size_of(parts[name], "train")
                    out.append(env.of(name, uniform.fn._index(i, size, seed)))  # type: ignore[attr-defined]
                else:
                    have = rows[name]
                    order = epoch_order(len(have), seed, i // len(have))
                    out.append(env.prompt(have[order[i % len(have)]], "train"))
        return out

    def rows(self, env: Any) -> dict[str, list[int]]:
        """task -> where its prompts stand in the first pass over the set."""
        if self._known is None or self._known[0] is not env:
            found: dict[str, list[int]] = {}
            for i in range(size_of(env, "train")):
                info = env.prompt(i, "train").info
                if self.by not in info:
                    raise UserError(
                        f"{env.name}: a row has no {self.by!r} to balance by; it has {', '.join(info) or 'none'}"
                    )
                found.setdefault(str(info[self.by]), []).append(i)
            self._known = (env, found)
        return self._known[1]

    def observe(self, groups: list[Group]) -> None:
        """Curricula look at what was learned; this one does not."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


def share(steps: int, n: int, k: int, K: int) -> int:
    """How many prompts of task k the first `steps` steps have had: n // K each step, the n % K left over in turn."""
    extra = n % K
    turns = steps * extra  # left-over places given out so far, round robin over the tasks
    return steps * (n // K) + turns // K + (k < turns % K)
