"""RLHF, generalisation and diversity: SFT, PPO and best of n side by side, near and far from the training prompts."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

from posttrain.core.errors import UserError
from posttrain.core.plan import Context, Copy, Do, Phase, Plan, plan
from posttrain.core.protocols import Environment
from posttrain.core.types import Group
from posttrain.environments.task import pair_task, task
from posttrain.evals.diversity import across_input, per_input
from posttrain.methods.from_pairs import epochs_of
from posttrain.methods.members import answered, asked_gold, member, worth
from posttrain.methods.ppo import ppo
from posttrain.methods.settings import asked_pairs, written
from posttrain.methods.sft import sft
from posttrain.rewards.scorers.reward_model import RewardModel
from posttrain.rewards.shaping.kl_in_reward import kl_in_reward

BEST_OF, EACH = 16, 16  # best of so many; answers to each prompt that are looked at, unless --num-generations says
ORDERS, VOCABULARY = (1, 2, 3, 4, 5), 50257  # of the n-grams that diversity counts, as the authors' code
_LAYER = re.compile(r"\blayers\.(\d+)\.")


def freeze(policy: Any, share: float) -> None:
    """Keep the first layers, the embeddings and the output head as they are; `share` of the layers is frozen."""
    depth = 1 + max((int(m[1]) for name, _ in policy.named_parameters() if (m := _LAYER.search(name))), default=-1)
    for name, p in policy.named_parameters():
        layer = _LAYER.search(name)
        if "critic" not in name and share > 0 and (layer is None or int(layer[1]) < int(share * depth)):
            p.requires_grad_(False)


class Work:
    """The two test sets, and what each policy's answers to them are like."""

    def __init__(self, ood: str, frozen: float) -> None:
        self.ood, self.frozen = ood, frozen

    def learned(self, context: Context) -> Environment:
        """The training prompts; layers are frozen here, where the phase begins and after a restart alike."""
        freeze(context.role("policy"), self.frozen)
        env: Environment = asked_pairs(context)
        return env

    def sets(self, context: Context) -> dict[str, Environment]:
        return {"in": asked_pairs(context), "out": _prompts(self.ood, context.config.data or None)}

    def proxy(self, context: Context) -> RewardModel:
        return RewardModel(context.role("reward-model"))

    def look(self, role: str, best_of: int = 1) -> Callable[[Context], None]:
        """A policy's answers, or the best of each `best_of`: rewards, and diversity within and across prompts, on both sets."""

        def work(context: Context) -> None:
            each = context.config.num_generations or EACH
            found = {}
            for where, env in self.sets(context).items():
                drawn = answered(context, context.role(role), env, each * best_of)
                groups = self.best(context, drawn, best_of)
                found[where] = self.figures(context, groups)
            found["gap"] = {"proxy": found["in"]["proxy"] - found["out"]["proxy"]}
            if "gold" in found["in"]:
                found["gap"]["gold"] = found["in"]["gold"] - found["out"]["gold"]
            context.notes.setdefault("measured", {})[context.phase] = found

        return work

    def best(self, context: Context, groups: list[Group], of: int) -> list[Group]:
        """Of each `of` answers in turn the one that the reward model likes best."""
        if of == 1:
            return groups
        out = []
        for g, told in zip(groups, worth(self.proxy(context), groups), strict=True):
            sets = [range(i, i + of) for i in range(0, len(told), of)]
            out.append(g.only([max(some, key=told.__getitem__) for some in sets]))
        return out

    def figures(self, context: Context, groups: list[Group]) -> dict[str, float]:
        words_PG = [[r.text.split() for r in g.rollouts] for g in groups]
        gold = asked_gold(context)
        found = {"proxy": _mean(worth(self.proxy(context), groups))}
        if gold is not None:
            found["gold"] = _mean(worth(gold, groups))
        return found | {
            "diversity_within": per_input(words_PG, VOCABULARY, ORDERS),
            "diversity_across": across_input(words_PG, VOCABULARY, ORDERS),
        }


def _prompts(spec: str, data: str | None) -> Environment:
    """The file of prompts from elsewhere: pairs, or questions."""
    try:
        return pair_task(spec, data=data)
    except UserError:
        return task(spec, data=data)


def _mean(rows: Sequence[Sequence[float]]) -> float:
    told = [x for row in rows for x in row if x == x]
    return fmean(told) if told else float("nan")


NO_OTHERS = (
    "this compares prompts like those of training with others; name a file of the others: --plan.ood OTHER.jsonl"
)


@plan(paper="arXiv:2310.06452", title="RLHF generalisation and diversity", uses=("task", "reward", "pairs"))
def rlhf_generalisation_diversity(ood: str = "", steps: int = 500, beta: float = 5.0, frozen: float = 0.8) -> Plan:
    """RLHF generalisation and diversity: SFT, a reward model, PPO and best of 16, measured near and far from training.

    --task holds preference pairs (the preferred answers are the demonstrations), one in ten held out: the set "in". ood:
    another file of pairs or prompts, from another distribution: the set "out". For SFT, PPO and best of 16: the reward
    model's score, --reward as the gold reward if given, and EAD diversity of n-grams (n = 1 to 5) of 16 answers to each prompt, within
    prompts and across them. PPO: 4 passes per batch, beta of a squared KL (k2) in the reward, `frozen` of the layers fixed.

    Departures: diversity by sentence embeddings and by entailment is not here, nor the judge of the paper (GPT-4): give a
    gold reward by `--reward`. One pass for SFT and the reward model as in the paper; the reward model trains all layers.
    Answers, batch and critic are `ppo`'s. The KL price 5.0, 500 steps and 80% of the layers frozen are the authors'.
    """
    if steps < 1 or not 0 <= frozen < 1:
        raise UserError(f"got steps={steps}, frozen={frozen}; it takes 1 step, and a share below 1 of the layers")
    work = Work(ood, frozen)
    method = ppo.but(shaping=(kl_in_reward.but(coef=beta, kind="k2"),), epochs=4)
    return Plan(
        (
            Phase("sft", sft, epochs_of(asked_pairs, 1), asked_pairs, rewards=written),
            Copy("policy", "sft"),
            member("reward-model", "", 1.0, lambda c: c.role("sft")),
            Do("sft-measured", work.look("sft")),
            Do("best-of-16", work.look("sft", BEST_OF)),
            Phase("ppo", method, steps, work.learned, rewards=work.proxy, reference="sft"),
            Do("ppo-measured", work.look("policy")),
        ),
        missing="" if ood else NO_OTHERS,
    )
