"""TOPR: many passes over old answers without a leash: the right ones are imitated, the wrong ones pushed down until rare.

The plan `topr-rounds` is the paper's recipe: a set of answers is collected, learned from in several passes, and collected anew. The
method learns from what it samples at each step, or, with `--rollout logged --task log.jsonl`, from a set that somebody collected.

Departures: a step of the method is a round of 16 prompts, used four times in 8 updates, so that answers are nearly on policy and the
taper hardly binds; in the plan it does. The paper also chooses right and wrong answers so that about 10 to 20% of the weight is on the
right; none are chosen here, but the bar c sets the weights of both. The limits of the weights are the paper's; the bar c = 0.5 is its
baseline 0 for rewards of 0 and 1.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from posttrain.advantages.baseline import baseline
from posttrain.core import rng
from posttrain.core.batch import Batch
from posttrain.core.errors import UserError, unknown
from posttrain.core.method import Method, method
from posttrain.core.plan import Context, Cycle, Do, Phase, Plan, plan, round_of
from posttrain.core.registry import policy_loss
from posttrain.core.types import Group, Prompt, Rollout
from posttrain.environments.base import size_of
from posttrain.environments.language.listed import Listed
from posttrain.losses.policy.reinforce import reinforce as score_function
from posttrain.methods.from_pairs import epochs_of
from posttrain.methods.reinforce import reinforce
from posttrain.methods.settings import asked_rewards, asked_task, written
from posttrain.rollouts.logged import logged


@policy_loss(
    name="topr",
    title="TOPR",
    paper="arXiv:2503.14286",
    base="reinforce",
    laws=("on_policy_is_reinforce", "zero_credit_no_gradient", "never_against_the_credit"),
    reads=("adv_BT", "old_logp_BT"),
)
def tapered_blame(
    batch: Batch, low_right: float = 1.0, high_right: float = 1.0, low_wrong: float = 0.0, high_wrong: float = 1.0
) -> Tensor:
    """TOPR: old answers that earned credit are imitated whole; blame fades as a bad answer becomes unlikely.

    w = clip(pi(y) / mu(y), low, high);  L_t = -sg(w) A logp_t;  mu is the sampler, the ratio that of the whole answer
    The paper's limits: [1, 1] for A >= 0 (supervised learning), [0, 1] for A < 0, so that the loss cannot run away.
    """
    adv_BT = batch["adv_BT"]
    log_ratio_BT = torch.where(batch.mask_BT > 0, batch.logp_BT - batch["old_logp_BT"], 0.0)
    ratio_B1 = torch.exp(log_ratio_BT.sum(-1, keepdim=True)).detach()
    right_B1, wrong_B1 = ratio_B1.clamp(low_right, high_right), ratio_B1.clamp(low_wrong, high_wrong)
    return torch.where(adv_BT < 0, wrong_B1, right_B1) * score_function(batch)


topr = method(
    reinforce.but(
        name="topr", title="TOPR", paper="arXiv:2503.14286", doc=__doc__,
        advantage=baseline, loss=tapered_blame, epochs=4, minibatches=2,
    )
)  # fmt: skip


# ---- the plan

WEIGHTS: dict[str, dict[str, float]] = {
    "tapered": {},  # the paper's
    "truncated": {"low_right": 0.0},  # min(pi/mu, 1) for right and wrong
    "none": {"low_wrong": 1.0},  # plain REINFORCE on old answers
}


def off_policy(c: float = 0.5, weights: str = "tapered") -> Method:
    """An update for every batch of collected answers."""
    return topr.but(
        rollout=logged, advantage=baseline.but(c=c), loss=tapered_blame.but(**WEIGHTS[weights]), epochs=1, minibatches=1
    )


def collect(context: Context, questions: int, n: int) -> None:
    """n answers of the policy as it is to every question, with their rewards and log-probabilities; those that cannot be graded go."""
    c, env, i = context.config, asked_task(context), round_of(context)
    prompts = [env.prompt(k) for k in range(min(questions, size_of(env, "train") or questions))]
    made = context.role("policy").sample(prompts, n, c.sampling, rng.key(c.seed, "round", i) & 0x7FFFFFFF)
    groups = [Group(p, some) for p, some in zip(prompts, made, strict=True)]
    asked_rewards(context).score(groups)
    rows: list[dict[str, Any]] = []
    for k, g in enumerate(groups):
        told = [_told(r) for r in g.rollouts if not r.failed and r.reward is not None and len(r)]
        rows += [{"question": k, "answers": told}] if told else []
    if not rows:
        raise UserError(f"round {i}: none of {n} answers to each of {len(prompts)} questions could be graded")
    earned = [a["reward"] for row in rows for a in row["answers"]]
    context.run.write_artifact(f"answers{i}", rows)
    context.notes.setdefault("collected", {})[f"round {i}"] = {
        "answers": len(earned),
        "reward": sum(earned) / len(earned),
    }


def _told(r: Rollout) -> dict[str, Any]:
    """An answer as a log has it."""
    own = {"tokens": r.actions.tolist(), "logp": r.logp_T.tolist(), "mask": r.mask_T.tolist()}
    return own | {"text": r.text, "reward": float(r.total)}


def collected(context: Context) -> Listed:
    """The present round's questions with their answers."""
    env = asked_task(context)

    def asked(row: dict[str, Any]) -> Prompt:
        p: Prompt = env.prompt(row["question"])
        return replace(p, info=p.info | {"answers": row["answers"]})

    rows = context.run.read_artifact(f"answers{round_of(context)}")
    return Listed("collected", tuple(map(asked, rows)))


@plan(paper="arXiv:2503.14286", title="TOPR, in rounds")
def topr_rounds(
    rounds: int = 3, questions: int = 500, n: int = 8, epochs: float = 2, c: float = 0.5, weights: str = "tapered"
) -> Plan:  # fmt: skip
    """TOPR, in rounds: n answers to every question are collected, learned from in several passes without a leash, and collected anew.

    w = clip(pi(y) / mu(y), 0, 1) for blame, 1 for credit R - c;  mu: the policy as the round began
    weights: tapered is TOPR, truncated clips right answers too, none is plain REINFORCE on old answers; c=0 imitates right answers
    alone. questions: the first so many of --task, the same in every round; epochs: passes over a round's answers, --prompts of the
    questions with all their answers an update.

    Departures: the paper asks all questions of GSM8K or MATH; here 500 at most, 8 answers to each. 3 rounds and 2 passes are this
    package's. Its choice of which right and wrong answers to keep is not here: all are learned from, and c sets their weights.
    """
    if rounds < 1 or questions < 1 or n < 1 or epochs <= 0:
        raise UserError(
            f"got rounds={rounds}, questions={questions}, n={n}, epochs={epochs}; it takes 1 round, question and answer at least"
        )
    if weights not in WEIGHTS:
        raise unknown("way to weigh old answers", weights, WEIGHTS)
    learn = Phase("topr", off_policy(c, weights), epochs_of(collected, epochs), collected, rewards=written)
    return Plan((Cycle((Do("collect", lambda context: collect(context, questions, n)), learn), times=rounds),))
