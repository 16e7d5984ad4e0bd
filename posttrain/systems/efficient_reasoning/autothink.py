"""AutoThink: learn when to think in three stages of GRPO: keep both modes alive, make both accurate, then shorten."""

from __future__ import annotations

import torch
from torch import Tensor

from posttrain.advantages.group import group_mean, group_std
from posttrain.core.batch import Batch
from posttrain.core.credit import component, on_last
from posttrain.core.errors import UserError
from posttrain.core.plan import Context, Phase, Plan, plan
from posttrain.core.registry import Part, shaping
from posttrain.methods.grpo import grpo
from posttrain.methods.settings import asked_task
from posttrain.rewards.rules.task import task as own_grade
from posttrain.rewards.rules.thinks import thinks
from posttrain.rewards.runtime.score import RewardSum

# ---- what changes the rewards

THINK, DIRECT = (1.0, 0.0), (2.0, -1.0)  # what right and wrong earn


@shaping(name="autothink", title="AutoThink", paper="arXiv:2505.10832", reads=("reward_BT",))
def naive_reward(batch: Batch, outcome: str = "reward", mode: str = "", direct: int = 1) -> Tensor:
    """AutoThink: answering without a thought is worth more when right and less when wrong.

    R = 1 or 0 after thinking, 2 or -1 without;  without thinking pays where its chance of being right is above
    (1 + p) / 3, p the chance after thinking
    mode: the component that says whether an answer thought (`thinks`); without it, one of more than `direct` tokens did.
    """
    return on_last(worth(batch, outcome, mode, direct)[0], batch)


def worth(batch: Batch, outcome: str, mode: str, direct: int) -> tuple[Tensor, Tensor, Tensor]:
    """What each answer earns, whether it is right, whether it thought."""
    right_B = component(batch, outcome) > 0.5
    thinks_B = component(batch, mode) > 0.5 if mode else batch.lengths_B > direct
    (good, bad), (better, worse) = THINK, DIRECT
    worth_B = torch.where(thinks_B, torch.where(right_B, good, bad), torch.where(right_B, better, worse))
    return worth_B.to(batch.mask_BT), right_B, thinks_B


@shaping(
    title="AutoThink, stage 1: balance",
    paper="arXiv:2505.10832",
    base="autothink",
    system="autothink",
    reads=("reward_BT",),
)
def autothink_balance(
    batch: Batch, target: float = 0.5, strength: float = 2.0, outcome: str = "reward", mode: str = "", direct: int = 1,
) -> Tensor:  # fmt: skip
    """AutoThink's balance: the mode that too many answers of the batch chose earns less, so that neither dies out.

    d = min(1, strength |z - target|), z the share of the batch's answers that thought;  in the mode above its share
    R = (1 - d) R + d f;  f = 0 when right and -1 when wrong after thinking, 1 and -2 without
    The mode below its share keeps AutoThink's rewards. As the authors' code has it.
    """
    worth_B, right_B, thinks_B = worth(batch, outcome, mode, direct)
    valid_B = batch.valid_B
    over = (thinks_B & valid_B).sum() / valid_B.sum().clamp_min(1) - target
    d = (strength * over.abs()).clamp(max=1.0).to(worth_B)
    floor_B = torch.where(thinks_B, torch.where(right_B, 0.0, -1.0), torch.where(right_B, 1.0, -2.0)).to(worth_B)
    return on_last(torch.where(thinks_B == (over > 0), (1 - d) * worth_B + d * floor_B, worth_B), batch)


@shaping(
    title="AutoThink, stage 3: length",
    paper="arXiv:2505.10832",
    base="autothink",
    system="autothink",
    reads=("group_B", "reward_BT"),
)
def autothink_length(
    batch: Batch, alpha: float = 0.05, beta: float = 0.05, outcome: str = "reward", mode: str = "", direct: int = 1,
) -> Tensor:  # fmt: skip
    """AutoThink's length reward: among siblings, shorter is better when right and longer when wrong.

    R <- R + exp(-alpha y) - 1 when right, R + 1 - exp(-beta y) when wrong
    y = (n - mean n) / std n over the group's right answers for a right one, over its wrong ones for a wrong one (unbiased std);
    0 where it is alone, or all are as long.
    """
    worth_B, right_B, _ = worth(batch, outcome, mode, direct)
    n_B, group_B, valid_B = batch.lengths_B, batch["group_B"], batch.valid_B
    side_B = 2 * group_B + right_B
    y_B = (n_B - group_mean(n_B, side_B, valid_B)) / (group_std(n_B, side_B, valid_B) + 1e-6)
    bonus_B = torch.where(right_B, torch.exp(-alpha * y_B) - 1, 1 - torch.exp(-beta * y_B))
    return on_last(worth_B + bonus_B, batch)


# ---- the plan

STAGES: tuple[tuple[str, Part], ...] = (
    ("balance", autothink_balance),
    ("both", naive_reward),
    ("prune", autothink_length),
)


@plan(paper="arXiv:2505.10832", title="AutoThink", uses=("task",))
def autothink(balance: int = 20, both: int = 60, prune: int = 20) -> Plan:
    """AutoThink: rewards that favour answering at once when it is right, in three stages of so many steps of GRPO.

    balance: AutoThink's rewards, less for the mode that the batch chose too often;  both: the rewards alone;
    prune: plus a bonus for shorter right and longer wrong answers
    An answer thought if `thinks` says so.

    Departures: the start policy must show both modes: the paper's prompt ends in `<think>`, a line of dots and a new
    line, at which a model that was distilled to think closes the tag at once about every other time; here nothing is
    written for the model, and a run on one that always thinks teaches nothing about when. A thought is one only
    between tags in the answer itself: under a chat template that opens the tag, every answer counts as not thinking.
    `--reward` is ignored: the task's own grade says what is right. The rewards are the authors'; 20, 60 and 20 steps
    are this package's.
    """
    steps = {"balance": balance, "both": both, "prune": prune}
    if min(steps.values()) < 0 or not sum(steps.values()):
        raise UserError(f"got {steps}; a stage takes 0 steps or more, and one of them some")

    def rewards(context: Context) -> RewardSum:
        graded = own_grade.but(environment=asked_task(context))
        return RewardSum([("task", graded, 1.0), ("thinks", thinks, 0.0)], context.config.reward_timeout)

    parts = tuple(
        Phase(
            name, grpo.but(name=f"autothink-{name}", shaping=part.but(outcome="task", mode="thinks"), terms=()), steps[name],
            asked_task, rewards=rewards,
        )
        for name, part in STAGES if steps[name]
    )  # fmt: skip
    return Plan(parts)
