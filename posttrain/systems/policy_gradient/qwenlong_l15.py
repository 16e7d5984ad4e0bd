"""QwenLong-L1.5: RL over many kinds of tasks at once: as many prompts of each, credit in the spread of each task's rewards,
and blame only while the policy is not too undecided (AEPO). Give it a mixture: `--task "arithmetic + counting"`.

The plan `qwenlong-stages` is the whole recipe: documents that grow by stages, a reader with a memory (the rollout `memory`), and
both merged.

Departures: the paper's entropy is that of the whole vocabulary, averaged by answer; here it is the mean of -logp of
the sampled tokens. The band 0.2 to 0.5 is this package's (the paper's plot lies within 0.10 and 0.30): set it around
the entropy that training starts with. The loss is a mean over the batch's tokens, the paper's over each group's, and
blamed answers that are left out stay in the denominator. It samples 128 prompts per step at temperature 0.7, here 16
at 1; one update per batch is as in the paper. A file must have a column `task` to balance by.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from posttrain.advantages.group import broadcast_to_tokens, group_std
from posttrain.advantages.whiten import group_centre
from posttrain.core.batch import Batch
from posttrain.core.errors import UserError
from posttrain.core.method import Method, method
from posttrain.core.plan import Context, Copy, Phase, Plan, plan
from posttrain.core.protocols import Environment, Policy
from posttrain.core.registry import Part, advantage, prompt_sampler
from posttrain.core.types import Group, Prompt
from posttrain.environments.base import size_of
from posttrain.environments.documents import documents
from posttrain.evals.accuracy import accuracy
from posttrain.losses.aggregate import token_mean
from posttrain.methods.grpo import grpo
from posttrain.prompts.uniform import epoch_order, uniform
from posttrain.rollouts.memory import memory
from posttrain.weights.soup import blend

# ---- which prompts


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

    def rows(self, env: Environment) -> dict[str, list[int]]:
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


# ---- who gets the credit


@advantage(
    title="Task-specific advantage",
    paper="arXiv:2512.12967",
    base="lite_ppo",
    system="qwenlong-l15",
    laws=("shift_invariant", "scale_invariant", "sums_to_zero"),
    reads=("group_B", "reward_BT"),
)
def task_std(batch: Batch, eps: float = 1e-4) -> Tensor:
    """Task-specific advantage (QwenLong-L1.5): compare with siblings, measure in the spread of the task's rewards.

    A_i = (R_i - mean_group R) / (std_task R + eps);  std: unbiased, over the valid answers of the same task in the batch
    A task whose rewards are small learns as fast as one whose rewards are large. `Prompt.info["task"]` names the task;
    without names all are one task, which is Lite PPO's credit.
    """
    group_B, valid_B = batch["group_B"], batch.valid_B
    task_B = batch["task_B"] if "task_B" in batch else torch.zeros_like(group_B)
    credit_B = group_centre(batch.returns_B, group_B, valid_B)
    return broadcast_to_tokens(credit_B / (group_std(batch.returns_B, task_B, valid_B) + eps), batch)


@advantage(
    title="AEPO",
    paper="arXiv:2512.12967",
    base="task_std",
    system="qwenlong-l15",
    reads=("group_B", "old_logp_BT", "reward_BT"),
)
class aepo:
    """AEPO (QwenLong-L1.5): blame is left out while the policy is too undecided, and comes back once it is too sure.

    A_i < 0 -> 0 from when H > high until H < low;  H: mean of -old_logp over the batch's tokens, its entropy in nats
    Praise alone sharpens, blame spreads, so H is held near [low, high]. Credit is `task_std`'s. low=0, high=inf never
    gates; high=0 always does. The paper's limits are its model's: set them around the entropy that training starts with.
    """

    def __init__(self, low: float = 0.2, high: float = 0.5) -> None:
        if not 0 <= low <= high:
            raise UserError(f"got low={low}, high={high}; the entropy is kept in a band, 0 <= low <= high")
        self.low, self.high, self.gated = low, high, False

    def __call__(self, batch: Batch) -> Tensor:
        adv_BT: Tensor = task_std(batch)
        own_BT = batch.mask_BT > 0
        entropy = -float(batch["old_logp_BT"][own_BT].mean()) if bool(own_BT.any()) else 0.0
        if entropy > self.high:
            self.gated = True
        elif entropy < self.low:
            self.gated = False
        return torch.where(adv_BT < 0, 0.0, adv_BT) if self.gated else adv_BT

    def state_dict(self) -> dict[str, Any]:
        return {"gated": self.gated}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.gated = bool(state["gated"])


# ---- the method

qwenlong_l15 = method(
    grpo.but(
        name="qwenlong-l15", title="QwenLong-L1.5 (AEPO)", paper="arXiv:2512.12967", doc=__doc__,
        prompts=task_balanced, advantage=aepo, aggregate=token_mean, terms=(),
    )
)  # fmt: skip


# ---- the plan


@plan(paper="arXiv:2512.12967", title="QwenLong-L1.5, in stages", uses=())
def qwenlong_stages(
    steps: int = 20, parts: tuple[int, ...] = (2, 4, 8), memory_parts: int = 16, hops: int = 1, notes: int = 32, alpha: float = 0.5
) -> Plan:  # fmt: skip
    """QwenLong-L1.5, in stages: AEPO on longer and longer documents read at once, then on longer ones still, read part by part
    with a memory (MemAgent); the two are merged and trained once more on the longest that are read at once.

    theta = alpha theta_memory + (1 - alpha) theta_single
    steps: of each phase. parts, memory_parts: of the documents (4 facts each, `hops` relations to follow), which are drawn: --task is
    not asked. notes: tokens of the memory.

    Departures: the paper's questions come from real documents of up to 120,000 tokens, and a judge grades some of
    them; here documents of a few drawn facts are made, so that `--task` and `--reward` are ignored. The two policies
    are merged linearly, in the paper by SCE; its sampling of past failures between the stages is not here. The rest
    departs as `qwenlong-l15` does.
    """
    if not parts or steps < 1:
        raise UserError(f"got parts={parts}, steps={steps}; there is at least one stage of at least one step")

    def env(count: int) -> Callable[[Context], Any]:
        return lambda context: documents(count, hops=hops, think=context.config.think, seed=context.config.seed)

    def merged(context: Context) -> Any:
        policy = context.role("policy").clone()
        blend(policy, context.role("single"), alpha)
        return policy

    def stage(name: str, count: int, method: Method = qwenlong_l15, **more: Any) -> Phase:
        def after(context: Context) -> None:
            c, rollout = context.config, method.rollout if method.rollout.card.at_test else None
            found = accuracy(context.role("policy"), env(count)(context), c.eval_problems, c.sampling, rollout=rollout)
            context.notes.setdefault("accuracy", {})[name] = found.accuracy

        return Phase(name, method, steps, env(count), after=after, **more)

    phases = (
        *(stage(f"read-{count}", count) for count in parts),
        Copy("policy", "single"),
        stage("memory", memory_parts, qwenlong_l15.but(rollout=memory.but(reading=(1, notes)))),
        stage("merged", parts[-1], make=merged),
    )
    return Plan(phases)
