"""Learning to summarize from human feedback: imitate, learn what people prefer, improve against that with a price for leaving."""

from __future__ import annotations

from posttrain.core.errors import UserError
from posttrain.core.method import Method
from posttrain.core.plan import Context, Copy, Do, Phase, Plan, plan
from posttrain.core.types import Prompt
from posttrain.evals.policy_report import Judge
from posttrain.methods.from_pairs import (
    critic_of_reward_model,
    demonstrations,
    epochs_of,
    imitation,
    learned,
    reward_phase,
)
from posttrain.methods.ppo import ppo
from posttrain.methods.settings import asked_pairs, asked_task
from posttrain.rewards.shaping.kl_in_reward import kl_in_reward
from posttrain.rollouts.sample import sample


def against_people(beta: float = 0.05) -> Method:
    """PPO with one answer per prompt, four passes over a batch, and beta log(pi / pi_sft) taken off the reward of each token."""
    return ppo.but(
        name="summarize-hf", title="Learning to summarize from human feedback", paper="arXiv:2009.01325", doc=__doc__,
        rollout=sample.but(n=1), shaping=kl_in_reward.but(coef=beta), epochs=4, minibatches=1,
    )  # fmt: skip


@plan(paper="arXiv:2009.01325", title="Learning to summarize from human feedback", uses=("task",))
def summarize_hf(pairs: str = "", warmup: float = 1, passes: float = 1, epochs: float = 1, beta: float = 0.05) -> Plan:
    """Learning to summarize from human feedback: SFT, a reward model of comparisons, then PPO with a KL price beta per token.

    r(x, y) = RM(x, y) - beta log(pi(y | x) / pi_sft(y | x));  RM: mean 0 over written answers;  V begins as RM
    Prompts and demonstrations: --task (a text, and the answer that people wrote). pairs: a file with prompt, chosen and rejected.
    warmup, passes, epochs: passes of SFT (0: the model is tuned already), of the reward model and of PPO.

    Departures: the paper's data are 117,000 posts with summaries of 24 to 48 tokens and 65,000 comparisons, over several rounds of
    labelling; here your files, one round. It trains 1 million episodes of PPO, here one pass over the prompts. Scores are scaled to a
    deviation of 1 too, where the paper centres them alone, so that beta means the same for every model. Rates are chosen from the size.
    beta 0.05, one pass of the reward model, 4 PPO epochs per batch and a critic that begins as the reward model are the paper's.
    """
    if warmup < 0 or passes <= 0 or epochs <= 0:
        raise UserError(
            f"got warmup={warmup}, passes={passes}, epochs={epochs}; passes and epochs are above 0, warmup is 0 or more"
        )
    worked = demonstrations(option="warmup")

    def env(context: Context) -> object:
        return worked(context) if warmup else asked_task(context)

    def ready(context: Context) -> None:
        if not pairs:
            raise UserError(
                "summarize-hf learns what people prefer from a file of comparisons: --plan.pairs pairs.jsonl, with prompt, chosen and "
                "rejected (school_pairs ships, to try)"
            )
        asked_pairs(context, pairs)
        env(context)

    def measure(context: Context) -> None:
        """What the reward model gives to the answers of SFT and of PPO, who wins, and how far PPO has gone."""
        task = asked_task(context)
        prompts: list[Prompt] = [task.prompt(i, "test") for i in range(max(context.config.eval_problems // 2, 1))]
        judge = Judge(prompts, learned(context), None, context.config.sampling)
        before, worth = judge.report(context.role("sft"), context.role("sft"))
        after, _ = judge.report(context.role("policy"), context.role("sft"), worth)
        context.notes["measured"] = {"sft": before, "ppo": after}

    parts = (
        *imitation(warmup, env),
        Copy("policy", "sft"),
        *reward_phase(pairs or "school_pairs", passes),
        Phase(
            "ppo", against_people(beta), epochs_of(env, epochs), env, rewards=learned, reference="sft",
            critic=critic_of_reward_model,
        ),
        Do("measured", measure),
    )  # fmt: skip
    return Plan(parts, ready=ready)
