"""ReFT: a short warm-up on one worked answer per question, then PPO on the same questions, where wrong answers teach too."""

from __future__ import annotations

from posttrain.core.answers import final, number
from posttrain.core.errors import UserError
from posttrain.core.method import Method
from posttrain.core.plan import Context, Do, Phase, Plan, plan
from posttrain.core.registry import reward
from posttrain.core.selfcheck import problems
from posttrain.core.types import Prompt
from posttrain.environments.task import task
from posttrain.environments.worked import Worked
from posttrain.evals.accuracy import accuracy
from posttrain.losses.value.value_loss import value_loss
from posttrain.methods.ppo import ppo
from posttrain.methods.sft import sft
from posttrain.rewards.rules.numeric import numeric
from posttrain.rewards.runtime.score import RewardSum
from posttrain.rewards.runtime.scorer import Prescored
from posttrain.rewards.shaping.kl_in_reward import kl_in_reward

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


def validate() -> list[str]:
    """Gold passes, corrupted fails; a wrong number is worth the credit, no number nothing."""
    prompt = Prompt.text("partial", "How much?", "12")
    found = problems(partial_credit, [(prompt, "<think>3*4</think>12", "13"), (prompt, "#### 12", "twelve")])
    found += problems(partial_credit, [(prompt, "13", "twelve"), (prompt, "12 or 13", "<think>12")], full=0.1)
    return found


# ---- the plan


def reinforced(beta: float = 0.05) -> Method:
    """The PPO of ReFT: GAE as PPO has it (gamma 1, lambda 0.95), the critic's loss five times, KL in the reward.

    beta: 0.05 for answers in words, 0.01 for programs.
    """
    return ppo.but(
        name="reft", title="ReFT", paper="arXiv:2401.08967", doc=__doc__,
        shaping=kl_in_reward.but(coef=beta), terms=value_loss.but(coef=5.0),
    )  # fmt: skip


@plan(paper="arXiv:2401.08967", title="ReFT", uses=("task",))
def reft(
    questions: int = 500, warmup: int = 20, steps: int = 60, beta: float = 0.05, credit: float = 0.1
) -> Plan:  # fmt: skip
    """ReFT: SFT on one worked answer per question, then PPO on the same questions with their answers checked.

    r_t = R(at the end) - beta KL;  R = 1 right, credit another number, 0 none;  GAE gamma 1, lambda 0.95
    questions: how many there are, for both phases. warmup, steps: of SFT and of PPO; warmup=0 begins with PPO.

    Departures: the paper takes 2 epochs of SFT and 300 of PPO over the whole training set, one answer per question,
    lr 3e-7 and 2 PPO epochs; here 20 and 60 steps over 500 questions with 8 answers each. Its critic shares the
    policy's trunk and its value loss is averaged by answer; here the critic is `ppo`'s own copy and the mean is over
    tokens. `--reward` is ignored: the reward is the partial credit, which reads numbers only. Rows without a written
    solution are warmed up on the bare gold answer, without a chain of thought. Value coefficient 5, KL 0.05 (0.01 for
    programs), gamma 1, lambda 0.95 and rewards 1, 0.1, 0 are the authors'.
    """
    if questions < 1 or warmup < 0 or steps < 1:
        raise UserError(
            f"got questions={questions}, warmup={warmup}, steps={steps}; it takes 1 question and 1 step at least"
        )

    def env(context: Context) -> Worked:
        c = context.config
        return Worked(task(c.task, level=c.level, think=c.think, data=c.data or None), questions)

    def rewards(context: Context) -> RewardSum:
        return RewardSum([("partial_credit", partial_credit.but(credit=credit), 1.0)], context.config.reward_timeout)

    def measure(name: str) -> Do:
        def work(context: Context) -> None:
            c = context.config
            found = accuracy(context.role("policy"), env(context), c.eval_problems, c.sampling)
            context.notes.setdefault("accuracy", {})[name] = found.accuracy

        return Do(f"accuracy-{name}", work)

    warm = (Phase("sft", sft, warmup, env, rewards=lambda c: Prescored()), measure("after-sft")) if warmup else ()
    learn = Phase("ppo", reinforced(beta), steps, env, rewards=rewards)
    parts = (measure("before"), *warm, learn, measure("after-ppo"))
    return Plan(parts)
