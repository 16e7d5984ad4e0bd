"""Mixed preference optimisation: pairs that a reward model tells apart easily teach by DPO, the prompts of the others by PPO from there."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from posttrain.core import rng
from posttrain.core.errors import UserError, unknown
from posttrain.core.method import Method
from posttrain.core.plan import Context, Copy, Do, Phase, Plan, plan
from posttrain.core.types import Prompt
from posttrain.environments.base import size_of
from posttrain.environments.language.listed import Listed, from_rows
from posttrain.evals.policy_report import Judge
from posttrain.evals.reward_model import margins
from posttrain.losses.preference.dpo import dpo as dpo_loss
from posttrain.methods.dpo import dpo
from posttrain.methods.from_pairs import critic_of_reward_model, epochs_of, learned, reward_phase
from posttrain.methods.members import looked_at
from posttrain.methods.ppo import ppo
from posttrain.methods.settings import asked_pairs, written
from posttrain.rewards.scorers.reward_model import RewardModel
from posttrain.rewards.shaping.kl_in_reward import kl_in_reward

ORDERS = ("easy first", "hard first", "random")
REFERENCES = ("dpo", "start")  # of PPO
PACE = 0.1  # of DPO in the rate of PPO

# ---- which pairs are easy


def easy_of(gap_P: Tensor, easy: float = 0.5, least: float = 0.0) -> Tensor:
    """Which pairs are easy: |r(chosen) - r(rejected)| above `least`; where that is 0, the share `easy` with the widest gaps.

    A pair that the reward model cannot read has no gap, and is hard.
    """
    wide_P = torch.where(gap_P.isnan(), -1.0, gap_P.abs())
    if least > 0:
        return wide_P > least
    picked_P = torch.zeros_like(wide_P, dtype=torch.bool)
    picked_P[wide_P.argsort(descending=True, stable=True)[: round(easy * len(wide_P))]] = True
    return picked_P


def split(context: Context, easy: float, least: float, order: str) -> None:
    """Two files: pairs for DPO, and those whose prompts PPO answers."""
    env = asked_pairs(context)
    pairs: list[Prompt] = [env.prompt(i) for i in range(size_of(env, "train"))]
    gap_P = margins(RewardModel(context.role("reward_model")), pairs)
    first_P = easy_of(gap_P, easy, least)
    if not 0 < int(first_P.sum()) < len(pairs):
        raise UserError(
            f"{int(first_P.sum())} of {len(pairs)} pairs are easy, and both kinds are learned from; gaps of the reward model lie between "
            f"{float(gap_P.abs().nan_to_num().min()):.3g} and {float(gap_P.abs().nan_to_num().max()):.3g}: choose another --plan.least, or a share: --plan.easy 0.5"
        )
    if order == "random":
        first_P = first_P[torch.randperm(len(pairs), generator=rng.torch_generator("split", context.config.seed))]
    elif order == "hard first":
        first_P = ~first_P
    for name, wanted in (("first", True), ("second", False)):
        kept = [_row(p, gap) for p, gap, first in zip(pairs, gap_P.tolist(), first_P.tolist(), strict=True) if first == wanted]  # fmt: skip
        context.run.write_artifact(name, kept)
    wide_P = gap_P.abs()
    context.notes["split"] = {
        "first": int(first_P.sum()), "second": int((~first_P).sum()),
        "gap_first": float(wide_P[first_P].nanmean()), "gap_second": float(wide_P[~first_P].nanmean()),
    }  # fmt: skip


def _row(p: Prompt, gap: float) -> dict[str, Any]:
    told: dict[str, Any] = {k: p.info[k] for k in ("preferred", "annotator") if k in p.info}
    both = {"chosen": p.info["chosen"], "rejected": p.info["rejected"]}
    return {"id": p.id, "prompt": list(p.content), **both, **told, "gap": gap}


def first_half(context: Context) -> Listed:
    return from_rows("easy pairs", context.run.read_artifact("first"), 0.0)


def second_half(context: Context) -> Listed:
    return from_rows("hard pairs", context.run.read_artifact("second"), 0.0)


# ---- the plan


def online(price: float) -> Method:
    """PPO whose price for leaving the model of the first stage is part of the reward of each token."""
    return ppo.but(shaping=kl_in_reward.but(coef=price))


@plan(paper="arXiv:2403.19443", title="Mixed preference optimisation", uses=("task", "pairs"))
def mixed_preference_opt(
    easy: float = 0.5, least: float = 0.0, order: str = "easy first", reference: str = "dpo", epochs: float = 1, beta: float = 0.1,
    price: float = 0.05,
) -> Plan:  # fmt: skip
    """Mixed preference optimisation: a reward model splits the pairs; DPO learns from the easy ones, PPO on the prompts of the hard ones.

    gap = |r(x, y_w) - r(x, y_l)|;  easy: gap > least, or the share `easy` of the pairs with the widest gaps
    second stage: r(x, y) - price log(pi(y | x) / pi_dpo(y | x)), from pi_dpo on, which is also its reference
    --task holds the pairs (prompt, chosen, rejected). order: "easy first", the paper's; "hard first" and "random" (as many pairs) are its
    controls, as is reference "start", which keeps the given model as PPO's reference. epochs: passes of DPO and of PPO over their
    halves. The critic of PPO begins as the reward model.

    Departures: the paper begins with a fine-tuned model, to be given as --model (`posttrain run sft` on the preferred answers). Its
    threshold, both betas, its answers per prompt and its rates could not be checked, and no code was found: here half of the pairs are
    easy, beta is 0.1 in DPO and 0.05 in PPO, PPO samples 8 answers in 2 passes of 2 minibatches, the rate is that of the size, a tenth of it in DPO. Whether its gap is the
    difference or its size could not be checked either: here a pair that the reward model is sure of in the other way counts as easy.
    Scores are put in units of preferred answers, so that the price means the same for every model.
    """
    if not 0 < easy < 1 or least < 0 or epochs <= 0:
        raise UserError(
            f"got easy={easy}, least={least}, epochs={epochs}; easy is a share between 0 and 1, least 0 or more, epochs above 0"
        )
    if order not in ORDERS:
        raise unknown("order", order, ORDERS)
    if reference not in REFERENCES:
        raise unknown("reference", reference, REFERENCES)

    share = easy if not least else 0.5  # where gaps say which are easy, no share does

    def ready(context: Context) -> None:
        asked_pairs(context)

    def measure(context: Context) -> None:
        """What the reward model gives to the answers of the start, of DPO and of the whole, and how far they have gone."""
        judge = Judge(looked_at(context, asked_pairs(context)), learned(context), None, context.config.sampling)
        start, worth = judge.report(context.role("start"), context.role("start"))
        roles = {"dpo": context.role("dpo"), "ppo": context.role("policy")}
        found = {name: judge.report(policy, context.role("start"), worth)[0] for name, policy in roles.items()}
        context.notes["measured"] = {"start": start} | found

    parts = (
        Copy("policy", "start"),
        *reward_phase(asked_pairs),
        Do("split", lambda context: split(context, share, least, order)),
        Phase("dpo", dpo.but(loss=dpo_loss.but(beta=beta)), epochs_of(first_half, epochs), first_half, rewards=written, reference="start", pace=PACE),
        Copy("policy", "dpo"),
        Phase(
            "ppo", online(price), epochs_of(second_half, epochs), second_half, rewards=learned, reference=reference,
            critic=critic_of_reward_model,
        ),
        Do("measured", measure),
    )  # fmt: skip
    return Plan(parts, ready=ready)
