"""RSO: statistical rejection sampling: pairs of answers that are as if the optimal policy had given them, then a hinge or logistic loss."""

from __future__ import annotations

import math
import random

from posttrain.core import rng
from posttrain.core.errors import UserError, unknown
from posttrain.core.plan import Context, Cycle, Do, Phase, Plan, plan
from posttrain.core.registry import Part
from posttrain.core.types import Group
from posttrain.losses.preference.dpo import dpo as dpo_loss
from posttrain.methods.dpo import dpo
from posttrain.methods.from_pairs import epochs_of, has_reward
from posttrain.methods.rounds import Collect, Row, collected, told
from posttrain.methods.settings import asked_rewards, asked_scores, asked_task, written
from posttrain.systems.preference.hinge import hinge

LOSSES: dict[str, Part] = {"hinge": hinge.loss, "sigmoid": dpo_loss}


def accepted(rewards: list[float], keep: int, beta: float, draw: random.Random) -> list[int]:
    """Places of so many candidates, each accepted with chance exp((r - r_max) / beta), r_max of those still there; again and again until there are
    enough. beta -> infinity takes them as they come, beta -> 0 the best ones."""
    left, taken = list(range(len(rewards))), list[int]()
    while left and len(taken) < keep:
        top = max(rewards[i] for i in left)
        now = [i for i in left if draw.random() < math.exp((rewards[i] - top) / beta)]
        taken += now[: keep - len(taken)]
        left = [i for i in left if i not in set(now)]
    return taken


def rejection_sampled(context: Context, groups: list[Group], keep: int, beta: float) -> list[list[Row]]:
    """Of the candidates `keep` are accepted and meet two by two; the one with the larger reward is preferred."""
    asked_scores(context, groups)
    out = []
    for group in groups:
        ranked = told(group)
        draw = rng.python("rejection", context.config.seed, group.prompt.id)
        draw.shuffle(ranked)
        mine = [ranked[i] for i in accepted([float(r.total) for r in ranked], keep, beta, draw)]
        twos = [sorted(two, key=lambda r: float(r.total)) for two in zip(mine[::2], mine[1::2], strict=False)]
        out.append([{"chosen": b.text, "rejected": a.text} for a, b in twos if b.total > a.total and a.text != b.text])
    return out


@plan(paper="arXiv:2309.06657", title="RSO", uses=("task", "reward"))
def rso(
    prompts: int = 2000, n: int = 64, keep: int = 8, beta: float = 0.5, gamma: float = 0.05, loss: str = "hinge", epochs: float = 1
) -> Plan:  # fmt: skip
    """RSO: many answers of the start, of which those are kept that the optimal policy pi* ~ start exp(r / beta) would have given, as pairs.

    accept y with chance exp((r(y) - r_max) / beta);  then  hinge: max(0, 1 - gamma u),  sigmoid: -log sigmoid(gamma u)
    n: answers to each prompt. keep: how many are accepted. beta: small is greedy. gamma: of the loss, whose reference is the start.

    Departures: the paper ranks pairs with a model of pairs that also gives the reward (against one other answer); here --reward gives both (`runs/NAME`, a folder), and ties are
    left out. It trains T5 models at 1e-5 with Adafactor and batches of 32 (`--prompts 32`); here AdamW and a rate by the size (`--lr`), and 2,000 prompts. 64 answers, 8
    kept, beta 0.5, gamma 0.05, first-round pairs and the hinge are the paper's.
    """
    if loss not in LOSSES:
        raise unknown("loss of RSO", loss, LOSSES)
    if prompts < 1 or keep < 2 or n < keep or beta <= 0 or gamma <= 0 or epochs <= 0:
        raise UserError(
            f"got prompts={prompts}, n={n}, keep={keep}, beta={beta}, gamma={gamma}, epochs={epochs}; it keeps 2 at least of n answers, with beta and gamma above 0"
        )

    def ready(context: Context) -> None:
        if not has_reward(context):
            raise UserError(
                "rso weighs answers by a reward: --reward runs/NAME, a folder of a reward model, mine.py:function; --reward task takes the task's own grade"
            )
        asked_task(context)
        asked_rewards(context)

    def pairing(context: Context, groups: list[Group]) -> list[list[Row]]:
        return rejection_sampled(context, groups, keep, beta)

    method = dpo.but(loss=LOSSES[loss].but(beta=gamma))
    learn = Phase("rso", method, epochs_of(collected, epochs), collected, rewards=written)
    return Plan((Cycle((Do("collect", Collect(prompts, n, pairing)), learn), times=1),), ready=ready)
