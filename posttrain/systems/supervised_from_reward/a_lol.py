"""A-LoL: learn from logged answers that are better than the reference's value of their prompt, in proportion to how much better."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from posttrain.advantages.outcome import outcome
from posttrain.core import rng
from posttrain.core.answers import demonstration
from posttrain.core.batch import Batch
from posttrain.core.errors import UserError, unknown
from posttrain.core.method import Method
from posttrain.core.plan import Context, Do, Phase, Plan, plan
from posttrain.core.protocols import Environment, Policy, RolloutRequest
from posttrain.core.registry import policy_loss, prompt_sampler
from posttrain.core.types import Group, Prompt
from posttrain.environments.base import size_of
from posttrain.environments.logs import LogData
from posttrain.environments.task import log_task
from posttrain.losses.aggregate import sequence_sum
from posttrain.methods.from_pairs import epochs_of, has_reward
from posttrain.methods.settings import asked_scores, written
from posttrain.methods.sft import sft
from posttrain.models.prompt_value import fitted, prompt_values
from posttrain.prompts.uniform import copy_of
from posttrain.rewards.scorers.spec import build_scorer
from posttrain.rollouts.logged import logged
from posttrain.runs.build import columns, said_first

PAPER = "arXiv:2305.14718"
VARIANTS = ("a-lol", "seq", "kl", "ref-free")
SAVED = "advantages"
PASSES = 10  # of the value head, over answers to held-out prompts

# ---- which answers come


@prompt_sampler(name="by_worth", title="By worth (A-LoL)", paper=PAPER, system="a-lol", base="uniform")
class by_worth:
    """By worth (A-LoL): prompts are drawn with replacement, each in proportion to its `info["worth"]`.

    There is no state: what comes at a step is a function of (seed, step).
    """

    def start(self, env: Environment, seed: int) -> None:
        self.env, self.seed = env, seed
        self.rows = [env.prompt(i, "train") for i in range(size_of(env, "train"))]
        self.worth = [max(float(p.info.get("worth", 1.0)), 0.0) for p in self.rows]
        if not sum(self.worth) > 0:
            raise UserError(f"{env.name} has no prompt that is worth more than 0 (info['worth']), so none can be drawn")

    def propose(self, n: int, step: int, policy: Policy | None = None) -> list[Prompt]:
        """The n prompts of a step; one that is drawn again has an identity of its own."""
        drawn = rng.python(self.seed, "by worth", step).choices(self.rows, self.worth, k=n)
        return [copy_of(p, [q.id for q in drawn[:k]].count(p.id)) for k, p in enumerate(drawn)]

    def observe(self, groups: list[Group]) -> None:
        """What comes does not depend on results."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


# ---- what is minimised


@policy_loss(name="a_lol", title="A-LoL", paper=PAPER, base="reinforce", system="a-lol", laws=("zero_credit_no_gradient",),
             reads=("adv_BT", "ref_logp_BT"))  # fmt: skip
def leftover_lunch(batch: Batch, variant: str = "a-lol", clip: float = 0.9, beta: float = 0.05) -> Tensor:
    """A-LoL: the whole answer is one action; its ratio to the reference is clipped and no gradient flows through it.

    L_t = -A rho log pi_t;  rho = clip(pi(y | x) / ref(y | x), 1 - clip, 1 + clip), a constant
    variant "seq": a ratio for each token; "ref-free": rho = 1; "kl": rho = 1 and + beta (log pi_t - log ref_t) where A is not 0
    """
    if variant not in VARIANTS:
        raise unknown("variant of A-LoL", variant, VARIANTS)
    adv_BT, logp_BT, ref_BT = batch["adv_BT"], batch.logp_BT, batch["ref_logp_BT"]
    if variant == "kl":
        return -adv_BT * logp_BT + torch.where(adv_BT != 0, beta * (logp_BT - ref_BT), 0.0)
    if variant == "ref-free":
        return -adv_BT * logp_BT
    moved_BT = torch.where(batch.mask_BT > 0, logp_BT.detach() - ref_BT, 0.0)
    log_ratio = moved_BT if variant == "seq" else moved_BT.sum(-1, keepdim=True)
    return -adv_BT * torch.exp(log_ratio).clamp(1 - clip, 1 + clip) * logp_BT


def offline(variant: str = "a-lol", clip: float = 0.9, beta: float = 0.05, priority: bool = True) -> Method:
    """An update for every batch of logged answers; each pays its own advantage."""
    drawn = {"prompts": by_worth} if priority else {}
    return sft.but(
        name="a-lol", title="A-LoL", paper=PAPER, doc=__doc__, rollout=logged.but(logp=False), advantage=outcome,
        loss=leftover_lunch.but(variant=variant, clip=clip, beta=beta), aggregate=sequence_sum, **drawn,
    )  # fmt: skip


# ---- the log, and what its answers are worth


