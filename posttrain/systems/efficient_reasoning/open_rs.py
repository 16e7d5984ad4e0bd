"""Open-RS: GRPO for a small model on a small budget: easy and hard questions mixed, a cosine of the length and a reward for
the form, and a look at the accuracy after every round, because the best checkpoint comes early."""

from __future__ import annotations

from statistics import median

from torch import Tensor

from posttrain.core.batch import Batch
from posttrain.core.credit import component, on_last
from posttrain.core.errors import UserError
from posttrain.core.part import settled
from posttrain.core.plan import Context, Phase, Plan, plan
from posttrain.core.protocols import Environment
from posttrain.core.registry import reward, shaping
from posttrain.core.selfcheck import problems
from posttrain.core.types import Prompt
from posttrain.environments.base import size_of
from posttrain.environments.mapped import each
from posttrain.environments.school import TASKS
from posttrain.environments.task import task
from posttrain.methods.grpo import grpo
from posttrain.methods.settings import asked_rewards, asked_task
from posttrain.rewards.runtime.score import RewardSum
from posttrain.rewards.shaping.cosine_length import cosine_length
from posttrain.rollouts.sample import sample
from posttrain.runs.build import said_first

# ---- what answers are worth


@reward(name="closed_once", title="Open-RS: form", paper="arXiv:2503.16219", system="open-rs")
def closed_once(prompt: Prompt, text: str) -> float:
    """Open-RS's form: 1 where </think> stands exactly once on a line of its own, else 0.

    The tag that opens the thought is not asked for: the prompt has it (R1-Distill's template).
    """
    return float(text.count("\n</think>\n") == 1)


def validate() -> list[str]:
    """Closed once on its own line; not in a line, not twice."""
    prompt = Prompt.text("form", "2+2?", "4")
    good = "<think>\nso\n</think>\n4"
    return problems(closed_once, [(prompt, good, "<think>so</think>4"), (prompt, good, good + "\n</think>\n4")])


@shaping(name="open_rs", title="Open-RS", paper="arXiv:2503.16219", base="cosine_length", reads=("reward_BT",),
         follows=(("longest", "max_tokens"),))  # fmt: skip
def cosine_and_form(
    batch: Batch, longest: int | None = None, cosine: float = 2.0, form: float = 1.0, outcome: str = "reward",
    format: str = "",
) -> Tensor:  # fmt: skip
    """Open-RS: a cosine of the length, from 1 to 1/2 when right and from -1 to -1/2 when wrong, and a reward for the form.

    R = cosine c + form f;  c = +-(3/4 + 1/4 cos(pi n / longest)), + when the outcome is above 1/2
    outcome and format name components of the reward; without a format f = 0. longest is the run's max_tokens if not given. The
    limit itself is not punished.
    """
    longest = settled(longest, "longest", "open_rs")
    c_BT = cosine_length(batch, longest=longest, right=(1.0, 0.5), wrong=(-1.0, -0.5), over=None, outcome=outcome)
    worth_B = cosine * c_BT.sum(-1)
    return on_last(worth_B + form * component(batch, format) if format else worth_B, batch)


# ---- easy and hard questions


