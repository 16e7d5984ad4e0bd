"""Constrained RLHF: PPO whose weights of the rewards are Lagrange multipliers, so that each component settles at its proxy point."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, pstdev
from typing import Any

import torch
from torch import Tensor

from posttrain.advantages.gae import surprises
from posttrain.advantages.whiten import batch_whiten
from posttrain.core import rng
from posttrain.core.batch import Batch
from posttrain.core.credit import component, on_last
from posttrain.core.critic import CriticSettings
from posttrain.core.errors import UserError, unknown
from posttrain.core.method import Method
from posttrain.core.plan import Context, Copy, Cycle, Do, Phase, Plan, plan
from posttrain.core.protocols import Policy
from posttrain.core.registry import advantage, scorer
from posttrain.core.types import Group
from posttrain.environments.base import size_of
from posttrain.losses.value.value_loss import value_losses
from posttrain.methods.members import EVAL_SEED, worth
from posttrain.methods.nelder_mead import ask, best
from posttrain.methods.ppo import ppo
from posttrain.methods.settings import asked_rewards, asked_task
from posttrain.rewards.runtime.scorer import BaseScorer, Scorer, Verdict, answers_of
from posttrain.rewards.scorers.spec import build_scorer
from posttrain.rewards.shaping.kl_in_reward import sampled_kl

KINDS = ("equal", "least")

# ---- what answers are worth


@scorer(title="Beside proxy points", paper="arXiv:2310.04373")
class Pointed(BaseScorer):
    """Beside proxy points: the rewards of `scorer`, and for each component NAME its point as the component point-NAME."""

    def __init__(self, scorer: Scorer, points: dict[str, float]) -> None:
        self.inner, self.points = scorer, points

    def verdicts(self, groups: list[Group]) -> list[Verdict]:
        told = {f"point-{name}": x for name, x in self.points.items()}
        return [Verdict(None, told) for _ in answers_of(groups)]


# ---- credit


@advantage(
    title="Credit at proxy points", paper="arXiv:2310.04373", base="gae_by_reward",
    reads=("old_value_BTK", "old_logp_BT", "ref_logp_BT"), provides=("return_BTK",),
)  # fmt: skip
class proxy_points:
    """Credit at proxy points (constrained RLHF): a critic for each component and one for the KL, mixed by Lagrange multipliers.

    A = (N - sum_i w_i) A_KL + sum_i w_i A_i, each GAE by its own critic and whitened by itself;  r_KL = -log(pi / pi_ref)
    mu_i <- mu_i + lr w'(mu_i) (point_i - mean r_i), once a batch, after it was weighed;  mu = 0 at first
    kind="equal" (xi-PPO): w = tanh(mu), which turns against a component that overshoots. kind="least" (mu-PPO): w =
    sigmoid(mu), which only lets go of it. rewards: the components, each with its point as the component point-NAME (the scorer
    `Pointed`).
    """

    def __init__(
        self, rewards: tuple[str, ...] = (), kind: str = "equal", lr: float = 1.0, gamma: float = 1.0, lam: float = 0.95
    ) -> None:
        if kind not in KINDS:
            raise unknown("kind of proxy point", kind, KINDS)
        self.rewards, self.kind, self.lr, self.gamma, self.lam = rewards, kind, lr, gamma, lam
        self.mu = dict.fromkeys(rewards, 0.0)

    def weight(self, name: str) -> float:
        x = self.mu[name]
        return math.tanh(x) if self.kind == "equal" else 1 / (1 + math.exp(-x))

    def slope(self, name: str) -> float:
        w = self.weight(name)
        return 1 - w**2 if self.kind == "equal" else w * (1 - w)

    def __call__(self, batch: Batch) -> tuple[Tensor, Tensor]:
        valid_B1 = batch.valid_B.unsqueeze(-1)
        earned = [torch.where(valid_B1, on_last(component(batch, n), batch), 0.0) for n in self.rewards]
        earned.append(-sampled_kl(batch))
        old_BTK = torch.where(batch.mask_BT.unsqueeze(-1) > 0, batch["old_value_BTK"], 0.0)
        if old_BTK.shape[-1] != len(earned):
            raise UserError(
                f"there are {old_BTK.shape[-1]} critics for {len(earned) - 1} rewards and the KL; each needs its own"
            )
        each = [
            surprises(r_BT, v_BT, batch.mask_BT, self.gamma, self.lam)
            for r_BT, v_BT in zip(earned, old_BTK.unbind(-1), strict=True)
        ]
        weights = [self.weight(n) for n in self.rewards]
        weights.append(len(self.rewards) - sum(weights) if self.rewards else 1.0)
        mixed_BT = torch.zeros_like(batch.mask_BT)
        for w, adv_BT in zip(weights, each, strict=True):
            mixed_BT = mixed_BT + w * batch_whiten(adv_BT, batch.mask_BT)
        self.step(batch)
        return mixed_BT, torch.stack(each, -1) + old_BTK

    def step(self, batch: Batch) -> None:
        """Move the multipliers by how far this batch is from the points."""
        valid_B = batch.valid_B
        if bool(valid_B.any()):
            for n in self.rewards:
                below = component(batch, f"point-{n}")[valid_B].mean() - component(batch, n)[valid_B].mean()
                self.mu[n] += self.lr * self.slope(n) * float(below)

    def state_dict(self) -> dict[str, float]:
        return dict(self.mu)

    def load_state_dict(self, state: dict[str, float]) -> None:
        self.mu = {name: float(state[name]) for name in self.rewards}


def constrained_ppo(names: Sequence[str], kind: str = "equal", lr: float = 1.0) -> Method:
    """PPO with a critic for each of these components and one for the KL; what it is paid in sum plays no part."""
    return ppo.but(
        name="constrained-rlhf", title="Constrained RLHF", paper="arXiv:2310.04373", doc=__doc__, shaping=(),
        advantage=proxy_points.but(rewards=tuple(names), kind=kind, lr=lr),  # type: ignore[attr-defined]
        terms=(value_losses,), critic=CriticSettings(rewards=(*names, "kl")),
    )  # fmt: skip


# ---- the plan

NO_POINTS = (
    "constrained-rlhf holds each component of --reward at its proxy point; give the points, --plan.points 'a=0.4, b=0.7' with the "
    "components' names, or let it search them on the true metric: --plan.points 'a, b' --plan.gold mine.py:quality"
)
STEADY = {"schedule": "constant"}  # the tries are one run, so none of them ends its learning rate
LOOKED_AT = 100  # training prompts on which the true metric is asked


def read_points(text: str) -> dict[str, float | None]:
    """'a=0.4, b=0.7' or 'a, b': components with their points, or with none."""
    out: dict[str, float | None] = {}
    for piece in filter(None, (x.strip() for x in text.split(","))):
        name, equals, value = (x.strip() for x in piece.partition("="))
        try:
            out[name] = float(value) if equals else None
        except ValueError:
            raise UserError(f"cannot read the proxy point {piece!r}; write --plan.points 'a=0.4, b=0.7'") from None
    if len({x is None for x in out.values()}) > 1:
        raise UserError(f"some of the points {text!r} have a value and some have none; give all of them, or none")
    return out


@plan(paper="arXiv:2310.04373", title="Constrained RLHF")
def constrained_rlhf(
    points: str = "",
    gold: str = "",
    kind: str = "equal",
    steps: int = 60,
    tries: int = 10,
    every: int = 6,
    lr: float = 1.0,
) -> Plan:
    """Constrained RLHF: PPO that holds each component of the reward at its proxy point, past which more of it is worth less.

    A = (N - sum_i w_i) A_KL + sum_i w_i A_i;  w_i = tanh(mu_i);  mu_i rises while component i is below its point, and falls above it
    --reward names the components ("mine.py:a + mine.py:b"), each with a critic of its own; their sum is only reported. points:
    "a=0.4, b=0.7". With names alone ("a, b") they are searched in the same run (Nelder-Mead): `tries` times `every` steps with
    points to try, each judged by gold= (a reward like any other, which no update sees) on training prompts; then `steps` steps
    at the best. kind="least" (mu-PPO) never turns against a component.

    Departures: the authors step the multipliers at each minibatch with rate 0.1, here once a batch with rate 1 (lr=). They end a try
    when all components are within 5% of their points; here each has `every` steps, and multipliers and optimiser begin anew.
    Their first simplex is drawn by hand from earlier runs; here between the start's mean of each component and two deviations above
    it. The value losses of components and KL weigh alike, theirs 0.5 and 0.2. 8 answers per prompt are `ppo`'s. A KL price
    has no place, since the credit of the KL is whitened, as theirs is.
    """
    wanted = read_points(points)
    searched = bool(wanted) and all(x is None for x in wanted.values())
    if kind not in KINDS:
        raise unknown("kind of proxy point", kind, KINDS)
    if steps < 1 or every < 1 or tries < len(wanted) + 1:
        raise UserError(
            f"got steps={steps}, every={every}, tries={tries}; 1 step at least, and a try more than there are points"
        )
    names = list(wanted)

    def ready(context: Context) -> None:
        if searched != bool(gold):
            raise UserError(
                NO_POINTS if searched else "--plan.gold judges points that are searched, and these are given"
            )
        there = getattr(asked_rewards(context), "rewards", None)
        for name in names:
            if isinstance(there, dict) and name not in there:
                raise unknown("component of --reward", name, list(there))

    def at(context: Context) -> dict[str, float]:
        """The points of the phase that begins: given, to be tried, or the best that were tried."""
        if not searched:
            return {n: x for n, x in wanted.items() if x is not None}
        note = context.notes["search"]
        found = ask(note["simplex"], note["seen"]) if context.phase.startswith("try") else best(note["seen"])
        return dict(zip(names, found, strict=True))

    def rewards(context: Context) -> Pointed:
        held = at(context)
        context.notes["proxy_points"] = held
        return Pointed(asked_rewards(context), held)

    def span(context: Context) -> None:
        groups = _answered(context, context.role("start"))
        asked_rewards(context).score(groups)
        told = [[r.rewards[n] for g in groups for r in g.rollouts if not math.isnan(r.rewards[n])] for n in names]
        if not all(told):
            raise UserError("no answer of the start could be scored, so there is nothing to search from")
        draws = rng.python("simplex", context.config.seed)
        corners = [[fmean(x) + 2 * pstdev(x) * draws.random() for x in told] for _ in range(len(names) + 1)]
        context.notes["search"] = {"simplex": corners, "seen": []}

    def judged(context: Context) -> None:
        c = context.config
        groups = _answered(context, context.role("policy"))
        found = worth(build_scorer(gold, asked_task(context), c.reward_timeout, c.device), groups)
        known = [x for row in found for x in row if not math.isnan(x)]
        if not known:
            raise UserError(f"{gold} could judge no answer, so points cannot be searched by it")
        tried = [context.notes["proxy_points"][n] for n in names]
        context.notes["search"]["seen"].append([tried, fmean(known)])

    method = constrained_ppo(names, kind, lr)
    search = (
        Do("span", span),
        Cycle(
            (
                Phase(
                    "try", method, every, asked_task, rewards=rewards, reference="start", after=judged, changes=STEADY
                ),
            ),
            tries,
        ),
    )
    learn = Phase("constrained", method, steps, asked_task, rewards=rewards, reference="start")
    parts: tuple[Any, ...] = (Copy("policy", "start"), *(search if searched else ()), learn)
    return Plan(parts, ready=ready, missing="" if wanted else NO_POINTS)


def _answered(context: Context, policy: Policy) -> list[Group]:
    """Two answers to each of some training prompts: the held-out ones stay unseen."""
    env = asked_task(context)
    prompts = [env.prompt(i, "train") for i in range(min(LOOKED_AT, size_of(env, "train") or LOOKED_AT))]
    made = policy.sample(prompts, 2, context.config.sampling, EVAL_SEED, -1)
    return [Group(p, rollouts) for p, rollouts in zip(prompts, made, strict=True)]
