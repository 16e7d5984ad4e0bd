"""DR-IRL: a reward learned from demonstrations alone (they must score above the policy's own answers), then GRPO-S, whose
credit is scaled by how hard the prompt is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from posttrain.advantages.group import group_mean, group_size
from posttrain.advantages.grpo import grpo as group_relative
from posttrain.core import rng
from posttrain.core.answers import demonstration
from posttrain.core.batch import Batch
from posttrain.core.credit import component
from posttrain.core.errors import UserError
from posttrain.core.plan import Context, Copy, Cycle, Do, Phase, Plan, plan
from posttrain.core.protocols import Policy
from posttrain.core.registry import advantage, scorer
from posttrain.core.sampling import Sampling
from posttrain.core.types import Group, Prompt, Rollout
from posttrain.environments.base import size_of
from posttrain.environments.language.listed import Listed, from_rows
from posttrain.methods.grpo import grpo
from posttrain.methods.members import scoring_copy
from posttrain.methods.reward_model import reward_model
from posttrain.methods.settings import asked_task
from posttrain.models.layout import Rows, hidden_states
from posttrain.rewards.runtime.scorer import BaseScorer, Prescored, Verdict, answers_of
from posttrain.rewards.scorers.reward_model import RewardModel

MOST, PASSES = 1000, 3  # demonstrations that a round compares with; passes of a reward model over them


@advantage(
    title="GRPO-S (DR-IRL)",
    paper="arXiv:2503.18991",
    base="grpo",
    system="dr-irl",
    laws=("sums_to_zero",),
    reads=("group_B", "reward_BT"),
)
def difficulty_scaled(batch: Batch, tau: float = 1.0, eps: float = 1e-4) -> Tensor:
    """GRPO-S (DR-IRL): GRPO's credit, more of it for prompts whose answers are unlike their demonstration.

    A_i = h m GRPO_i;  h = sigmoid(d) / sigmoid(mean d), d = 1 - similarity of the prompt's answers, mean over prompts;
    m = sigmoid(mean gap of those within tau) / sigmoid(mean gap), gap = r_demonstration - r, within: (gap - mean)^2 <= tau
    m is of each category of prompts (component `category`; without it the batch is one). Components `similarity` and
    `demonstration`; a factor whose component is not there is 1.
    """
    factor_B = hardness(batch) * responsiveness(batch, tau)
    credit_BT: Tensor = group_relative(batch, eps=eps)
    return credit_BT * factor_B.unsqueeze(-1)


def hardness(batch: Batch) -> Tensor:
    """h, one a row: how far a prompt's answers are from its demonstration, against the other prompts."""
    if "reward:similarity_B" not in batch:
        return torch.ones_like(batch.mask_BT[:, 0])
    group_B, valid_B = batch["group_B"], batch.valid_B
    far_B = group_mean(1 - component(batch, "similarity"), group_B, valid_B)
    share_B = valid_B / group_size(group_B, valid_B).clamp_min(1)  # each prompt counts once
    mean = (far_B * share_B).sum() / share_B.sum().clamp_min(1)
    return torch.sigmoid(far_B) / torch.sigmoid(mean)


def responsiveness(batch: Batch, tau: float) -> Tensor:
    """m, one a row: the mean gap of its category without outliers, against the mean of all of them."""
    out_B = torch.ones_like(batch.mask_BT[:, 0])
    if "reward:demonstration_B" not in batch or not bool(batch.valid_B.any()):
        return out_B
    gap_B = component(batch, "demonstration") - batch.returns_B
    kind_B = component(batch, "category") if "reward:category_B" in batch else torch.zeros_like(out_B)
    for kind in kind_B[batch.valid_B].unique():
        mine_B = batch.valid_B & (kind_B == kind)
        gap_N, mean = gap_B[mine_B], gap_B[mine_B].mean()
        near_N = gap_N[(gap_N - mean) ** 2 <= tau]
        out_B[mine_B] = torch.sigmoid(near_N.mean() if near_N.numel() else mean) / torch.sigmoid(mean)
    return out_B


