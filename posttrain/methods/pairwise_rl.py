"""Pairwise-RL: a judge that reads two answers, learned by likelihood on pairs in both orders, and PPO on winning against an anchor."""

from __future__ import annotations

from typing import Any

from posttrain.core import rng
from posttrain.core.errors import UserError
from posttrain.core.method import Method
from posttrain.core.plan import Context, Copy, Do, Phase, Plan, plan
from posttrain.core.types import Prompt
from posttrain.environments.language.listed import Listed, from_rows
from posttrain.methods.asked import asked_task
from posttrain.methods.judged import asked_judge
from posttrain.methods.ppo import ppo
from posttrain.methods.sft import sft
from posttrain.rewards.runtime.scorer import Prescored
from posttrain.rewards.scorers.anchors import Anchors
from posttrain.rewards.scorers.pair_judge import PairJudge, lessons
from posttrain.rewards.scorers.pairwise import WinRate, compare
from posttrain.rewards.shaping.kl_in_reward import kl_in_reward

PASSES = 3  # over the pairs, for the judge


def pairwise_ppo(beta: float = 0.02) -> Method:
    """PPO as it is. The critic reads the prompt; an anchor that stands still is a function of it, so it need not be told."""
    return ppo.but(
        name="pairwise-rl",
        title="Pairwise-RL",
        paper="arXiv:2504.04950",
        doc=__doc__,
        shaping=kl_in_reward.but(coef=beta),
    )


@plan(paper="arXiv:2504.04950", title="Pairwise-RL")
def pairwise_rl(
    pairs: int = 400, steps: int = 60, m: int = 1, beta: float = 0.02, k: float = 4.0, orders: str = "both"
) -> Plan:  # fmt: skip
    """Pairwise-RL: the judge is trained on pairs and used on pairs; a win probability means the same for every prompt.

    P(a wins) = (pi(A | a, b) + pi(B | b, a)) / 2;  R = 1/m sum_j P(y > anchor_j) - beta KL;  1/2: as good as the anchor
    pairs: of the start policy's answers, labelled by the settings' reward (or judge). Anchors: the prompt's own, or m answers
    of the start policy.
    """
    if pairs < 1 or steps < 1 or m < 1:
        raise UserError(f"got pairs={pairs}, steps={steps}, m={m}; it takes 1 of each at least")

    def label(context: Context) -> None:
        c, env = context.config, asked_task(context)
        prompts = [env.prompt(i) for i in range(pairs)]
        answers = context.role("start").sample(prompts, 2, c.sampling, rng.key(c.seed, "pairs") & 0x7FFFFFFF)
        matches = [(p, a.text, b.text) for p, (a, b) in zip(prompts, answers, strict=True) if a.text != b.text]
        found = zip(matches, compare(asked_judge(context, k), matches), strict=True)
        context.run.write_artifact(
            "pairs", [_row(c.seed, *match, chance) for match, chance in found if chance == chance]
        )

    def taught(context: Context) -> Listed:
        told = from_rows("pairs", context.run.read_artifact("pairs"), held_out=0.0).train
        if not told:
            raise UserError(
                "the start policy gave the same answer twice to every prompt, so there is nothing to compare"
            )
        return Listed("lessons", tuple(lessons((p, p.info["chosen"], p.info["rejected"]) for p in told)))

    def rewards(context: Context) -> WinRate:
        c = context.config
        return WinRate(PairJudge(context.role("judge")), Anchors(context.role("start"), c.sampling, m, c.seed), orders)

    parts: tuple[Any, ...] = (
        Copy("policy", "start"),
        Do("pairs", label),
        Phase(
            "judge", sft, lambda c: max(1, round(PASSES * taught(c).size / c.config.prompts)), taught, role="judge",
            make=lambda c: c.role("start").clone(), rewards=lambda c: Prescored(),
        ),
        Phase("ppo", pairwise_ppo(beta), steps, asked_task, rewards=rewards, reference="start"),
    )  # fmt: skip
    options = {"pairs": pairs, "steps": steps, "m": m, "beta": beta, "k": k, "orders": orders}
    return Plan("pairwise-rl", parts, "Pairwise-RL", "arXiv:2504.04950", pairwise_rl.__doc__ or "", options)


def _row(seed: int, prompt: Prompt, a: str, b: str, chance: float) -> dict[str, Any]:
    """A labelled pair: who won is drawn from the judge's probability."""
    better, worse = (a, b) if rng.python(seed, "label", prompt.id).random() < chance else (b, a)
    return {"id": prompt.id, "prompt": list(prompt.content), "chosen": better, "rejected": worse}
