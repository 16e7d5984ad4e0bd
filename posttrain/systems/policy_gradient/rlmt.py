"""RLMT: reinforcement learning with model-rewarded thinking; a thought, then an answer, and a reward model reads only the latter."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from posttrain.core.answers import final_answer
from posttrain.core.errors import UserError
from posttrain.core.method import Method
from posttrain.core.plan import Context, Phase, Plan, plan
from posttrain.core.registry import scorer
from posttrain.core.types import Group, Prompt
from posttrain.losses.aggregate import token_mean
from posttrain.losses.regularisers.entropy import entropy
from posttrain.losses.regularisers.kl import kl
from posttrain.methods.from_pairs import demonstrations, has_reward, imitation
from posttrain.methods.grpo import grpo
from posttrain.methods.settings import asked_rewards, asked_task
from posttrain.rewards.runtime.scorer import BaseScorer, Verdict, answers_of, texts_of
from posttrain.rollouts.sample import sample

NULL = "[NULL]"  # the authors' word for an answer that is not there

# ---- what answers are worth
# Think first, be judged by the answer (RLMT, arXiv:2509.20357): a reward that never sees the thought.


@scorer(title="Answer only", paper="arXiv:2509.20357")
class AnswerOnly(BaseScorer):
    """Answer only: R = reward(prompt, what follows the last </think>); the whole rollout, thought included, is credited with it.

    A thought that was never closed is judged as it stands, whole; strict: as "[NULL]", for which the reward says what no answer is
    worth. `answer` says where the answer is in a text (None: nowhere). What the reward cannot score is masked.
    """

    reported, by_name = ("answer",), {"reward": "texts"}

    def __init__(
        self,
        reward: Callable[[Sequence[Prompt], Sequence[str]], Sequence[float]],
        answer: Callable[[str], str | None] = final_answer,
        strict: bool = False,
    ) -> None:
        self.reward, self.answer, self.strict = reward, answer, strict

    def verdicts(self, groups: list[Group]) -> list[Verdict]:
        rollouts = answers_of(groups)
        answers = [self.answer(r.text) for r in rollouts]
        judged = [
            a if a is not None else NULL if self.strict else r.text for r, a in zip(rollouts, answers, strict=True)
        ]
        worth = [float(x) for x in self.reward([r.prompt for r in rollouts], judged)] if rollouts else []
        return [
            Verdict(x, {"answer": x, "answered": float(a is not None)}) for x, a in zip(worth, answers, strict=True)
        ]


# ---- the plan


def thinking(n: int = 8, beta: float = 0.001, bonus: float = 0.001) -> Method:
    """The best of the paper's three optimisers, GRPO: A = (R - mean) / std for every token of thought and answer."""
    return grpo.but(
        name="rlmt", title="RLMT", paper="arXiv:2509.20357", doc=__doc__, rollout=sample.but(n=n), aggregate=token_mean,
        terms=(kl.but(coef=beta, kind="k3"), entropy.but(coef=bonus)),
    )  # fmt: skip


@plan(paper="arXiv:2509.20357", title="RLMT")
def rlmt(
    steps: int = 60, warmup: float = 0, n: int = 8, beta: float = 0.001, bonus: float = 0.001, strict: bool = False
) -> Plan:  # fmt: skip
    """RLMT: the model writes <think>...</think> and an answer; a reward model sees the answer alone.

    R = r(x, answer);  A = (R - mean_group) / std_group for the thought's tokens too;  L + beta KL - bonus H, a mean over tokens
    --reward names r: a folder of a classifier with one label, runs/NAME, or a judge. warmup: passes of SFT over the rows' written
    thoughts and answers first (the paper's warm start); 0 begins with RL (its "zero"). An unclosed thought is judged whole; strict: r
    reads "[NULL]" in its place, as the authors do for models that were instructed before.

    Departures: the paper's r is Skywork's 8B model and its warm start about 6,000 thoughts with plans by a teacher; both are to be
    given (`--reward FOLDER`, rows whose answer holds the thought). It samples 64 prompts at temperature 0.7 at a rate of 1e-6, here 16
    at 1 (`--prompts`, `--sampling.temperature`). GRPO with 8 answers, KL 0.001, entropy 0.001 and the token mean are the paper's best.
    """
    if steps < 1 or warmup < 0 or n < 2:
        raise UserError(f"got steps={steps}, warmup={warmup}, n={n}; it takes 1 step and 2 answers at least")
    worked = demonstrations()

    def rewards(context: Context) -> AnswerOnly:
        scorer = asked_rewards(context)
        return AnswerOnly(lambda prompts, texts: texts_of(scorer, prompts, texts), strict=strict)

    def ready(context: Context) -> None:
        if not has_reward(context):
            raise UserError(
                "rlmt is paid by a model that reads the answer: --reward FOLDER (a classifier with one label), runs/NAME or "
                "judge(url=...); --reward task pays the task's own grade"
            )
        if warmup:
            worked(context)

    learn = Phase("rlmt", thinking(n, beta, bonus), steps, asked_task, rewards=rewards)
    return Plan((*imitation(warmup, worked), learn), ready=ready)
