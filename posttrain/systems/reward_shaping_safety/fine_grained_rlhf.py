"""Fine-grained RLHF: PPO on rewards that fall where a segment ends, from several models with a weight each."""

from __future__ import annotations

from posttrain.core.method import Method
from posttrain.core.plan import Context, Phase, Plan, plan
from posttrain.methods.ppo import ppo
from posttrain.methods.settings import asked_task
from posttrain.rewards.scorers.fine_grained import FineGrained, models_of
from posttrain.rewards.shaping.kl_in_reward import kl_in_reward


def dense_ppo(beta: float = 0.02) -> Method:
    """PPO as it is: GAE carries segment rewards back as it does the outcome."""
    return ppo.but(
        name="fine-grained-rlhf", title="Fine-grained RLHF", paper="arXiv:2306.01693", doc=__doc__,
        shaping=kl_in_reward.but(coef=beta),
    )  # fmt: skip


@plan(paper="arXiv:2306.01693", title="Fine-grained RLHF", uses=("task",))
def fine_grained_rlhf(steps: int = 60, rewards: str = "0.1*line:repetition + answer:task", beta: float = 0.02) -> Plan:
    """Fine-grained RLHF: several reward models, each with its own size of segment, rewarded on the token that ends it.

    r_t = sum_k sum_j [t ends segment j of k] w_k R_k(x, y, j) - beta log(pi / pi_ref)
    rewards: "weight*level:rule + ..." with levels word, phrase, sentence, line, answer.

    Departures: the paper trains three reward models that read question and whole answer: relevance +-0.3 per
    sub-sentence, facts +-0.5 per sentence, completeness 0.3 at the end. Here the reward is the option `rewards`, by
    default a repetition rule per line and the task's own grade; a rule or function reads its segment alone, and
    `--reward` is ignored. The KL price is 0.02, the paper's 0.3; its whitening of rewards, its smaller critic, its
    first SFT and its 4 answers at temperature 0.7 (here 8 at 1) are not here.
    """

    def scorer(context: Context) -> FineGrained:
        return FineGrained(models_of(rewards, asked_task(context)), context.role("policy").decode)

    phase = Phase("ppo", dense_ppo(beta), steps, asked_task, rewards=scorer)
    return Plan((phase,))
