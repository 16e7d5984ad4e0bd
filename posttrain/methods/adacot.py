"""AdaCoT: learn when to think: imitate both modes, then PPO with penalties for thoughts missing and thoughts too many;
where all questions need a thought, the token that decides is left out of the loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from posttrain.advantages.adacot import adacot as masked
from posttrain.core.errors import UserError
from posttrain.core.plan import Context, Phase, Plan, plan
from posttrain.core.types import Prompt
from posttrain.environments.task import task
from posttrain.methods.ppo import ppo
from posttrain.methods.reft import with_steps
from posttrain.methods.sft import sft
from posttrain.rewards.rules.adacot import adacot as penalty
from posttrain.rewards.rules.task import task as own_grade
from posttrain.rewards.runtime.score import RewardSum
from posttrain.rewards.runtime.scorer import Prescored


class Labelled:
    """Hard questions, which need a thought, and (unless hard_only) every second time an easy one, which needs none."""

    def __init__(self, hard: Any, easy: Any, hard_only: bool = False) -> None:
        self.hard, self.easy, self.hard_only, self.name = hard, easy, hard_only, f"{hard.name}+{easy.name}"

    def prompt(self, index: int, split: str = "train") -> Prompt:
        if self.hard_only or index % 2 == 0:
            p = with_steps(self.hard.prompt(index if self.hard_only else index // 2, split))
            return replace(p, info=p.info | {"cot": True})
        p = self.easy.prompt(index // 2, split)
        return replace(p, info=p.info | {"cot": False, "demonstration": f"<think></think>{p.answer}"})

    def grade(self, prompt: Prompt, text: str) -> float:
        return float(self.hard.grade(prompt, text))


@plan(paper="arXiv:2505.11896", title="AdaCoT")
def adacot(
    warmup: int = 20, skewed: int = 20, mixed: int = 20, easy: int = 1, miss: float = 0.3, over: float = 0.1, at: int = 1
) -> Plan:  # fmt: skip
    """AdaCoT: SFT on both modes, PPO on hard questions alone without the deciding token, PPO on easy and hard ones.

    R = right - miss [needed, not thought] - over [thought, not needed] - [tags broken]
    warmup, skewed, mixed: steps of the three phases. easy: the level of the questions that need no thought; those of the
    run's level do (the paper asks a language model which do). at: the answer's token that decides, counted from 0: the
    one after <think>.
    """
    if min(warmup, skewed, mixed) < 0 or not warmup + skewed + mixed:
        raise UserError(
            f"got warmup={warmup}, skewed={skewed}, mixed={mixed}; a phase takes 0 steps or more, one of them some"
        )

    def env(hard_only: bool = False) -> Callable[[Context], Labelled]:
        def build(context: Context) -> Labelled:
            c = context.config
            levels = [task(c.task, level=at, think=True, data=c.data or None) for at in (c.level, easy)]
            return Labelled(levels[0], levels[1], hard_only)

        return build

    def rewards(context: Context) -> RewardSum:
        graded = own_grade.but(environment=env()(context))
        return RewardSum(
            [("task", graded, 1.0), ("adacot", penalty.but(miss=miss, over=over), 1.0)], context.config.reward_timeout
        )

    parts = (
        Phase("sft", sft, warmup, env(), rewards=lambda c: Prescored()),
        Phase(
            "skewed",
            ppo.but(name="adacot-skewed", advantage=masked.but(at=at)),
            skewed,
            env(hard_only=True),
            rewards=rewards,
        ),
        Phase("mixed", ppo.but(name="adacot-mixed"), mixed, env(), rewards=rewards),
    )
    options = {"warmup": warmup, "skewed": skewed, "mixed": mixed, "easy": easy, "miss": miss, "over": over, "at": at}
    kept = tuple(p for p in parts if p.steps)
    return Plan("adacot", kept, "AdaCoT", "arXiv:2505.11896", adacot.__doc__ or "", options)
