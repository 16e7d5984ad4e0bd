"""ReST: grow a data set by sampling, then improve on it several times with a rising bar; the answers are used again, not sampled anew."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from posttrain.core.answers import demonstration
from posttrain.core.errors import UserError
from posttrain.core.plan import Context, Cycle, Do, Phase, Plan, plan, round_of
from posttrain.core.types import Group
from posttrain.environments.language.listed import Listed
from posttrain.methods.from_pairs import epochs_of
from posttrain.methods.self_training import (
    collected,
    good,
    graded,
    imitating,
    keep,
    questions_of,
    scored,
)
from posttrain.methods.settings import asked_rewards, written

NONE = float("-inf")


def grow(context: Context, questions: int, n: int, data: bool) -> None:
    """n answers of the policy to every question with what they earned, and the data set's own answer where there is one."""
    prompts = questions_of(context, questions)
    groups = scored(context, prompts, n, "rest", round_of(context))
    shown = [(k, text) for k, p in enumerate(prompts) if data and (text := demonstration(p)) is not None]
    given = [Group(prompts[k], [context.role("policy").written(prompts[k], text)]) for k, text in shown]
    if given:
        asked_rewards(context).score(given)
    for (k, _), g in zip(shown, given, strict=True):
        groups[k] = replace(groups[k], rollouts=[*groups[k].rollouts, *g.scored])
    rows = [{"question": k, "answers": good(g.rollouts, NONE)} for k, g in enumerate(groups)]
    keep(context, rows, len(prompts), n, NONE)


def above(bar: float) -> Callable[[Context], Listed]:
    """The present round's answers that earned more than the bar."""

    def env(context: Context) -> Listed:
        whole = collected()(context)
        kept = tuple(p for p in whole.train if p.info["answers"][0]["reward"] > bar)
        if not kept:
            most = max(p.info["answers"][0]["reward"] for p in whole.train)
            raise UserError(
                f"no answer earned more than {bar:g}, the best {most:g}; give lower thresholds, such as --plan.thresholds '(0.0, 0.5)'"
            )
        return replace(whole, train=kept)

    return env


def improve(i: int, bar: float, epochs: float) -> Phase:
    """The policy as it is by now learns from answers above one bar."""
    env = above(bar)
    return Phase(f"improve-{i}", imitating, epochs_of(env, epochs), env, rewards=written)


@plan(paper="arXiv:2308.08998", title="ReST")
def rest(
    rounds: int = 1, n: int = 8, thresholds: tuple[float, ...] = (0.0, 0.7, 0.8, 0.9), questions: int = 0, epochs: float = 1, data: bool = True
) -> Plan:  # fmt: skip
    """ReST: answers are sampled once (Grow), and learned from in several steps (Improve), each with a higher bar than the one before.

    Grow: D = data + {(x, y) : y ~ pi};  Improve i: minimise -sum log pi(y | x) over those of D with r(x, y) > threshold_i, from where the last step ended
    rounds: Grow steps. thresholds: one Improve step for each, rising; in units of the reward. data: whether the rows' own answers are in D.
    questions: the first so many (0: all; 500 where the task never ends). epochs: passes of each Improve step.

    Departures: the reward model must be given (`--reward runs/NAME`, or a folder); with the task's own grade of 0 and 1 every bar keeps the
    right answers alone, and ReST is imitation of these. The paper stops a step when a validation reward falls, and lowers the rate from step to
    step; here each is one epoch at one rate (`--lr`). Its thresholds are for rewards scaled to 0 to 1; these four, one Grow step and 8 answers
    are this package's, as the paper's sequences could not be read here. Of its losses only the first, imitation (BC), is here, which it finds the best.
    """
    if rounds < 1 or n < 1 or questions < 0 or epochs <= 0:
        raise UserError(
            f"got rounds={rounds}, n={n}, questions={questions}, epochs={epochs}; it takes 1 round, 1 answer and some epochs"
        )
    if not thresholds or any(a >= b for a, b in zip(thresholds, thresholds[1:], strict=False)):
        raise UserError(f"thresholds are {thresholds}; give one or more, each higher than the one before")
    steps: list[Any] = [improve(i + 1, bar, epochs) for i, bar in enumerate(thresholds)]
    return Plan(
        (Cycle((Do("grow", lambda context: grow(context, questions, n, data)), *steps), times=rounds),), ready=graded
    )
