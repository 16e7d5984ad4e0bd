"""ReFT: a short warm-up on one worked answer per question, then PPO on the same questions, where wrong answers teach too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from posttrain.core.answers import final, number
from posttrain.core.critic import CriticSettings
from posttrain.core.errors import UserError
from posttrain.core.method import Method
from posttrain.core.plan import Context, Do, Phase, Plan, plan
from posttrain.core.protocols import Environment
from posttrain.core.registry import reward
from posttrain.core.selfcheck import problems
from posttrain.core.types import Prompt
from posttrain.environments.base import size_of
from posttrain.environments.worked import Worked
from posttrain.evals.accuracy import accuracy
from posttrain.losses.value.value_loss import value_loss
from posttrain.methods.from_pairs import ENDLESS, demonstrations, epochs_of, has_reward, imitation
from posttrain.methods.ppo import ppo
from posttrain.methods.settings import asked_rewards, asked_task
from posttrain.rewards.rules.numeric import numeric
from posttrain.rewards.runtime.score import RewardSum
from posttrain.rewards.shaping.kl_in_reward import kl_in_reward
from posttrain.rollouts.sample import sample

# ---- what answers are worth
# The answer is the gold number, or at least a number.


@reward(title="Partial credit", paper="arXiv:2401.08967")
def partial_credit(prompt: Prompt, text: str, credit: float = 0.1) -> float:
    """Partial credit (ReFT): 1 for the gold number, a little for any other number, 0 where none can be read.

    r = 1 if x == gold, credit if x is another number, 0 if there is none;  x as `numeric` reads it
    """
    if numeric(prompt, text):
        return 1.0
    answer = final(text)
    return credit if answer is not None and number(answer) is not None else 0.0


def readable(env: Environment, credit: float) -> Callable[[Prompt, str], float]:
    """The same for any task: its own grade, and the credit for an answer of the kind of the gold one (a number, else any text)."""

    def worth(prompt: Prompt, text: str) -> float:
        answer = final(text)
        kind = answer is not None and (number(str(prompt.answer)) is None or number(answer) is not None)
        return max(float(env.grade(prompt, text)), credit if kind else 0.0)

    return worth


def validate() -> list[str]:
    """Gold passes, corrupted fails; a wrong number is worth the credit, no number nothing."""
    prompt = Prompt.text("partial", "How much?", "12")
    found = problems(partial_credit, [(prompt, "<think>3*4</think>12", "13"), (prompt, "#### 12", "twelve")])
    found += problems(partial_credit, [(prompt, "13", "twelve"), (prompt, "12 or 13", "<think>12")], full=0.1)
    return found


# ---- the plan


def reinforced(beta: float = 0.05) -> Method:
    """The PPO of ReFT: one answer per question, GAE as PPO has it (gamma 1, lambda 0.95), two passes over a batch, the critic a head on
    the policy's own network with a loss of five times its mean over each answer, KL in the reward.

    beta: 0.05 for answers in words, 0.01 for programs.
    """
    return ppo.but(
        name="reft", title="ReFT", paper="arXiv:2401.08967", doc=__doc__, rollout=sample.but(n=1), minibatches=1,
        shaping=kl_in_reward.but(coef=beta), terms=value_loss.but(coef=5.0, per="answer"), critic=CriticSettings("shared"),
    )  # fmt: skip


@plan(paper="arXiv:2401.08967", title="ReFT")
def reft(
    warmup: float = 2, epochs: float = 10, questions: int = 0, beta: float = 0.05, credit: float = 0.1
) -> Plan:  # fmt: skip
    """ReFT: SFT on one worked answer per question, then PPO on the same questions with their answers checked.

    r_t = R(at the end) - beta KL;  R = 1 right, credit another answer of the right kind, 0 none;  GAE gamma 1, lambda 0.95
    warmup, epochs: passes of SFT and of PPO over the questions; warmup=0 begins with PPO. questions: the first so many (0: all; 500
    where the task never ends). --reward pays in place of R.

    Departures: the authors take 300 epochs of PPO at 3e-7 after SFT at 1e-5, and keep the best checkpoint; here 10 (a try on a small
    model takes minutes), one rate chosen from the size for both phases (`--lr`), and the last weights (`--eval-every` keeps NAME@best).
    The value is read from the policy's network by a linear head, theirs by an MLP of two layers. 2 epochs of SFT, one answer per
    question, 2 PPO epochs, value coefficient 5 by answer, KL 0.05 (0.01 for programs), gamma 1, lambda 0.95, clip 0.2 and rewards 1,
    0.1, 0 are theirs. Rows without a written solution are refused.
    """
    if warmup < 0 or epochs <= 0 or questions < 0:
        raise UserError(
            f"got warmup={warmup}, epochs={epochs}, questions={questions}; epochs is above 0, the others 0 or more"
        )
    worked = demonstrations(questions)

    def env(context: Context) -> Any:
        if warmup:
            return worked(context)
        whole = asked_task(context)
        return Worked(whole, questions or size_of(whole, "train") or ENDLESS)

    def rewards(context: Context) -> Any:
        if has_reward(context):
            return asked_rewards(context)
        worth = readable(asked_task(context), credit)
        return RewardSum([("partial_credit", worth, 1.0)], context.config.reward_timeout)

    def after_sft(context: Context) -> None:
        """Held-out accuracy between the phases."""
        c = context.config
        found = accuracy(context.role("policy"), asked_task(context), c.eval_problems, c.sampling)
        context.notes["accuracy_of_sft"] = found.accuracy

    def ready(context: Context) -> None:
        if not has_reward(context) and not env(context).graded:
            asked_rewards(context)  # says that nothing can grade

    warm = (*imitation(warmup, worked), Do("accuracy-of-sft", after_sft)) if warmup else ()
    learn = Phase("ppo", reinforced(beta), epochs_of(env, epochs), env, rewards=rewards)
    paid = {"credit": "--reward pays in place of the grade that gives some credit"}
    return Plan((*warm, learn), ready=ready, idle=lambda context: paid if has_reward(context) else {})
