"""External scorer as reward: GRPO on what a service over HTTP says of each answer, held near the start by the KL."""

from __future__ import annotations

from posttrain.core.errors import UserError
from posttrain.core.plan import Context, Do, Phase, Plan, plan
from posttrain.losses.regularisers.kl import kl
from posttrain.methods.grpo import grpo
from posttrain.methods.settings import asked_rewards, asked_task

scored_grpo = grpo.but(
    name="authormist", title="External scorer as reward (AuthorMist)", paper="arXiv:2503.08716", doc=__doc__,
    terms=(kl.but(coef=0.001, kind="k3"),),
)  # fmt: skip


@plan(paper="arXiv:2503.08716", title="External scorer as reward (AuthorMist)")
def authormist(steps: int = 60, beta: float = 0.001) -> Plan:
    """External scorer as reward: GRPO on what a service says of each answer, with a small KL to the start.

    The neutral mechanism of AuthorMist, for any scoring service (readability, style, toxicity) that you may call:
    posttrain run authormist --reward "http-scorer(url='http://localhost:8000/score')"
    It must be named: the task's own grade is no external scorer.

    Departures: only the neutral mechanism is here, with a scorer of yours; the paper's service, its texts and its check
    of the meaning are not. KL 0.001 is in the paper's range. 8 answers per prompt are `grpo`'s.
    """
    if steps < 1 or beta < 0:
        raise UserError(f"got steps={steps}, beta={beta}; it takes 1 step, and a KL price of 0 or more")

    def settings(context: Context) -> None:
        if not context.config.reward:
            told = "--reward \"http-scorer(url='http://localhost:8000/score')\" or --reward mine.py:score"
            raise UserError(f"this learns from a scorer outside of the task; name it: {told}")

    method = scored_grpo.but(terms=(kl.but(coef=beta, kind="k3"),))
    return Plan((Do("settings", settings), Phase("grpo", method, steps, asked_task, rewards=asked_rewards)))