def demonstrated(prompts: Sequence[Prompt]) -> list[str]:
    """The demonstration of each prompt; one without is an error."""
    shown = [demonstration(p) for p in prompts]
    for p, text in zip(prompts, shown, strict=True):
        if text is None:
            told = "give a column demonstration, response or answer"
            raise UserError(f"prompt {p.id!r} has no demonstration, which DR-IRL learns from; {told}")
    return [text for text in shown if text is not None]


def irl_pairs(policy: Policy, prompts: Sequence[Prompt], how: Sampling, seed: int = 0, n: int = 1) -> list[Prompt]:
    """Demonstration against one's own answer, as pairs for a reward model: argmax_r E_demo[r] - E_policy[r], logistic.

    Each prompt's demonstration is chosen, each of n answers of the policy rejected; equal texts are left out.
    """
    shown = demonstrated(prompts)
    made = policy.sample(list(prompts), n, how, seed, -1)
    out = []
    for p, best, rollouts in zip(prompts, shown, made, strict=True):
        for i, r in enumerate(rollouts):
            if r.text != best:
                info = p.info | {"chosen": best, "rejected": r.text}
                out.append(replace(p, id=f"{p.id}#{i}", info=info))
    return out


grpo_s = grpo.but(name="dr-irl", title="DR-IRL", paper="arXiv:2503.18991", doc=__doc__, advantage=difficulty_scaled)


# ---- what answers are worth


@torch.no_grad()
def mean_states(policy: Any, rollouts: Sequence[Rollout], chunk: int = 32) -> Tensor:
    """(B, D): the mean of a language model's last states over an answer, as an embedding of it."""
    out = []
    for i in range(0, len(rollouts), chunk):
        laid = Rows.of([r.row for r in rollouts[i : i + chunk]], policy.device)
        h_BTD, real_BT = hidden_states(policy.model, laid, policy.layout)[0].float(), laid.real_BT
        total_BD = (h_BTD * real_BT.unsqueeze(-1)).sum(1)
        out.append((total_BD / real_BT.sum(1, keepdim=True).clamp_min(1)).cpu())
    return torch.cat(out)


@scorer(title="Beside the demonstration", paper="arXiv:2503.18991")
class BesideDemonstration(BaseScorer):
    """Beside the demonstration (DR-IRL): the score of the category's reward model, and how far the answer is from what was shown.

    Components: demonstration, the score of the prompt's demonstration; similarity, the cosine of the encoder's mean states of both;
    category, the number of the model.
    """

    reported = ("irl",)

    def __init__(self, models: Sequence[RewardModel], of: Callable[[Prompt], int], encoder: Policy) -> None:
        self.models, self.of, self.encoder = list(models), of, encoder

    def verdicts(self, groups: list[Group]) -> list[Verdict]:
        rollouts = answers_of(groups)
        shown = [self.encoder.written(r.prompt, str(demonstration(r.prompt))) for r in rollouts]
        kinds = [self.of(r.prompt) for r in rollouts]
        score_B, best_B = torch.zeros(len(rollouts)), torch.zeros(len(rollouts))
        for k, model in enumerate(self.models):
            mine = [i for i, kind in enumerate(kinds) if kind == k]
            if mine:
                score_B[mine] = model.scores([rollouts[i] for i in mine])
                best_B[mine] = model.scores([shown[i] for i in mine])
        said, meant = (mean_states(self.encoder, some) for some in (rollouts, shown))
        like_B = torch.nn.functional.cosine_similarity(said, meant)
        told = zip(score_B.tolist(), best_B.tolist(), like_B.tolist(), kinds, strict=True)
        return [
            Verdict(x, {"irl": x, "demonstration": best, "similarity": like, "category": float(kind)})
            for x, best, like, kind in told
        ]


# ---- the plan


