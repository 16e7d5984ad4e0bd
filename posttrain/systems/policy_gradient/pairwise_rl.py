"""Pairwise-RL: a judge that reads two answers, learned by likelihood on pairs in both orders, and PPO on winning against an anchor."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from posttrain.core import rng
from posttrain.core.errors import UserError
from posttrain.core.method import Method
from posttrain.core.plan import Context, Copy, Do, Phase, Plan, plan
from posttrain.core.protocols import Policy
from posttrain.core.sampling import Sampling
from posttrain.core.types import Group, Prompt
from posttrain.environments.base import size_of
from posttrain.environments.language.listed import Listed, from_rows
from posttrain.environments.mapped import each
from posttrain.methods.from_pairs import epochs_of, has_reward
from posttrain.methods.ppo import ppo
from posttrain.methods.settings import asked_judge, asked_pairs, asked_task, refuse_k, written
from posttrain.methods.sft import sft
from posttrain.rewards.scorers.pairwise import WinRate, compare
from posttrain.rewards.scorers.policy_judge import PolicyJudge, lessons
from posttrain.rewards.shaping.kl_in_reward import kl_in_reward

# ---- what answers are worth
# Anchors: answers that stand still, one or a few for each prompt, for others to be compared with.


class Anchors:
    """For `WinRate(judge, others=Anchors(...))`: a prompt's own anchor (`info["anchor"]`), else m answers of a policy, kept.

    They are drawn by the prompt's identity, so that a resumed run finds the same ones.
    """

    def __init__(self, policy: Policy, how: Sampling, m: int = 1, seed: int = 0) -> None:
        self.policy, self.how, self.m, self.seed = policy, how, m, seed
        self.known: dict[str, list[str]] = {}

    def __call__(self, groups: list[Group]) -> list[list[str]]:
        for p in (g.prompt for g in groups):
            if isinstance(p.info.get("anchor"), str):
                self.known.setdefault(p.id, [p.info["anchor"]])
        fresh = list({g.prompt.id: g.prompt for g in groups if g.prompt.id not in self.known}.values())
        made = self.policy.sample(fresh, self.m, self.how, self.seed, -1) if fresh else []
        self.known |= {p.id: [r.text for r in rollouts] for p, rollouts in zip(fresh, made, strict=True)}
        return [self.known[g.prompt.id] for g in groups]


# ---- the plan

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


def _row(seed: int, prompt: Prompt, a: str, b: str, chance: float) -> dict[str, Any]:
    """A labelled pair: who won is drawn from the judge's probability."""
    better, worse = (a, b) if rng.python(seed, "label", prompt.id).random() < chance else (b, a)
    return {"id": prompt.id, "prompt": list(prompt.content), "chosen": better, "rejected": worse}


@plan(paper="arXiv:2504.04950", title="Pairwise-RL")
def pairwise_rl(
    pairs: str = "", epochs: float = 1, m: int = 1, beta: float = 0.02, orders: str = "both", own: int = 400, k: float = 4.0
) -> Plan:  # fmt: skip
    """Pairwise-RL: the judge is trained on pairs and used on pairs; a win probability means the same for every prompt.

    P(a wins) = (pi(A | a, b) + pi(B | b, a)) / 2;  R = 1/m sum_j P(y > anchor_j) - beta KL;  1/2: as good as the anchor
    pairs: a file of preferences (prompt, chosen, rejected): the judge learns them in both orders, and the chosen answers are the anchors
    of the prompts that PPO then takes. Without a file the judge learns from `own` pairs of the start policy's answers to --task,
    labelled by --reward r through sigmoid(k (r_a - r_b)), and anchors are m answers of the start policy. epochs: passes of PPO.

    Departures: the paper's judge first writes its reasons, ours says A or B at once. It learns three passes over the pairs here; beta
    0.02, 8 answers per prompt and the critic are `ppo`'s. The pairwise critic that is shown the anchor too is not here: an anchor that
    stands still is a function of the prompt.
    """
    if own < 1 or epochs <= 0 or m < 1:
        raise UserError(f"got own={own}, epochs={epochs}, m={m}; it takes 1 of each at least")
    drawn = 1 if pairs else m  # anchors that are written are drawn by nobody

    def label(context: Context) -> None:
        """Pairs of the start policy's answers, who won drawn from the probability that the reward gives."""
        c, env = context.config, asked_task(context)
        prompts = [env.prompt(i) for i in range(min(own, size_of(env, "train") or own))]
        answers = context.role("start").sample(prompts, 2, c.sampling, rng.key(c.seed, "pairs") & 0x7FFFFFFF)
        matches = [(p, a.text, b.text) for p, (a, b) in zip(prompts, answers, strict=True) if a.text != b.text]
        found = zip(matches, compare(asked_judge(context, k), matches), strict=True)
        context.run.write_artifact(
            "pairs", [_row(c.seed, *match, chance) for match, chance in found if chance == chance]
        )

    def known(context: Context) -> Any:
        if pairs:
            return asked_pairs(context, pairs)
        told = from_rows("pairs", context.run.read_artifact("pairs"), held_out=0.0)
        if not told.train:
            raise UserError(
                "the start policy gave the same answer twice to every prompt, so there is nothing to compare"
            )
        return told

    def taught(context: Context) -> Listed:
        return Listed(
            "lessons", tuple(lessons((p, p.info["chosen"], p.info["rejected"]) for p in known(context).train))
        )

    def env(context: Context) -> Any:
        """Prompts of the pairs with the chosen answer as anchor, or those of --task."""
        if not pairs:
            return asked_task(context)
        return each(known(context), lambda p, split: replace(p, info=p.info | {"anchor": p.info["chosen"]}))

    def rewards(context: Context) -> WinRate:
        c = context.config
        return WinRate(
            PolicyJudge(context.role("judge")), Anchors(context.role("start"), c.sampling, drawn, c.seed), orders
        )

    def ready(context: Context) -> None:
        if pairs:
            asked_pairs(context, pairs)
        elif not has_reward(context):
            raise UserError(
                "pairwise-rl learns a judge from preferences: --plan.pairs pairs.jsonl, with prompt, chosen and rejected; without, "
                "--reward labels pairs of the model's own answers (--reward task: by the task's grade)"
            )
        else:
            refuse_k("pairwise-rl", asked_judge(context, k), k != 4.0)

    parts: tuple[Any, ...] = (
        Copy("policy", "start"),
        *(() if pairs else (Do("pairs", label),)),
        Phase(
            "judge", sft, epochs_of(taught, PASSES), taught, role="judge",
            make=lambda c: c.role("start").clone(), rewards=written,
        ),
        Phase("ppo", pairwise_ppo(beta), epochs_of(env, epochs), env, rewards=rewards, reference="start"),
    )  # fmt: skip
    return Plan(parts, ready=ready, uses=() if pairs else ("task", "reward"))