def asked_log(context: Context) -> LogData:
    """The answers of --task (a file with prompt, response and, where known, reward; a run's folder), read once."""
    context.read.add("task")
    c = context.config
    if ("log", c) not in context.made:
        given = context.given.get("env")
        env = log_task(c.task, **columns(c)) if given is None else as_log(given)
        context.made["log", c] = said_first(env, c)
    found: LogData = context.made["log", c]
    return found


def as_log(env: Any) -> LogData:
    """Rows from Python: an answer to imitate and perhaps a reward."""
    if isinstance(env, LogData):
        return env
    splits = {split: tuple(map(_logged, some)) for split, some in getattr(env, "splits", {}).items()}
    if not splits.get("train"):
        raise UserError(
            f"a-lol learns from logged answers, and {env.name} has none; give rows with prompt, response and reward"
        )
    every = [a for some in splits.values() for p in some for a in p.info["answers"]]
    given = {"answers": len(every), "reward": sum("reward" in a for a in every)}
    bare = {split: tuple(replace(p, answer=p.info.get("gold")) for p in some) for split, some in splits.items()}
    return LogData(env.name, bare, env.reward, env.layout, env.seed, env.left_out, env.understood, given)


def _logged(p: Prompt) -> Prompt:
    text = p.info.get("response") or demonstration(p)
    if not isinstance(text, str):
        raise UserError(f"the row {p.id} has no logged answer; give it a column response")
    reward = p.info.get("reward")
    answer = {"text": text} | ({} if reward is None else {"reward": float(reward)})
    return replace(p, info={**p.info, "answers": [answer]})


def scored_by(context: Context, log: LogData) -> Any:
    """What scores answers: --reward; where none is named the log's own column (None), else the task's grade."""
    context.read.add("reward")
    if "scorer" in context.given:
        return context.given["scorer"]
    c = context.config
    if not has_reward(context) and log.rewarded:
        return None
    if not has_reward(context) and not log.graded:
        raise UserError(
            f"{log.name} does not say what each of its answers earned; give a column reward, or score them: --reward NAME, "
            "mine.py:function, runs/NAME or a folder of a reward model"
        )
    return build_scorer(c.reward, log, c.reward_timeout, c.device)


class Estimate:
    """The work before learning: rewards of all answers, the value of every prompt under the reference, advantages. It is done once."""

    def __init__(self, sigmoid: bool, baseline: bool) -> None:
        self.sigmoid, self.baseline = sigmoid, baseline

    def work(self, context: Context) -> None:
        log, policy, c = asked_log(context), context.role("policy"), context.config
        scorer = scored_by(context, log)
        learned = self.given(context, log.splits.get("train", ()), scorer)
        values = [0.0] * len(learned)
        if self.baseline:
            seen = self.given(context, log.splits.get("test", ())) if scorer is None else self.own(context, log, scorer)
            pairs = [
                (g.prompt, self.worth(r)) for g in seen for r in g.rollouts if not r.failed and r.reward is not None
            ]
            head, error = fitted(policy, [p for p, _ in pairs], [x for _, x in pairs], PASSES, c.seed)
            values = prompt_values(policy, head, [g.prompt for g in learned])
            context.notes["value_error"] = error
        rows = [
            {"place": i, "answer": r.index, "reward": self.worth(r), "value": v, "advantage": self.worth(r) - v}
            for i, (g, v) in enumerate(zip(learned, values, strict=True))
            for r in g.rollouts
            if not r.failed and r.reward is not None
        ]
        kept = sum(row["advantage"] > 0 for row in rows)
        if not kept:
            raise UserError(
                f"none of {len(rows)} logged answers is worth more than the reference's own, so there is nothing to learn from"
            )
        context.run.write_artifact(SAVED, rows)
        context.notes |= {"answers": len(rows), "share_kept": kept / len(rows)}

    def worth(self, r: Any) -> float:
        return float(torch.sigmoid(torch.tensor(float(r.total)))) if self.sigmoid else float(r.total)

    def given(self, context: Context, prompts: tuple[Prompt, ...], scorer: Any = None) -> list[Group]:
        """The logged answers to some prompts, with what they earned."""
        asked = RolloutRequest({"policy": context.role("policy")}, prompts, context.config.sampling)
        groups: list[Group] = logged(asked, logp=False) if prompts else []
        if scorer is not None and groups:
            asked_scores(context, groups, scorer)
        return groups

    def own(self, context: Context, log: LogData, scorer: Any) -> list[Group]:
        """The reference's own answers to held-out prompts, scored."""
        prompts, c = log.splits.get("test", ()), context.config
        made = context.role("policy").sample(prompts, 1, c.sampling, rng.key(c.seed, "values") & 0x7FFFFFFF)
        groups = [Group(p, some) for p, some in zip(prompts, made, strict=True)]
        asked_scores(context, groups, scorer)
        return groups


