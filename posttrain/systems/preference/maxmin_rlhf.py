"""MaxMin-RLHF: reward models of groups that nobody told apart, and a policy that serves whichever group is served worst."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from posttrain.core import rng
from posttrain.core.errors import UserError, unknown
from posttrain.core.plan import Context, Copy, Cycle, Do, Phase, Plan, plan, round_of
from posttrain.core.types import Group, Prompt
from posttrain.environments.base import size_of
from posttrain.environments.language.listed import Listed
from posttrain.evals.reward_model import margins, pair_accuracy
from posttrain.methods.ensemble import Ensemble
from posttrain.methods.from_pairs import epochs_of
from posttrain.methods.members import answered, asked_prompts, scoring_copy
from posttrain.methods.ppo import ppo
from posttrain.methods.reward_model import reward_model
from posttrain.methods.settings import asked_pairs, written
from posttrain.rewards.runtime.scorer import BaseScorer, Verdict, answers_of
from posttrain.rewards.scorers.combined import Combined
from posttrain.rewards.scorers.reward_model import RewardModel
from posttrain.rewards.shaping.kl_in_reward import kl_in_reward

WAYS = ("min", "soft", "mean")

# ---- who belongs together


def assigned(fit_UK: Tensor) -> list[int]:
    """The group of each annotator: argmax_k of fit_UK[u, k] = sum over u's pairs of log sigmoid(r_k(y_w) - r_k(y_l)).

    A group that nobody would join gets whoever fits worst where he is, so that no reward model is left without data.
    """
    best_U = fit_UK.argmax(-1)
    for k in range(fit_UK.shape[-1]):
        size_K = torch.bincount(best_U, minlength=fit_UK.shape[-1])
        if size_K[k] == 0:
            own_U = fit_UK.gather(-1, best_U.unsqueeze(-1)).squeeze(-1)
            own_U = torch.where(size_K[best_U] > 1, own_U, torch.inf)  # the last of a group stays
            best_U[own_U.argmin()] = k
    return best_U.tolist()


class Mixture:
    """Hard EM over annotators: reward models learn from those who are assigned to them, annotators go to the model that explains them best.

    Who is where is an artifact of each round (`groups1` is the first round's), so a restart assigns nobody twice.
    """

    def __init__(self, groups: int) -> None:
        self.groups, self.roles = groups, [f"group-{k}" for k in range(groups)]

    def pairs(self, context: Context) -> list[Prompt]:
        env = asked_pairs(context)
        return [env.prompt(i) for i in range(size_of(env, "train"))]

    def users(self, context: Context) -> list[str]:
        """Annotators by name; one reward model asks for none."""
        if self.groups == 1:
            return ["everybody"]
        pairs = self.pairs(context)
        if nameless := sum("annotator" not in p.info for p in pairs):
            raise UserError(
                f"maxmin-rlhf learns which annotators want the same, and {nameless} of {len(pairs)} pairs do not say who compared them; give "
                'each row an annotator, a name or a number: {"prompt": ..., "chosen": ..., "rejected": ..., "annotator": "ann"}'
            )
        users = sorted({p.info["annotator"] for p in pairs})
        if len(users) < self.groups:
            raise UserError(
                f"{len(users)} annotators cannot be {self.groups} groups; ask for fewer, --plan.groups {len(users)}, or give pairs of others too"
            )
        return users

    def whose(self, pair: Prompt) -> str:
        return "everybody" if self.groups == 1 else pair.info["annotator"]

    def draw(self, context: Context) -> None:
        """To begin with, annotators are in groups by lot, as many in each."""
        users = self.users(context)
        order = torch.randperm(len(users), generator=rng.torch_generator("groups", context.config.seed)).tolist()
        self.write(context, 0, {users[u]: i % self.groups for i, u in enumerate(order)})

    def assign(self, context: Context) -> None:
        """E-step: each annotator to the reward model under which all of his pairs are likeliest."""
        pairs, users = self.pairs(context), self.users(context)
        place = {user: u for u, user in enumerate(users)}
        at_P = torch.tensor([place[self.whose(p)] for p in pairs])
        fit_UK = torch.zeros(len(users), self.groups)
        for k, role in enumerate(self.roles):
            logp_P = logsigmoid(margins(RewardModel(context.role(role)), pairs)).nan_to_num()
            fit_UK[:, k].index_add_(0, at_P, logp_P)
        i = round_of(context)
        before = self.read(context, i - 1)
        found = dict(zip(users, assigned(fit_UK), strict=True))
        self.write(context, i, found)
        moved = sum(before[user] != k for user, k in found.items())
        context.notes.setdefault("moved", {})[f"round {i}"] = moved
        context.notes["log_likelihood"] = float(fit_UK.max(-1).values.sum()) / len(pairs)

    def write(self, context: Context, i: int, groups: dict[str, int]) -> None:
        context.run.write_artifact(f"groups{i}", [{"annotator": u, "group": k} for u, k in groups.items()])
        context.notes["annotators"] = {f"group {k}": list(groups.values()).count(k) for k in range(self.groups)}

    def read(self, context: Context, i: int) -> dict[str, int]:
        return {row["annotator"]: row["group"] for row in context.run.read_artifact(f"groups{i}")}

    def data(self, k: int) -> Callable[[Context], Listed]:
        """The pairs of those who are in group k as the round begins."""

        def env(context: Context) -> Listed:
            groups = self.read(context, round_of(context) - 1)
            return Listed(f"group {k}", tuple(p for p in self.pairs(context) if groups[self.whose(p)] == k))

        return env

    def learn(self, k: int, passes: float) -> Phase:
        """M-step: the reward model goes on where it was, on the pairs of its group."""
        env, role = self.data(k), self.roles[k]
        return Phase(
            role, reward_model, epochs_of(env, passes), env, role=role,
            make=lambda c: scoring_copy(c.role("start"), c.config.seed, role), rewards=written,
        )  # fmt: skip


# ---- what answers are worth


def weights(mean_K: Tensor, how: str = "min", eta: float = 1.0) -> Tensor:
    """How much each group counts, by the mean reward of its members in a batch.

    min: all for the group with the least;  soft: w ~ exp(-eta mean);  mean: all alike
    """
    if how == "min":
        return torch.nn.functional.one_hot(mean_K.argmin(), len(mean_K)).to(mean_K)
    return torch.softmax(-eta * mean_K, -1) if how == "soft" else torch.full_like(mean_K, 1 / len(mean_K))


class WorstGroup(BaseScorer):
    """R = sum_u w_u z_u of each answer, with weights by the mean of z_u over the whole batch: with `min` the batch is paid by one group."""

    def __init__(self, models: Combined, how: str = "min", eta: float = 1.0) -> None:
        self.models, self.how, self.eta = models, how, eta
        self.reported = ("paid", *(f"group{k}" for k in range(len(models.models))))

    def verdicts(self, groups: list[Group]) -> list[Verdict]:
        z_KB = self.models.units(answers_of(groups))
        w_K = weights(z_KB.nanmean(-1), self.how, self.eta)
        total_B = (w_K.unsqueeze(-1) * z_KB).sum(0)
        return [
            Verdict(total, {"paid": total, **{f"group{k}": x for k, x in enumerate(z)}})
            for total, z in zip(total_B.tolist(), z_KB.T.tolist(), strict=True)
        ]


# ---- the plan


@plan(paper="arXiv:2402.08925", title="MaxMin-RLHF", uses=("task", "reward", "pairs", "answers"))
def maxmin_rlhf(
    groups: int = 2, rounds: int = 4, passes: float = 1, how: str = "min", eta: float = 1.0, steps: int = 60, beta: float = 0.05
) -> Plan:  # fmt: skip
    """MaxMin-RLHF: EM finds groups of annotators and a reward model of each; PPO then improves what the worst-served group gets.

    max_pi min_u E[r_u(x, y)] - beta KL(pi || ref);  E-step: u(h) = argmax_u sum_pairs of h log sigmoid(r_u(y_w) - r_u(y_l));  M-step: Bradley-Terry on u's pairs
    --task holds pairs (prompt, chosen, rejected, annotator). how: "min" pays each batch by the group whose mean reward in it is least; "soft" by all,
    w_u ~ exp(-eta mean r_u); "mean" by all alike, the baseline. groups=1 is RLHF with a single reward. rounds of EM, each with so many
    passes of the reward models over their pairs. What every group gets is reported for the start and the policy; --reward, if given, is only reported.

    Departures: the paper's number of EM rounds, its PPO settings, KL price and whether it picks the group by batch could not be checked, and no code was
    found: here four rounds of one pass, PPO with 8 answers, 2 passes of 2 minibatches for 60 steps and a price of 0.05, the group picked anew for each batch.
    Groups begin by lot; a group that nobody would join gets the annotator who fits worst. Rewards are put in units of the start's answers, mean 0 and deviation 1
    for each group: without units the least mean would say more about scales than about people. The paper begins with a fine-tuned model: give it as --model.
    """
    if how not in WAYS:
        raise unknown("way to weigh groups", how, WAYS)
    if groups < 1 or rounds < 1 or steps < 1 or passes <= 0:
        raise UserError(
            f"got groups={groups}, rounds={rounds}, passes={passes}, steps={steps}; it takes 1 group, round and step at least, and passes above 0"
        )
    sharpness = eta if how == "soft" else 1.0
    mixture = Mixture(groups)
    ensemble = Ensemble(mixture.roles, "mean", "")

    def judged(context: Context) -> None:
        """How often each group's model is right about held-out pairs of its own annotators."""
        whose, held = mixture.read(context, rounds), list(getattr(asked_pairs(context), "test", ()))
        for k, role in enumerate(mixture.roles):
            mine = [p for p in held if whose.get(str(p.info.get("annotator")), 0 if groups == 1 else -1) == k]
            if mine:
                found = pair_accuracy(margins(RewardModel(context.role(role)), mine))
                context.notes.setdefault("pair_accuracy", {})[role] = found

    def rewards(context: Context) -> WorstGroup:
        return WorstGroup(ensemble.scorer(context), how, sharpness)

    def measure(context: Context) -> None:
        ensemble.look(context, "policy")
        env, models = asked_prompts(context), ensemble.scorer(context)
        for role in ("start", "policy"):
            rollouts = [r for g in answered(context, context.role(role), env, 4) for r in g.rollouts]
            mean_K = models.units(rollouts).nanmean(-1).tolist()
            told: dict[str, Any] = {f"group {k}": x for k, x in enumerate(mean_K)} | {"worst": min(mean_K)}
            context.notes[f"group_rewards_of_{role}"] = told

    em = (*(mixture.learn(k, passes) for k in range(groups)), Do("assign", mixture.assign))
    parts = (
        Copy("policy", "start"),
        Do("groups", mixture.draw),
        Cycle(em, times=rounds),
        Do("judged", judged),
        Do("units", ensemble.measure),
        Phase("ppo", ppo.but(shaping=kl_in_reward.but(coef=beta)), steps, asked_prompts, rewards=rewards, reference="start"),
        Do("measured", measure),
    )  # fmt: skip

    def ready(context: Context) -> None:
        mixture.users(context)

    return Plan(parts, ready=ready)
