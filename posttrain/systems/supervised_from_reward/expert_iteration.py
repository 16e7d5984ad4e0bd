"""Expert iteration: the expert is the policy with many tries and a grader; what it finds is imitated by a fresh copy of the base model."""

from __future__ import annotations

from posttrain.core.errors import UserError
from posttrain.core.plan import Context, Cycle, Do, Phase, Plan, plan, round_of
from posttrain.methods.from_pairs import epochs_of
from posttrain.methods.self_training import (
    FROM_BASE,
    TO_BASE,
    collected,
    good,
    graded,
    imitating,
    keep,
    questions_of,
    scored,
)
from posttrain.methods.settings import written


def explore(context: Context, questions: int, n: int, least: float) -> None:
    """n tries at every question, as the policy is; each right text once."""
    groups = scored(context, prompts := questions_of(context, questions), n, "expert", round_of(context))
    rows = [{"question": k, "answers": good(g.rollouts, least)} for k, g in enumerate(groups)]
    keep(context, rows, len(prompts), n, least)


@plan(paper="arXiv:2403.04642", title="Expert iteration")
def expert_iteration(rounds: int = 3, n: int = 8, questions: int = 0, epochs: float = 1, least: float = 1.0) -> Plan:
    """Expert iteration: every right answer found so far, each once, teaches a fresh copy of the base model, which then tries again.

    D_i = D_{i-1} + {(x, y) : y ~ pi_{i-1}, r(x, y) >= least};  pi_i = SFT of the base model on D_i
    questions: the first so many (0: all; 500 where the task never ends). epochs: passes over all that was found.

    Departures: the name is of arXiv:1705.08439, whose expert is a tree search; this is the form for language models in the cited study, where the
    expert is sampling and a grader. It samples 96 answers to a question at temperature 1; here 8 (`--plan.n 96`). 3 rounds and
    1 epoch are this package's. That all rounds are pooled, and that a round begins with the base model, was not checked against its text. Its SFT data,
    where there are any, are not pooled with the answers: give a model that was trained on them.
    """
    if rounds < 1 or n < 1 or questions < 0 or epochs <= 0:
        raise UserError(
            f"got rounds={rounds}, n={n}, questions={questions}, epochs={epochs}; it takes 1 round, 1 answer and some epochs"
        )
    env = collected(every=True)
    parts = (
        Do("explore", lambda context: explore(context, questions, n, least)),
        FROM_BASE,
        Phase("sft", imitating, epochs_of(env, epochs), env, rewards=written),
    )
    return Plan((TO_BASE, Cycle(parts, times=rounds)), ready=graded)