def positive(context: Context) -> LogData:
    """The answers with an advantage above 0, each a prompt of its own that is worth its advantage; before there are any, the log."""
    log = asked_log(context)
    if not context.run.artifact(SAVED).exists():
        return log
    train, rows = log.splits["train"], context.run.read_artifact(SAVED)

    def alone(row: dict[str, Any]) -> Prompt:
        p: Prompt = train[row["place"]]
        worth = row["advantage"]
        answer = {**p.info["answers"][row["answer"]], "reward": worth}
        return replace(p, id=f"{p.id}/{row['answer']}", info={**p.info, "answers": [answer], "worth": worth})

    return replace(log, splits={**log.splits, "train": tuple(alone(row) for row in rows if row["advantage"] > 0)})


def imitated(context: Context) -> LogData:
    """Every logged answer as one to imitate."""
    log = asked_log(context)
    train = tuple(
        replace(p, id=f"{p.id}/{k}", answer=None, info={**p.info, "demonstration": a["text"]})
        for p in log.splits["train"]
        for k, a in enumerate(p.info["answers"])
        if isinstance(a.get("text"), str)
    )
    return replace(log, splits={**log.splits, "train": train})


# ---- the plan


@plan(title="A-LoL", paper=PAPER)
def a_lol(
    variant: str = "a-lol", clip: float = 0.9, priority: bool = True, epochs: float = 1.0, warmup: float = 0.0, sigmoid: bool = False,
    steps: int = 0,
) -> Plan:  # fmt: skip
    """A-LoL: advantage-based offline policy gradient. Learn from logged answers that are better than the reference would do.

    A(x, y) = R(x, y) - V_ref(x), computed once; rows with A <= 0 are dropped, the others are drawn in proportion to A
    L = -A clip(pi(y | x) / ref(y | x), 1 - clip, 1 + clip) log pi(y | x), the ratio of the whole answer and without gradient
    R is the log's column `reward`, or what `--reward` says. V_ref is a head of attention and one linear layer on the frozen reference's
    states of the prompt, fitted by squared error to what the reference's own answers to held-out prompts earn (the log's own answers to them where there
    is no --reward to score others). The reference is the model as the plan begins, or what --plan.warmup passes of imitation make of it.

    variant: "a-lol"; "seq", a ratio for each token; "ref-free", no ratio; "kl", no ratio and 0.05 times the log-ratio as a penalty; "r-lol", R in
    place of A (no value; rows with R <= 0 are dropped). priority: draw in proportion to A; else every kept row alike. epochs: passes over as many rows as are
    kept. warmup: passes of plain imitation of the whole log first. sigmoid: rewards go through one, for scores of a reward model.
    steps: as many updates instead of `epochs` passes.

    Departures: the authors put a reward model's score through a sigmoid (`--plan.sigmoid True`), as their value head ends in one; here the
    head is linear and begins at the mean. It has no dropout, and a rate of 1e-3 where theirs is 1e-5 for a width of 4,096; 10 passes and the pass with the least
    error are theirs. The penalty of 0.05 is this package's; their KL variant has one and no ratio, as here, but no default. They train QLoRA of rank 64 at 2e-4 with a norm of 0.3 for 9,000
    steps times the share that is kept; here all weights, at a rate for the size, for `epochs`. Clip 0.9, sums over tokens, and A both as the chance of being drawn and as
    the weight are theirs. Their baselines weighted cloning and R-GOLD are not here.
    """
    if variant != "r-lol" and variant not in VARIANTS:
        raise unknown("variant of A-LoL", variant, (*VARIANTS, "r-lol"))
    if not 0 < clip <= 1 or epochs <= 0 or warmup < 0 or steps < 0:
        raise UserError(
            f"got clip={clip:g}, epochs={epochs:g}, warmup={warmup:g}, steps={steps}; clip is in (0, 1], epochs above 0"
        )
    estimate = Estimate(sigmoid, baseline=variant != "r-lol")
    loss = "a-lol" if variant == "r-lol" else variant
    width = clip if loss in ("a-lol", "seq") else 0.9  # the others have no ratio

    def ready(context: Context) -> None:
        log = asked_log(context)
        scored_by(context, log)
        if variant != "r-lol" and len(log.splits.get("test", ())) < 2:
            raise UserError(
                f"{log.name} has {len(log.splits.get('test', ()))} held-out prompts, and values are learned on those; it takes 2 at least"
            )

    warm = (Phase("sft", sft, epochs_of(imitated, warmup), imitated, rewards=written, measured=True),) if warmup else ()
    learn = Phase(
        "a-lol",
        offline(loss, width, priority=priority),
        steps or epochs_of(positive, epochs),
        positive,
        rewards=written,
        measured=True,
    )
    return Plan((*warm, Do("values", estimate.work), learn), ready=ready)
