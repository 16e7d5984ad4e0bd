"""AdaCoT: learn when to think: imitate both modes, then PPO with penalties for thoughts missing and thoughts too many;
where all questions need a thought, the token that decides is left out of the loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from posttrain.advantages.gae import gae
from posttrain.core.batch import Batch
from posttrain.core.errors import UserError
from posttrain.core.plan import Context, Phase, Plan, plan
from posttrain.core.protocols import Environment
from posttrain.core.registry import advantage, reward
from posttrain.core.selfcheck import problems
from posttrain.core.types import Prompt
from posttrain.environments.task import task
from posttrain.environments.worked import with_steps
from posttrain.methods.ppo import ppo
from posttrain.methods.sft import sft
from posttrain.rewards.rules.task import task as own_grade
from posttrain.rewards.rules.thinks import thinks
from posttrain.rewards.runtime.score import RewardSum
from posttrain.rewards.runtime.scorer import Prescored

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
    reads=("old_value_BT", "reward_BT"),
    provides=("return_BT",),
)
def without_the_decision(
    batch: Batch, at: int = 0, gamma: float = 1.0, lam: float = 0.95, whiten: bool = True
) -> tuple[Tensor, Tensor]:
    """Selective loss masking (AdaCoT): GAE, but the token that decides whether to think gets no credit.

    A_t = 0 for t = the policy's own token number `at` (the one after <think>);  A_t = GAE otherwise
    For stages whose questions all need the same mode: they would teach to choose it always. The critic still learns
    there; without credit a policy loss has no gradient.
    """
    if at < 0:
        raise UserError(f"at is {at}; it counts the policy's own tokens from 0")
    adv_BT, return_BT = gae(batch, gamma=gamma, lam=lam, whiten=whiten)
    number_BT = torch.where(batch.mask_BT > 0, (batch.mask_BT > 0).cumsum(-1) - 1, -1)
    return torch.where(number_BT == at, 0.0, adv_BT), return_BT


# ---- the plan


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


@plan(paper="arXiv:2505.11896", title="AdaCoT", uses=("task",))
def adacot(
    warmup: int = 20, skewed: int = 20, mixed: int = 20, easy: int = 1, miss: float = 0.3, over: float = 0.1, at: int = 1
) -> Plan:  # fmt: skip
    """AdaCoT: SFT on both modes, PPO on hard questions alone without the deciding token, PPO on easy and hard ones.

    R = right - miss [needed, not thought] - over [thought, not needed] - [tags broken]
    warmup, skewed, mixed: steps of the three phases. easy: the level of the questions that need no thought; those of the
    run's level do. at: the answer's token that decides, counted from 0: the
    one after <think>.

    Departures: the paper asks a language model which questions need a thought; here the level of a school task says
    so, so that a file of questions is refused. The base reward is the task's own grade: `--reward` is ignored. Its
    sweep over the penalties, which finds the frontier, is left to several runs (`--plan.miss`, `--plan.over`); it
    names no single values. `at` counts one token for `<think>`: with a tokenizer that writes the tag in several, set
    it.
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
            [("task", graded, 1.0), ("adacot", mode_penalty.but(miss=miss, over=over), 1.0)],
            context.config.reward_timeout,
        )

    parts = (
        Phase("sft", sft, warmup, env(), rewards=lambda c: Prescored()),
        Phase(
            "skewed",
            ppo.but(name="adacot-skewed", advantage=without_the_decision.but(at=at)),
            skewed,
            env(hard_only=True),
            rewards=rewards,
        ),
        Phase("mixed", ppo.but(name="adacot-mixed"), mixed, env(), rewards=rewards),
    )
    kept = tuple(p for p in parts if p.steps)
    return Plan(kept)