class Mixed(Environment):
    """Every second training question from an easier task; test questions are those of the first task."""

    def __init__(self, hard: Environment, easy: Environment) -> None:
        self.hard, self.easy, self.name = hard, easy, f"{hard.name}+{easy.name}"

    def prompt(self, index: int, split: str = "train") -> Prompt:
        if split != "train":
            return self.hard.prompt(index, split)
        return (self.easy if index % 2 else self.hard).prompt(index // 2, split)

    def size(self, split: str) -> int:
        both = [size_of(e, split) for e in (self.hard, self.easy)]
        return both[0] if split != "train" else 2 * min(both)

    @property
    def graded(self) -> bool:
        return self.hard.graded and self.easy.graded

    def grade(self, prompt: Prompt, text: str) -> float:
        return float(self.hard.grade(prompt, text))


def by_difficulty(env: Environment, column: str) -> Environment:
    """Every second question from the easier half: a column of numbers (more is harder), or of `easy` and other words."""
    values = [env.prompt(i, "train").info.get(column) for i in range(size_of(env, "train"))]
    numbers = [float(v) for v in values if isinstance(v, (int, float))]
    middle = median(numbers) if len(numbers) == len(values) and numbers else None

    def easy(p: Prompt) -> bool:
        value = p.info.get(column)
        return (
            float(value) <= middle if middle is not None and value is not None else str(value).strip().lower() == "easy"
        )

    def half(want: bool) -> Environment:
        return each(env, lambda p, split: p if split != "train" or easy(p) == want else None)

    parts = [half(False), half(True)]
    if not all(size_of(part, "train") for part in parts):
        raise UserError(
            f"{env.name}: all rows are as hard by their column {column!r}; write numbers, or easy and hard, or turn mixing off: --plan.easy None"
        )
    return Mixed(parts[0], parts[1])


# ---- the plan


@plan(paper="arXiv:2503.16219", title="Open-RS", uses=("task", "reward"))
def open_rs(rounds: int = 5, steps: int = 10, easy: int | str | None = "difficulty", cosine: bool = True) -> Plan:
    """Open-RS: GRPO with 6 answers per question, the accuracy on held-out questions after every round; the best weights are kept.

    R = 2 c(length, right) + 1 [form];  without cosine: [right] + [form];  right: the reward of the settings is above 1/2 (the
    task's own grade without one);  form: </think> once, on its own line
    easy: where every second question comes from: a column that says how hard rows are (numbers, or easy and hard), a file of
    easier questions, or a level of a school task (1 unless given). A file without that column is taken as it is, as the
    authors' 7,000 rows, which are a mixture already. None: no mixing.

    Departures: the paper trains R1-Distill-1.5B on 7,000 questions for 500 steps of up to 3,584 tokens at temperature 0.7 and 1e-6, falling
    by a cosine to a tenth (`--schedule cosine --min-lr 1e-7`); here 5 rounds of 10 steps at the run's settings. The cosine's
    window is the run's `--sampling.max-tokens` in tokens; the authors' code divides characters by it. The authors' system message is not
    added: `--system`. 6 answers, the weights 2 and 1, the values of the cosine, the form and GRPO's KL are the authors'.
    """
    if rounds < 1 or steps < 1:
        raise UserError(f"got rounds={rounds}, steps={steps}; it takes 1 of each at least")
    shaped = (cosine_and_form.but(outcome="right", format="form"),) if cosine else ()
    method = grpo.but(
        name="open-rs", title="Open-RS", paper="arXiv:2503.16219", doc=__doc__, rollout=sample.but(n=6), shaping=shaped
    )

    def env(context: Context) -> Environment:
        return mixed(context, easy)

    def ready(context: Context) -> None:
        if context.config.eval_every not in (0, steps):
            raise UserError("open-rs measures after every round; say how many steps a round has with --plan.steps")
        env(context)

    def rewards(context: Context) -> RewardSum:
        return RewardSum(
            [("right", asked_rewards(context), 1.0), ("form", closed_once, 1.0)], context.config.reward_timeout
        )

    def note(context: Context) -> None:
        curve = {f"step {at + 1}": value for at, value in context.run.store.series("accuracy", "grpo")}
        if curve:
            context.notes["accuracy"] = curve
            context.notes["best_round"] = max(curve, key=lambda k: curve[k])

    learn = Phase("grpo", method, rounds * steps, env, rewards=rewards, changes={"eval_every": steps}, after=note)
    return Plan((learn,), ready=ready)


def mixed(context: Context, easy: int | str | None) -> Environment:
    """The task of the settings, with every second question from where `easy` says."""
    hard: Environment = asked_task(context)
    c = context.config
    school = "env" not in context.given and c.task.removeprefix("school/").replace("-", "_") in TASKS
    if easy is None:
        return hard
    if school:
        if isinstance(easy, str) and easy != "difficulty":
            raise UserError(
                f"--plan.easy is {easy!r}, and the questions of {hard.name} have levels, no columns; give the level of easier ones: --plan.easy 1"
            )
        level = easy if isinstance(easy, int) else 1
        return Mixed(hard, said_first(task(c.task, level=level, think=c.think, data=c.data or None), c))
    if isinstance(easy, int):
        raise UserError(
            f"{hard.name} has no levels; name a column or a file of easier questions: --plan.easy difficulty"
        )
    if easy in hard.prompt(0, "train").info:
        return by_difficulty(hard, easy)
    if easy == "difficulty":
        return hard
    return Mixed(hard, said_first(task(easy, think=c.think, data=c.data or None), c))
