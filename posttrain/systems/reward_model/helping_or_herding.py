"""Helping or herding: ensembles of reward models that differ by their fine-tuning alone, or by their pre-training too."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from posttrain.core.errors import UserError, unknown
from posttrain.core.plan import Context, Copy, Do, Plan, plan
from posttrain.core.protocols import Policy
from posttrain.methods.ensemble import OPTIMISERS, POOL, Ensemble, optimised
from posttrain.methods.members import answered, asked_gold, asked_prompts, best_of, member, worth
from posttrain.rewards.scorers.ensemble import combine
from posttrain.runs.build import load_policy

WAYS = ("mean", "median", "mean_minus_std")
EPOCHS = 3.0  # passes over the pairs
OF = 5  # answers to a prompt that members rank
Teams = dict[str, list[list[int]]]  # kind of ensemble -> its ensembles, as places in the list of members


def teams(bases: int, seeds: int) -> Teams:
    """Members stand base by base. Each alone; those of one base; one of each base, whose fine-tunings differ too."""
    out: Teams = {"single": [[i] for i in range(bases * seeds)]}
    if seeds > 1:
        out["fine-tune"] = [[b * seeds + k for k in range(seeds)] for b in range(bases)]
    if bases > 1:
        out["pre-train"] = [[b * seeds + (b + shift) % seeds for b in range(bases)] for shift in range(seeds)]
    return out


def compared(z_KB: Tensor, kinds: Teams, size: int, gold_PG: list[list[float]] | None) -> dict[str, Any]:
    """kind -> way -> n -> proxy, gold and KL of best of n, averaged over the ensembles of a kind; z in the members' own units."""
    plain = (torch.zeros(1, 1), torch.ones(1, 1))
    out: dict[str, Any] = {}
    for kind, some in kinds.items():
        for way in WAYS[:1] if kind == "single" else WAYS:
            proxies = [combine(z_KB[team], way, plain).view(-1, size).tolist() for team in some]
            each = [best_of(proxy_PG, gold_PG, size) for proxy_PG in proxies]
            mean = {n: {k: sum(e[n][k] for e in each) / len(each) for k in each[0][n]} for n in each[0]}
            out.setdefault(kind, {})[way] = mean
    return out


def ranks_apart(z_KPG: Tensor) -> float:
    """How far members are apart about the order of a prompt's answers: the deviation of an answer's rank over members, on average."""
    rank_KPG = z_KPG.argsort(-1).argsort(-1).float()
    return float(rank_KPG.std(0, correction=0).mean())


def winners(z_KPG: Tensor) -> Tensor:
    """All members' scores of OF answers to each prompt, each the best of its share of the pool by the first member."""
    share = z_KPG.shape[-1] // OF
    z_KPOS = z_KPG[:, :, : OF * share].unflatten(-1, (OF, share))
    best_PO1 = z_KPOS[0].argmax(-1, keepdim=True)
    best: Tensor = z_KPOS.gather(-1, best_PO1.expand(len(z_KPG), -1, -1, -1)).squeeze(-1)
    return best


def report(whole: Ensemble, kinds: Teams) -> Callable[[Context], None]:
    """Best of n by every kind of ensemble, and how far members rank fresh answers apart, and those that one of them chose."""

    def work(context: Context) -> None:
        size = context.config.num_generations or POOL
        groups = answered(context, context.role("start"), asked_prompts(context, whole.pairs), size)
        gold = asked_gold(context, whole.pairs)
        z_KB = whole.scorer(context).units([r for g in groups for r in g.rollouts])
        context.notes["best_of_n"] = compared(z_KB, kinds, size, worth(gold, groups) if gold else None)
        if len(z_KB) > 2 and size >= 2 * OF:  # the member that chooses does not vote
            z_KPG = z_KB.view(len(z_KB), -1, size)
            context.notes["ranks_apart_fresh"] = ranks_apart(z_KPG[1:, :, :OF])
            context.notes["ranks_apart_chosen"] = ranks_apart(winners(z_KPG)[1:])

    return work


@plan(paper="arXiv:2312.09244", title="Helping or herding", uses=("task", "reward", "pairs", "answers"))
def helping_or_herding(
    bases: str = "", seeds: int = 5, how: str = "mean", optimiser: str = "ppo", steps: int = 60, beta: float = 0.1,
    pairs: str = "",
) -> Plan:  # fmt: skip
    """Helping or herding: reward models of several pre-trained bases, each fine-tuned with several seeds, and their ensembles.

    R = mean_k r_k, median_k r_k, or mean_k r_k - std_k r_k (how=mean_minus_std)
    bases: model folders that were pre-trained apart, "A,B,C"; one member of each is the pre-train ensemble, which RLHF then
    optimises. Without bases members share `--model` and differ by fine-tuning seed alone: the fine-tune ensemble. --task
    holds the preference pairs, or --plan.pairs does, and --task the prompts. Best of --num-generations (64) is reported for
    single models and both kinds of ensembles in all three ways; --reward, if given, is the gold reward, only reported.

    Departures: the paper's bases are five T5 of its own pre-training in three sizes, with five fine-tuning seeds; bases must
    be given here. Its policies are fine-tuned before (here `--model` as it is), its judges larger models (here
    `--reward`), and it sweeps the KL price, here 0.1. Scores are put in units of the start policy's answers. Members of
    other bases read the answer's text with an end token, also where the answer was cut off. Three passes over the pairs
    are this package's; the regulariser (s_w + s_l)^2 with 0.01 is the paper's form.
    """
    folders = [b.strip() for b in bases.split(",") if b.strip()]
    count = max(len(folders), 1)
    if how not in WAYS:
        raise unknown("way to combine", how, WAYS)
    if optimiser not in OPTIMISERS:
        raise unknown("optimiser", optimiser, OPTIMISERS)
    if seeds < 1 or steps < 1 or count * seeds < 2:
        told = "an ensemble has 2 members at least: more seeds, or --plan.bases A,B"
        raise UserError(f"got {count} bases, seeds={seeds}, steps={steps}; {told}")
    roles = [f"base{b}-seed{k}" for b in range(count) for k in range(seeds)]
    kinds = teams(count, seeds)
    chosen = kinds.get("pre-train", kinds.get("fine-tune", []))[0]
    whole = Ensemble(roles, how, pairs, by_text=bool(folders))
    team = Ensemble([roles[i] for i in chosen], how, pairs, by_text=bool(folders))
    trained = [member(role, pairs, EPOCHS, _base(folders, i // seeds)) for i, role in enumerate(roles)]
    parts: list[Any] = [
        Copy("policy", "start"),
        *trained,
        Do("units", whole.measure),
        Do("report", report(whole, kinds)),
    ]
    if optimiser == "ppo":
        parts += [Do("team", team.measure), *optimised(team, "ppo", steps, beta)]
    return Plan(tuple(parts), uses=("task", "reward", "answers") if pairs else None)


def _base(folders: list[str], at: int) -> Callable[[Context], Policy]:
    """Where a member begins: the start policy, or a base of the folders."""
    if not folders:
        return lambda c: c.role("start")
    return lambda c: load_policy(dataclasses.replace(c.config, model=folders[at]))