class Work:
    """The rounds: the policy's answers beside the demonstrations, by category, and the reward models that they teach."""

    def __init__(self, column: str, categories: list[str]) -> None:
        self.column, self.categories = column, categories

    def of(self, prompt: Prompt) -> int:
        """The number of a prompt's category."""
        if not self.categories:
            return 0
        told = str(prompt.info.get(self.column, ""))
        if told not in self.categories:
            known = f"which --plan.categories does not name ({', '.join(self.categories)})"
            raise UserError(f"prompt {prompt.id!r} has {self.column}={told!r}, {known}")
        return self.categories.index(told)

    def names(self) -> list[str]:
        return [f"reward-{c}" for c in self.categories] or ["reward"]

    def asked(self, context: Context) -> list[Prompt]:
        """The prompts of --task, each with a demonstration and a category that is known."""
        env = asked_task(context)
        prompts = [env.prompt(i) for i in range(min(size_of(env, "train") or MOST, MOST))]
        demonstrated([p for p in prompts if self.of(p) >= 0])
        return prompts

    def compare(self, context: Context) -> None:
        """One answer of the policy as it is now beside each demonstration."""
        c, prompts = context.config, self.asked(context)
        seed = rng.key(c.seed, context.phase) & 0x7FFFFFFF
        made = irl_pairs(context.role("policy"), prompts, c.sampling, seed)
        for k, name in enumerate(self.names()):
            rows = [
                {"id": p.id, "prompt": list(p.content), "chosen": p.info["chosen"], "rejected": p.info["rejected"]}
                for p in made
                if self.of(p) == k
            ]
            if not rows:
                raise UserError(
                    f"{name}: no answer of the policy differs from a demonstration; there is nothing to learn"
                )
            context.run.write_artifact(f"{name}-pairs", rows)

    def learned(self, name: str) -> Phase:
        """A reward model of one category, taught further in every round."""

        def env(context: Context) -> Listed:
            return from_rows(name, context.run.read_artifact(f"{name}-pairs"), 0.0)

        def steps(context: Context) -> int:
            prompts: int = context.config.prompts
            return max(1, round(PASSES * env(context).size / prompts))

        return Phase(
            name, reward_model, steps, env, role=name, make=lambda c: scoring_copy(c.role("start"), c.config.seed, name),
            rewards=lambda c: Prescored(),
        )  # fmt: skip

    def scorer(self, context: Context) -> BesideDemonstration:
        models = [RewardModel(context.role(name)) for name in self.names()]
        return BesideDemonstration(models, self.of, context.role("start"))


@plan(paper="arXiv:2503.18991", title="DR-IRL", uses=("task",))
def dr_irl(
    rounds: int = 3, steps: int = 20, categories: str = "", column: str = "category", tau: float = 1.0, scaled: bool = True
) -> Plan:  # fmt: skip
    """DR-IRL: rounds of inverse RL (a reward model under which demonstrations beat the policy's answers) and of GRPO-S on it.

    A_i = h m GRPO_i;  h = sigmoid(d) / sigmoid(mean d), d = 1 - similarity to the demonstration;  m by gaps of reward
    --task: prompts with a demonstration each (column demonstration, or the answer). categories: "privacy,violence": a reward
    model for each value of `column`; without it there is one. Each of the `rounds`: one answer of the policy beside each
    demonstration, three passes of each reward model over these pairs, then `steps` of GRPO-S. scaled=False: plain GRPO on the
    same reward models, which is what the scaling is compared with.

    Departures: the paper's encoder is CLIP's, of texts; here the mean last state of the start policy over the answer. Its
    seven balanced categories of harm must be brought by the data; nothing is balanced here. Its demonstrations are drafted
    by a larger model. The paper itself could not be read; a summary of its published version (ICLR 2026) has the forms of h and m that
    are here, both times the advantage, with outliers among the gaps masked; its similarity is taken clause by clause, the best match of each,
    here of whole answers. It names no number for the mask; tau 1 is this package's, as are rounds, passes and steps. A reimplementation
    by others has m of each answer, sigmoid(gap) / sigmoid(mean gap), and scales the reward.
    """
    if rounds < 1 or steps < 1:
        raise UserError(f"got rounds={rounds}, steps={steps}; it takes 1 of each at least")
    work = Work(column if categories else "", [c.strip() for c in categories.split(",") if c.strip()])
    method = grpo_s.but(advantage=difficulty_scaled.but(tau=tau) if scaled else group_relative)
    judges = tuple(work.learned(name) for name in work.names())
    learn = Phase("grpo-s", method, steps, asked_task, rewards=work.scorer, reference="start")
    parts = (Copy("policy", "start"), Cycle((Do("compare", work.compare), *judges, learn), times=rounds))

    def ready(context: Context) -> None:
        work.asked(context)

    return Plan(parts, ready=ready)
