"""Open-RS: GRPO for a small model on a small budget: easy and hard questions mixed, a cosine of the length and a reward for
the form, and a look at the accuracy after every round, because the best checkpoint comes early."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from posttrain.core.batch import Batch
from posttrain.core.credit import component, on_last
from posttrain.core.errors import UserError
from posttrain.core.plan import Context, Cycle, Do, Phase, Plan, plan
from posttrain.core.protocols import Environment
from posttrain.core.registry import shaping
from posttrain.core.types import Prompt
from posttrain.environments.task import task
from posttrain.evals.accuracy import accuracy
from posttrain.methods.grpo import grpo
from posttrain.rewards.rules.format import format
from posttrain.rewards.rules.task import task as own_grade
from posttrain.rewards.runtime.score import RewardSum
from posttrain.rewards.shaping.cosine_length import cosine_length
from posttrain.rollouts.sample import sample


@shaping(name="open_rs", title="Open-RS", paper="arXiv:2503.16219", base="cosine_length", reads=("reward_BT",))
def cosine_and_form(
    batch: Batch, longest: int = 64, cosine: float = 2.0, form: float = 1.0, outcome: str = "reward", format: str = "",
) -> Tensor:  # fmt: skip
    """Open-RS: a cosine of the length, from 1 to 1/2 when right and from -1 to -1/2 when wrong, and a reward for the form.

    R = cosine c + form f;  c = +-(3/4 + 1/4 cos(pi n / longest)), + when the outcome is above 1/2
    outcome and format name components of the reward; without a format f = 0. The limit itself is not punished.
    """
    c_BT = cosine_length(batch, longest=longest, right=(1.0, 0.5), wrong=(-1.0, -0.5), over=None, outcome=outcome)
    worth_B = cosine * c_BT.sum(-1)
    return on_last(worth_B + form * component(batch, format) if format else worth_B, batch)


class Mixed(Environment):
    """Every second training question from an easier task; test questions are those of the first task."""

    def __init__(self, hard: Environment, easy: Environment) -> None:
        self.hard, self.easy, self.name = hard, easy, f"{hard.name}+{easy.name}"

    def prompt(self, index: int, split: str = "train") -> Prompt:
        if split != "train":
            return self.hard.prompt(index, split)
        return (self.easy if index % 2 else self.hard).prompt(index // 2, split)

    def grade(self, prompt: Prompt, text: str) -> float:
        return float(self.hard.grade(prompt, text))


@plan(paper="arXiv:2503.16219", title="Open-RS", uses=("task",))
def open_rs(rounds: int = 5, steps: int = 10, easy: int | None = 1, cosine: bool = True, longest: int = 64) -> Plan:
    """Open-RS: rounds of GRPO with 6 answers per question, accuracy measured after each; the summary names the best.

    R = 2 c(length, right) + 1 [form];  without cosine: [right] + [form]
    easy: the level of every second question (None: no mixing). longest: the run's max_tokens.

    Departures: the paper trains R1-Distill-1.5B on 7,000 questions for 500 steps with answers of up to 3,584 tokens
    at temperature 0.7; here 5 rounds of 10 steps at the run's settings, and the cosine's window is 64 tokens until
    `--plan.longest` is set to the run's `--sampling.max-tokens`. Easy questions come from a level of a school task: a
    file needs `--plan.easy None`, and then is not mixed. The form is one `<think>` and one `</think>` in the answer;
    the paper's prompt opens the thought, and such answers earn nothing for the form here. `--reward` is ignored. The
    best checkpoint is named, not kept. 6 answers, the weights 2 and 1 and the values of the cosine are the authors'.
    """
    if rounds < 1 or steps < 1:
        raise UserError(f"got rounds={rounds}, steps={steps}; it takes 1 of each at least")
    shaped = (cosine_and_form.but(longest=longest, outcome="task", format="format"),) if cosine else ()
    method = grpo.but(
        name="open-rs", title="Open-RS", paper="arXiv:2503.16219", doc=__doc__, rollout=sample.but(n=6), shaping=shaped
    )

    def level(context: Context, at: int | None) -> Any:
        c = context.config
        return task(c.task, level=at, think=c.think, data=c.data or None)

    def env(context: Context) -> Any:
        hard = level(context, context.config.level)
        return hard if easy is None else Mixed(hard, level(context, easy))

    def rewards(context: Context) -> RewardSum:
        graded = own_grade.but(environment=env(context))
        return RewardSum([("task", graded, 1.0), ("format", format, 1.0)], context.config.reward_timeout)

    def look(context: Context) -> None:
        c = context.config
        found = accuracy(context.role("policy"), env(context), c.eval_problems, c.sampling)
        curve = context.notes.setdefault("accuracy", {})
        curve[context.phase] = found.accuracy
        context.notes["best"] = max(curve, key=lambda k: curve[k])

    learn = Cycle((Phase("grpo", method, steps, env, rewards=rewards), Do("look", look)), rounds)
    return Plan((Do("start", look), learn))
