"""AdaCoT: learn when to think: imitate both modes, then PPO with penalties for thoughts missing and thoughts too many;
where all questions need a thought, the token that decides is left out of the loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from posttrain.advantages.gae import gae
from posttrain.core.batch import Batch
from posttrain.core.errors import UserError
from posttrain.core.plan import Context, Copy, Do, Phase, Plan, plan
from posttrain.core.protocols import Environment
from posttrain.core.registry import advantage, reward
from posttrain.core.selfcheck import problems
from posttrain.core.thinking import thought_of
from posttrain.core.types import Prompt
from posttrain.environments.base import size_of
from posttrain.environments.mapped import each
from posttrain.environments.school import TASKS
from posttrain.environments.task import task
from posttrain.environments.worked import with_steps
from posttrain.evals.accuracy import answers, held_out
from posttrain.methods.from_pairs import has_reward
from posttrain.methods.ppo import ppo
from posttrain.methods.settings import asked_rewards, asked_task
from posttrain.methods.sft import sft
from posttrain.rewards.rules.thinks import thinks
from posttrain.rewards.runtime.score import RewardSum
from posttrain.rewards.runtime.scorer import Prescored
from posttrain.rewards.scorers.spec import build_scorer
from posttrain.runs.build import said_first

# ---- what answers are worth
# Thinking costs where it was not needed, and so does not thinking where it was.


@reward(name="adacot", title="AdaCoT", paper="arXiv:2505.11896")
def mode_penalty(prompt: Prompt, text: str, miss: float = 0.3, over: float = 0.1, form: float = 1.0) -> float:
    """AdaCoT: penalties for a thought that was missing, for one too many, and for broken tags; add it to what is right.

    r = -miss [needed and no thought] - over [not needed and a thought] - form [tags broken]
    `prompt.info["cot"]` says whether the question needs a thought. miss and over move along the frontier of accuracy
    against thinking; the paper names no single values.
    """
    if "cot" not in prompt.info:
        raise ValueError(f"prompt {prompt.id!r} does not say whether it needs a thought; give it info['cot']")
    thought = bool(thinks(prompt, text))
    paid = miss * (bool(prompt.info["cot"]) and not thought) + over * (not prompt.info["cot"] and thought)
    return 0.0 - paid - form * broken(text)


def broken(text: str) -> bool:
    """Other than no tags or one pair of them with an answer behind it."""
    if "<think>" not in text and "</think>" not in text:
        return not text.strip()
    before, _, rest = text.partition("<think>")
    _, closed, answer = rest.partition("</think>")
    return bool(before.strip()) or not closed or not answer.strip() or "<think>" in rest or "</think>" in answer


def validate() -> list[str]:
    """The mode that was needed costs nothing, the other does; broken tags do in any case."""
    hard, easy = Prompt.text("h", "17*23?", "391", cot=True), Prompt.text("e", "2+2?", "4", cot=False)
    right = [(hard, "<think>a</think>391", "<think></think>391"), (easy, "<think></think>4", "<think>a</think>4")]
    return problems(mode_penalty, [*right, (easy, "4", "</think>4")], full=0.0)


# ---- who gets the credit


@advantage(
    name="adacot",
    title="Selective loss masking",
    paper="arXiv:2505.11896",
    base="gae",
    system="adacot",
    reads=("old_value_BT", "reward_BT", "thought_BT"),
    provides=("return_BT",),
)
def without_the_decision(
    batch: Batch, at: int | None = None, gamma: float = 1.0, lam: float = 0.95, whiten: bool = True
) -> tuple[Tensor, Tensor]:
    """Selective loss masking (AdaCoT): GAE, but the token that decides whether to think gets no credit.

    A_t = 0 for t = the policy's first own token after <think>;  A_t = GAE otherwise
    That token is found in the text, however many tokens a tag has and whoever wrote it; an answer without tags has none.
    at: the policy's own token of that number, counted from 0, instead. For stages whose questions all need the same mode:
    they would teach to choose it always. The critic still learns there; without credit a policy loss has no gradient.
    """
    if at is not None and at < 0:
        raise UserError(f"at is {at}; it counts the policy's own tokens from 0")
    adv_BT, return_BT = gae(batch, gamma=gamma, lam=lam, whiten=whiten)
    later_BT = batch.mask_BT > 0 if at is not None else (batch.mask_BT > 0) & (batch["thought_BT"] > 0)
    number_BT = torch.where(later_BT, later_BT.cumsum(-1) - 1, -1)
    return torch.where(number_BT == (at or 0), 0.0, adv_BT), return_BT


# ---- questions that say whether they need a thought

_YES, _NO = ("1", "true", "yes", "think", "cot", "hard"), ("0", "false", "no", "direct", "none", "easy")


def needed(value: Any) -> bool | None:
    """What a label says; None where it says nothing that is understood."""
    word = str(value).strip().lower()
    return True if word in _YES else False if word in _NO else None


def labelled(prompt: Prompt, label: str) -> Prompt:
    """The prompt with `cot`, and with an answer to imitate where it has one: thought and answer, or no thought and the answer."""
    cot = needed(prompt.info.get(label))
    if cot is None:
        raise UserError(
            f"row {prompt.id}: {label} is {prompt.info.get(label)!r:.40}; it says whether the question needs a thought: true or false"
        )
    told = str(prompt.info.get("demonstration") or "")
    found = thought_of(told)
    answer = told[found.answer :] if found.closed else str(prompt.answer)
    steps = prompt.info.get("steps") or ("" if found.opened else told)
    imitated = f"<think></think>{answer}"
    if cot:
        imitated = f"<think>{steps}</think>{answer}" if steps else ""
        imitated = told if found.closed and not found.empty else imitated
    return replace(prompt, info=prompt.info | {"cot": cot, "demonstration": imitated})


class Labelled(Environment):
    """Hard questions, which need a thought, and (unless hard_only) every second time an easy one, which needs none."""

    def __init__(self, hard: Environment, easy: Environment, hard_only: bool = False) -> None:
        self.hard, self.easy, self.hard_only, self.name = hard, easy, hard_only, f"{hard.name}+{easy.name}"

    def prompt(self, index: int, split: str = "train") -> Prompt:
        if self.hard_only or index % 2 == 0:
            p = with_steps(self.hard.prompt(index if self.hard_only else index // 2, split))
            return replace(p, info=p.info | {"cot": True})
        p = self.easy.prompt(index // 2, split)
        return replace(p, info=p.info | {"cot": False, "demonstration": f"<think></think>{p.answer}"})

    def grade(self, prompt: Prompt, text: str) -> float:
        return float(self.hard.grade(prompt, text))


def questions(env: Environment, label: str, hard_only: bool, imitate: bool) -> Environment:
    """The rows of a task with their labels; those that need a thought alone, or, to imitate, those with one to imitate."""
    first = env.prompt(0, "train")
    if label not in first.info:
        raise UserError(
            f"{env.name} does not say which questions need a thought; give its rows a column {label!r} of true and false, or "
            "name yours: --plan.label COLUMN"
        )

    def change(p: Prompt, split: str) -> Prompt | None:
        told = labelled(p, label)
        return (
            None
            if split == "train"
            and ((hard_only and not told.info["cot"]) or (imitate and not told.info["demonstration"]))
            else told
        )

    found = each(env, change)
    if not size_of(env, "train"):
        return found  # it never ends, or is read from the disk as it is needed
    kept = [found.prompt(i, "train") for i in range(min(size_of(found, "train"), 200))]
    if hard_only and not kept:
        raise UserError(
            f"no training row of {env.name} needs a thought ({label}); leave that phase out: --plan.skewed 0"
        )
    if imitate and {p.info["cot"] for p in kept} != {True, False}:
        raise UserError(
            f"{env.name} has no thoughts to imitate, or all of its rows need one: give rows with steps (a column `steps`, or an answer with "
            "its solution, like `... #### 4`) and rows that need none, or begin with a model that knows both modes: --plan.warmup 0"
        )
    return found


# ---- the plan


@plan(paper="arXiv:2505.11896", title="AdaCoT", uses=("task", "reward"))
def adacot(
    warmup: int = 20, skewed: int = 20, mixed: int = 20, easy: int = 1, label: str = "cot",
    points: tuple[tuple[float, float], ...] = ((0.3, 0.1),), mask: bool = True,
) -> Plan:  # fmt: skip
    """AdaCoT: SFT on both modes, PPO on hard questions alone without the deciding token, PPO on easy and hard ones.

    R = reward - miss [needed, not thought] - over [thought, not needed] - [tags broken]
    warmup, skewed, mixed: steps of the three phases. label: the column that says whether a question needs a thought (true or
    false). A school task has none: there the questions of level `easy` need none, those of the run's level do. points: pairs of
    (miss, over); of several, the PPO phases are done for each from the same SFT, and the summary has the share of thoughts and
    the accuracy of each: the frontier (`--plan.points "((0.1, 0.3), (0.3, 0.1))"`). mask: whether the deciding token is left out
    of the loss in the second phase; without, it learns there to think always.

    Departures: the paper asks a language model which questions need a thought; here a column says it. It names no single
    penalties: 0.3 and 0.1 are this package's, and so are the steps. Rows that need a thought and bring none to imitate are left out
    of the SFT.
    """
    if not points:
        raise UserError(f"points is {points!r}; it is pairs of penalties (miss, over), like ((0.3, 0.1),)")
    if min(warmup, skewed, mixed) < 0 or not warmup + skewed + mixed:
        raise UserError(
            f"got warmup={warmup}, skewed={skewed}, mixed={mixed}; a phase takes 0 steps or more, one of them some"
        )

    def by_level(context: Context) -> bool:
        """Whether levels of a school task say which questions need a thought, and not a column."""
        return "env" not in context.given and context.config.task.removeprefix("school/").replace("-", "_") in TASKS

    def unread(context: Context) -> dict[str, str]:
        if by_level(context):
            return {"label": "a school task has no such column, and its questions of --plan.easy need no thought"}
        return {"easy": "it is a level of a school task, and here the column of --plan.label says what needs a thought"}

    def env(hard_only: bool = False, imitate: bool = False) -> Callable[[Context], Environment]:
        def build(context: Context) -> Environment:
            c = context.config
            if not by_level(context):
                return questions(asked_task(context), label, hard_only, imitate)
            context.read.add("task")
            levels = [said_first(task(c.task, level=at, think=True, data=c.data or None), c) for at in (c.level, easy)]
            return Labelled(levels[0], levels[1], hard_only)

        return build

    def rewards(miss: float, over: float) -> Callable[[Context], RewardSum]:
        def build(context: Context) -> RewardSum:
            own, c = env()(context), context.config
            context.read.add("reward")
            base = asked_rewards(context) if has_reward(context) else build_scorer("", own, c.reward_timeout)
            return RewardSum(
                [("right", base, 1.0), ("adacot", mode_penalty.but(miss=miss, over=over), 1.0)], c.reward_timeout
            )

        return build

    def stages(role: str, tag: str, miss: float, over: float) -> tuple[Any, ...]:
        masked = ppo.but(name="adacot-skewed", advantage=without_the_decision if mask else gae)
        told: dict[str, Any] = {"rewards": rewards(miss, over), "role": role}
        return (
            Phase(f"skewed{tag}", masked, skewed, env(hard_only=True), **told),
            Phase(f"mixed{tag}", ppo.but(name="adacot-mixed"), mixed, env(), **told),
        )

    parts: list[Any] = [Phase("sft", sft, warmup, env(imitate=True), rewards=lambda c: Prescored())]
    if len(points) == 1:
        parts += stages("policy", "", *points[0])
    for k, point in enumerate(points if len(points) > 1 else ()):
        role = f"point{k + 1}"
        parts += [
            Copy("policy", role),
            *stages(role, f"-{k + 1}", *point),
            Do(f"look-{k + 1}", look(role, point, env())),
        ]
    return Plan(tuple(p for p in parts if not isinstance(p, Phase) or p.steps), idle=unread)


def look(role: str, point: tuple[float, float], env: Callable[[Context], Environment]) -> Callable[[Context], None]:
    """How often a role thinks on held-out questions, and how often it is right: one point of the frontier."""

    def work(context: Context) -> None:
        c, asked = context.config, env(context)
        made = answers(context.role(role), asked, held_out(asked, c.eval_problems, "test"), c.sampling)
        texts = [r.text for g in made for r in g.rollouts]
        right = [asked.grade(g.prompt, r.text) for g in made for r in g.rollouts] if asked.graded else []
        told = {
            "miss": point[0],
            "over": point[1],
            "thinks": sum(not thought_of(t).empty for t in texts) / max(len(texts), 1),
        }
        context.notes.setdefault("frontier", []).append(told | ({"accuracy": sum(right) / len(right)} if right else {}))

    return work
