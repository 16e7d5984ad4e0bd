"""Fine-grained RLHF: PPO on rewards that fall where a segment ends, from several models with a weight each."""

from __future__ import annotations

from posttrain.core.errors import UserError
from posttrain.core.method import Method
from posttrain.core.plan import Context, Do, Phase, Plan, plan
from posttrain.methods.ppo import ppo
from posttrain.methods.settings import asked_task
from posttrain.rewards.scorers.fine_grained import FineGrained, models_of
from posttrain.rewards.shaping.kl_in_reward import kl_in_reward


def dense_ppo(beta: float = 0.3) -> Method:
    """PPO as it is: GAE carries segment rewards back as it does the outcome."""
    return ppo.but(
        name="fine-grained-rlhf", title="Fine-grained RLHF", paper="arXiv:2306.01693", doc=__doc__,
        shaping=kl_in_reward.but(coef=beta),
    )  # fmt: skip


@plan(paper="arXiv:2306.01693", title="Fine-grained RLHF")
def fine_grained_rlhf(rewards: str = "", steps: int = 60, beta: float = 0.3) -> Plan:
    """Fine-grained RLHF: several reward models, each with its own size of segment, rewarded on the token that ends it.

    r_t = sum_k sum_j [t ends segment j of k] w_k R_k(x, y, j) - beta log(pi / pi_ref)
    rewards: "0.3*phrase:mine.py:relevant + 0.5*sentence:mine.py:true + 0.3*answer:runs/NAME"; levels word, phrase, sentence, line,
    answer. A function of (prompt, text, start, end) sees the question and the whole answer; a reward model's folder scores
    the answer so far, and a segment earns the change; a rule or a function of (prompt, text) sees its segment alone.

    Departures: the paper trains its three models itself (relevance +-0.3 per sub-sentence, facts +-0.5 per sentence,
    completeness 0.3 at the end, standardised); here they are given, and `--reward` has no place. Its whitening of rewards, its
    smaller critic, its first SFT and its 4 answers at temperature 0.7 (here 8 at 1) are not here. The KL price 0.3 is the
    paper's.
    """
    if not rewards:
        told = '--plan.rewards "0.3*phrase:mine.py:relevant + 0.5*sentence:mine.py:true + 0.3*answer:task"'
        raise UserError(f"fine-grained rewards come from models of segments; name them: {told}")

    def settings(context: Context) -> None:
        if context.config.reward:
            raise UserError(
                "fine-grained-rlhf is paid by segments; write the reward into --plan.rewards, and take --reward away"
            )

    def scorer(context: Context) -> FineGrained:
        return FineGrained(models_of(rewards, asked_task(context)), context.role("policy").decode)

    phase = Phase("ppo", dense_ppo(beta), steps, asked_task, rewards=scorer)
    return Plan((Do("settings", settings), phase))
