"""QwenLong-L1.5 as a whole: documents that grow by stages, then a reader with a memory, then both in one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from posttrain.core.errors import UserError
from posttrain.core.method import Method
from posttrain.core.plan import Context, Copy, Phase, Plan, plan
from posttrain.environments.documents import documents
from posttrain.evals.accuracy import accuracy
from posttrain.methods.qwenlong_l15 import qwenlong_l15
from posttrain.rollouts.memory import memory
from posttrain.weights.soup import blend


@plan(paper="arXiv:2512.12967", title="QwenLong-L1.5, in stages")
def qwenlong_stages(
    steps: int = 20, parts: tuple[int, ...] = (2, 4, 8), memory_parts: int = 16, hops: int = 1, notes: int = 32, alpha: float = 0.5
) -> Plan:  # fmt: skip
    """QwenLong-L1.5, in stages: AEPO on longer and longer documents read at once, then on longer ones still, read part by part
    with a memory (MemAgent); the two are merged and trained once more on the longest that are read at once.

    theta = alpha theta_memory + (1 - alpha) theta_single
    steps: of each phase. parts, memory_parts: of the documents (4 facts each, `hops` relations to follow), which are drawn: --task is
    not asked. notes: tokens of the memory. The paper's questions come from real documents, and a judge grades some of them.
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
    options = {
        "steps": steps,
        "parts": parts,
        "memory_parts": memory_parts,
        "hops": hops,
        "notes": notes,
        "alpha": alpha,
    }
    return Plan(
        "qwenlong-stages",
        phases,
        "QwenLong-L1.5, in stages",
        "arXiv:2512.12967",
        qwenlong_stages.__doc__ or "",
        options,
    )
