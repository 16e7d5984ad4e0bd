"""XPO: online DPO that explores: what the start would say is made less likely, however it was judged."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from posttrain.core import rng
from posttrain.core.batch import Batch
from posttrain.core.credit import component
from posttrain.core.errors import UserError
from posttrain.core.plan import Context, Copy, Cycle, Do, Phase, Plan, plan
from posttrain.core.protocols import RolloutRequest
from posttrain.core.registry import preference_loss, rollout
from posttrain.core.types import Group
from posttrain.losses.preference.margin import margin, sequence_logp
from posttrain.methods.dpo import dpo
from posttrain.methods.from_pairs import epochs_of
from posttrain.methods.judged import count_calls
from posttrain.methods.rounds import Collect, Row, collected, known, sampled, verdicts, was_heard
from posttrain.methods.settings import asked_judge, needs_judge, written
from posttrain.rewards.scorers.pairwise import Match
from posttrain.rollouts.written import pairs

PAPER = "arXiv:2405.21046"
EXPLORED = "explored"  # the component of an answer's reward that says whether the start gave it


def against_start(context: Context, groups: list[Group], k: float) -> list[list[Row]]:
    """The policy's answer meets one of the start to the same prompt; which is preferred is drawn with the judge's probability, as when somebody is
    asked once. The row says whether the start's is the preferred one."""
    theirs = sampled(context, [g.prompt for g in groups], 1, role="start")
    matches: list[Match] = [
        (g.prompt, g.rollouts[0].text, t.rollouts[0].text) for g, t in zip(groups, theirs, strict=True)
    ]
    judge, heard = asked_judge(context, k), list[float]()
    sure = verdicts(judge, matches, heard)
    was_heard(heard)
    count_calls(context, judge)
    out: list[list[Row]] = []
    for (prompt, own, other), p in zip(matches, sure, strict=True):
        ahead = rng.python("asked once", context.config.seed, context.phase, prompt.id).random() < p
        best, worst = (own, other) if ahead else (other, own)
        row = {"chosen": best, "rejected": worst, "info": known(prompt).get("info", {}) | {EXPLORED: not ahead}}
        out.append([] if own == other or p != p else [row])
    return out


@rollout(data="pairs", paper=PAPER, provides=("chosen_P", "rejected_P", "preferred_P"))
def pairs_with_start(ask: RolloutRequest) -> list[Group]:
    """Pairs with the start (XPO): written pairs of which one answer is the start's, as `info["explored"]` says of the preferred one."""
    groups = pairs(ask)
    for g in groups:
        won = bool(g.prompt.info[EXPLORED])
        for r, of_start in zip(g.rollouts, (won, not won), strict=True):
            r.rewards = {EXPLORED: float(of_start)}
    return groups


@preference_loss(
    name="xpo", paper=PAPER, base="dpo", reads=("chosen_P", "ref_logp_BT", "rejected_P"),
)  # fmt: skip
def xpo_loss(batch: Batch, beta: float = 0.1, alpha: float = 1e-5) -> Tensor:
    """XPO: prefer as DPO does, and leave what the reference says: optimism about what has not been seen.

    L = -log sigmoid(beta u) + alpha log pi(y_ref);  y_ref: the one of the two that the reference gave, whether or not it was preferred
    """
    said_B = sequence_logp(batch.logp_BT, batch)
    won_P = component(batch, EXPLORED)[batch["chosen_P"]] > 0.5
    said_P = torch.where(won_P, said_B[batch["chosen_P"]], said_B[batch["rejected_P"]])
    return -logsigmoid(beta * margin(batch)) + alpha * said_P


@plan(paper=PAPER, title="XPO", uses=("task", "reward"))
def xpo(
    rounds: int = 3, prompts: int = 2000, epochs: float = 1, beta: float = 0.1, alpha: float = 1e-5, k: float = 1.0
) -> Plan:  # fmt: skip
    """XPO: exploratory preference optimisation: online DPO with a bonus for leaving what the start already says.

    L = -log sigmoid(beta u) + alpha log pi(y_ref);  each pair is an answer of the policy and one of the start, y_ref, judged once
    prompts: new ones of each round. epochs: passes over a round's pairs. alpha: 0 is online DPO against the start. k: of a reward that judges.

    Departures: the judge must be given: --reward mine.py:prefer, a function of (prompt, a, b), or a reward r (`runs/NAME`), which judges by sigmoid(k (r_a - r_b)). The paper's algorithm
    fits all pairs of earlier rounds anew after each; here a round learns from its own pairs and goes on from the last one. How many prompts its experiments take, in how many rounds, and how
    alpha changes from round to round could not be checked: 2,000, 3, and 1e-5 throughout here, the last as in TRL. Two equal answers are no pair. One answer of the policy and one of the
    start, and the start as reference, are the paper's; beta 0.1 is TRL's.
    """
    if rounds < 1 or prompts < 1 or epochs <= 0 or beta <= 0 or alpha < 0:
        raise UserError(
            f"got rounds={rounds}, prompts={prompts}, epochs={epochs}, beta={beta}, alpha={alpha}; it takes a round, a prompt, epochs and beta above 0, alpha of 0 or more"
        )

    def pairing(context: Context, groups: list[Group]) -> list[list[Row]]:
        return against_start(context, groups, k)

    method = dpo.but(rollout=pairs_with_start, loss=xpo_loss.but(beta=beta, alpha=alpha))
    learn = Phase("xpo", method, epochs_of(collected, epochs), collected, rewards=written, reference="start")
    return Plan(
        (Copy("policy", "start"), Cycle((Do("collect", Collect(prompts, 1, pairing)), learn), times=rounds)),
        ready=needs_judge("xpo", k),
    )
