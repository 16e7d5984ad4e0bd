"""AutoThink: learn when to think in three stages of GRPO: keep both modes alive, make both accurate, then shorten."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from posttrain.advantages.group import group_mean, group_std
from posttrain.core.batch import Batch
from posttrain.core.credit import component, on_last
from posttrain.core.errors import UserError
from posttrain.core.plan import Context, Phase, Plan, plan
from posttrain.core.protocols import Environment
from posttrain.core.registry import Part, shaping
from posttrain.environments.mapped import with_prefill
from posttrain.losses.aggregate import token_mean
from posttrain.methods.grpo import grpo
from posttrain.methods.settings import asked_rewards, asked_task
from posttrain.rewards.rules.thinks import thinks
from posttrain.rewards.runtime.score import RewardSum, say_once

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

ELLIPSIS = "<think>\n...\n"  # what the paper's prompts end in
STAGES: tuple[tuple[str, Part], ...] = (
    ("balance", autothink_balance),
    ("both", naive_reward),
    ("prune", autothink_length),
)


@plan(paper="arXiv:2505.10832", title="AutoThink", uses=("task", "reward"))
def autothink(balance: int = 20, both: int = 60, prune: int = 20, ellipsis: bool = True) -> Plan:
    """AutoThink: rewards that favour answering at once when it is right, in three stages of so many steps of GRPO.

    balance: AutoThink's rewards, less for the mode that the batch chose too often;  both: the rewards alone;
    prune: plus a bonus for shorter right and longer wrong answers
    An answer is right where the reward of the settings (the task's own grade without one) is above 1/2, and thought if there is
    more than space and dots between its tags, whoever wrote them. ellipsis: where the model's chat template knows
    `<think>`, answers begin with it, a line of dots and a new line, at which a model that was distilled to think closes the tag at once
    about every other time; `--prefill` is another text.

    Departures: a model whose template knows no `<think>` gets no ellipsis and must show both modes itself, or be given a
    `--prefill`; of a model that always thinks, or never does, nothing is learned about when, which the run says after each stage, with
    the share of thoughts in the summary. The authors take 128 prompts, 8,192 tokens and temperature
    0.6 for 220, 440 and 60 steps, here the run's and 20, 60 and 20. The rewards, 8 answers, 2 updates of a batch, the mean over
    tokens, the clip of 0.2 and no KL are the authors'.
    """
    steps = {"balance": balance, "both": both, "prune": prune}
    if min(steps.values()) < 0 or not sum(steps.values()):
        raise UserError(f"got {steps}; a stage takes 0 steps or more, and one of them some")

    def env(context: Context) -> Environment:
        asked: Environment = asked_task(context)
        dots = ellipsis and not context.config.prefill and knows_thoughts(context.role("policy"))
        return with_prefill(asked, ELLIPSIS) if dots else asked

    def rewards(context: Context) -> RewardSum:
        timeout = context.config.reward_timeout
        return RewardSum([("right", asked_rewards(context), 1.0), ("thinks", thinks, 0.0)], timeout)

    base = grpo.but(terms=(), aggregate=token_mean, minibatches=2)
    parts = tuple(
        Phase(
            name, base.but(name=f"autothink-{name}", shaping=part.but(outcome="right", mode="thinks")), steps[name], env,
            rewards=rewards, measured=True, after=tell_modes,
        )
        for name, part in STAGES if steps[name]
    )  # fmt: skip
    begun = {"ellipsis": "--prefill says how answers begin"}
    return Plan(parts, idle=lambda context: begun if context.config.prefill else {})


def tell_modes(context: Context) -> None:
    """The share of answers that thought in a stage; a note where all chose one mode: between the two there was nothing to choose."""
    shares = [share for _, share in context.run.store.series("reward/thinks", context.phase)]
    known = [share for share in shares if share == share]
    if not known:
        return
    context.notes.setdefault("thinks", {})[context.phase] = sum(known) / len(known)
    if max(known) == 0 or min(known) == 1:
        did = "thought" if known[0] else "answered without a thought"
        say_once(
            f"in the stage {context.phase!r} of autothink every answer {did}, so nothing was learned about when to think; use a model that does "
            f"both (one that was distilled to think, with its own chat template), or begin its answers with a text of yours: --prefill"
        )


def knows_thoughts(policy: Any) -> bool:
    """Whether the chat template of a policy speaks of thoughts (R1-Distill, QwQ, Qwen3)."""
    return "<think>" in str(getattr(getattr(policy, "tokenizer", None), "chat_template", None) or "")
