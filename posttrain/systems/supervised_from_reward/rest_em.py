"""ReST-EM: sample many solutions, keep the right ones, fine-tune the base model on them, and sample again from what came out."""

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


def generate(context: Context, questions: int, n: int, most: int, least: float) -> None:
    """The E-step: n answers to every question; of the right ones, each text once, at most so many to a question."""
    groups = scored(context, prompts := questions_of(context, questions), n, "rest-em", round_of(context))
    rows = [{"question": k, "answers": good(g.rollouts, least, most)} for k, g in enumerate(groups)]
    keep(context, rows, len(prompts), n, least)


@plan(paper="arXiv:2312.06585", title="ReST-EM")
def rest_em(
    rounds: int = 2, n: int = 32, most: int = 10, questions: int = 0, epochs: float = 1, least: float = 1.0
) -> Plan:  # fmt: skip
    """ReST-EM: in each round n answers to every question are sampled, and the *base* model is fine-tuned on the right ones.

    E: D = {(x, y) : y ~ pi, r(x, y) >= least};  M: theta = argmax over D of sum log pi(y | x), beginning with the base model
    most: answers to one question that are kept, so that easy questions do not prevail (0: all). questions: the first so many (0: all; 500 where
    the task never ends). epochs: passes over the kept answers.

    Departures: the paper samples with the 40 likeliest tokens at temperature 0.7 (`--sampling.top-k 40 --sampling.temperature 0.7`) and with
    few-shot prompts, and stops fine-tuning by a validation set; here at temperature 1, without examples, for a fixed number of epochs. That equal
    texts are kept once is this package's. The base model as the start of every M-step is the paper's; 32 answers, 10 to a question at most, its sampling and its rounds (3 on
    MATH, the best at 1 to 2 on APPS) are second-hand and were not checked against its text.
    """
    if rounds < 1 or n < 1 or most < 0 or questions < 0 or epochs <= 0:
        raise UserError(
            f"got rounds={rounds}, n={n}, most={most}, questions={questions}, epochs={epochs}; it takes 1 round, 1 answer and some epochs"
        )
    env = collected()
    parts = (
        Do("generate", lambda context: generate(context, questions, n, most, least)),
        FROM_BASE,
        Phase("sft", imitating, epochs_of(env, epochs), env, rewards=written),
    )
    return Plan((TO_BASE, Cycle(parts, times=rounds)), ready=graded)
