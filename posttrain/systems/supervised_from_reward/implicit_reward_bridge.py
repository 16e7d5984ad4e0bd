"""SFT as implicit reward learning: imitation that stays near the base, by a small rate or by an f-divergence, before DPO."""

from __future__ import annotations

import torch
from torch import Tensor

from posttrain.core.batch import Batch
from posttrain.core.errors import UserError, unknown
from posttrain.core.method import Method
from posttrain.core.plan import Context, Copy, Do, Phase, Plan, plan
from posttrain.core.registry import supervised_loss
from posttrain.core.types import Group
from posttrain.evals.kl import kl_of
from posttrain.losses.aggregate import sequence_sum
from posttrain.losses.preference.dpo import dpo as dpo_loss
from posttrain.methods.dpo import dpo
from posttrain.methods.from_pairs import demonstrations, epochs_of
from posttrain.methods.members import answered
from posttrain.methods.settings import asked_pairs, asked_task, written
from posttrain.methods.sft import sft

PAPER = "arXiv:2507.00018"
DIVERGENCES = ("tv", "pearson", "hellinger")
EDGE = -0.5  # below it the reward of Hellinger goes on as a straight line: x / (1 + x) has a pole at -1

# ---- what is minimised


@supervised_loss(
    name="f_sft",
    title="f-divergence SFT",
    paper=PAPER,
    base="sft",
    system="implicit-reward-bridge",
    reads=("ref_logp_BT",),
)
def f_sft(batch: Batch, divergence: str = "pearson", beta: float = 0.1) -> Tensor:
    """f-divergence SFT: imitation in which the implicit reward of a demonstration, its log-ratio to the base, earns less and less.

    L = -phi(x) / beta over an answer's tokens;  x = beta log pi(y) / ref(y), phi(x) = -f*(-x), f*: the conjugate of the divergence f
    tv: f = |u - 1| / 2, f*(t) = t, phi = x: plain SFT.   pearson: f = (u - 1)^2, f*(t) = t + t^2 / 4, phi = x - x^2 / 4: turns back at x = 2.
    hellinger: f = (sqrt(u) - 1)^2, f*(t) = t / (1 - t), phi = x / (1 + x): fades and never turns; a straight line below x = -1/2.
    """
    own_BT = batch.mask_BT > 0
    x_B = beta * torch.where(own_BT, batch.logp_BT - batch["ref_logp_BT"], 0.0).sum(-1)
    loss_B = -concave(x_B, divergence) / beta
    return (loss_B / batch.lengths_B.clamp_min(1)).unsqueeze(-1) * own_BT


def concave(x: Tensor, divergence: str) -> Tensor:
    """phi(x) = -f*(-x).

    D_f(expert || policy) = max_r E_expert[r] - E_policy[f*(r)]. With a KL to the base beside it the inner policy is base exp(r / beta) / Z, so a reward
    and its policy determine each other: r = beta log(pi / ref) + beta log Z(x). Put in, as for inverse soft Q-learning, the maximum over rewards is one over
    policies, of E_expert[phi(r)] - E[V(x)], V = beta log Z. Rewards that differ by a function of x have the same policy: with V = 0 it is E_expert[phi(beta log(pi / ref))].
    For tv, phi = x, V cancels whatever it is, and the base drops out of the gradient: that is SFT.
    """
    if divergence == "tv":
        return x
    if divergence == "pearson":
        return x - x * x / 4
    if divergence != "hellinger":
        raise unknown("divergence", divergence, DIVERGENCES)
    safe = x.clamp_min(EDGE)
    slope = 1 / (1 + EDGE) ** 2
    return torch.where(x >= EDGE, safe / (1 + safe), EDGE / (1 + EDGE) + slope * (x - EDGE))


def imitation(divergence: str, beta: float) -> Method:
    """SFT itself for total variation, which it is the case of."""
    if divergence == "tv":
        return sft
    return sft.but(
        name="f-sft",
        title="f-divergence SFT",
        paper=PAPER,
        loss=f_sft.but(divergence=divergence, beta=beta),
        aggregate=sequence_sum,
    )


# ---- the plan


def drift(context: Context) -> None:
    """How far imitation has gone from the base, on the policy's own answers: what the paper says it should not do unchecked."""
    groups: list[Group] = answered(context, context.role("policy"), asked_task(context), 2)
    found, _ = kl_of(context.role("policy"), context.role("start"), [r for g in groups for r in g.rollouts])
    context.notes["kl_after_sft"] = found


@plan(title="Implicit reward bridge", paper=PAPER, uses=("task",))
def implicit_reward_bridge(
    pairs: str = "", divergence: str = "tv", beta: float = 0.1, epochs: float = 1.0, sft_rate: float = 0.25, dpo_rate: float = 0.025,
    dpo_epochs: float = 1.0,
) -> Plan:  # fmt: skip
    """SFT, then DPO, where SFT is kept near the base: by a rate several times smaller, or by another divergence than total variation.

    SFT is implicit reward learning with total variation as the divergence between expert and policy: -E_expert log pi, from which the KL to the base drops out, so that
    nothing holds the policy near it. Remedies: a small rate (sft_rate, the paper's main one), or L = -phi(beta log pi / ref) / beta with phi of another divergence, which fades
    as the log-ratio grows. DPO on preference pairs follows, from there and with that policy as its reference.

    Demonstrations are --task, pairs --plan.pairs FILE (chosen, rejected). divergence: "tv" (SFT), "pearson" or "hellinger"; beta: of the divergence and of DPO; epochs, dpo_epochs: passes over
    each; sft_rate, dpo_rate: their rates as shares of --lr. `sft_rate=1` is the usual recipe. The KL to the base after imitation is reported.

    Departures: no code was released and the losses could not be compared with the paper's: they are derived here from the conjugates (see `f_sft`), on the log-ratio of whole answers
    with the free constant of the reward at 0; the paper may keep a value there. The paper's rates could not be checked: a quarter of the usual for SFT, and a fortieth for DPO, as
    2e-5, 5e-6 and 5e-7 are common for models of 8 billion parameters; --lr stands for the usual one. Its use of the logits as values is not here. The straight line of hellinger below -1/2 is this package's.
    """
    if divergence not in DIVERGENCES:
        raise unknown("divergence", divergence, DIVERGENCES)
    if min(beta, epochs, sft_rate, dpo_rate, dpo_epochs) <= 0:
        raise UserError(
            f"got beta={beta:g}, epochs={epochs:g}, sft_rate={sft_rate:g}, dpo_rate={dpo_rate:g}, dpo_epochs={dpo_epochs:g}; all are above 0"
        )
    shown = demonstrations(option="")

    def compared(context: Context) -> object:
        return asked_pairs(context, pairs)

    def ready(context: Context) -> None:
        if not pairs:
            raise UserError(
                "implicit-reward-bridge imitates the demonstrations of --task and then learns from pairs; name a file with chosen and rejected: --plan.pairs pairs.jsonl"
            )
        shown(context)
        compared(context)

    prefer = dpo.but(loss=dpo_loss.but(beta=beta))
    return Plan(
        (
            Copy("policy", "start"),
            Phase("sft", imitation(divergence, beta), epochs_of(shown, epochs), shown, rewards=written, pace=sft_rate),
            Do("drift", drift),
            Phase("dpo", prefer, epochs_of(compared, dpo_epochs), compared, rewards=written, pace=dpo_rate),
        ),
        ready=ready,
    )
