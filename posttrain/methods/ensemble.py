"""An ensemble of reward models inside a plan: its units, what it pays, and what comes of optimising it."""

from __future__ import annotations

from typing import Any

import torch

from posttrain.core.plan import Context, Do, Phase
from posttrain.methods.members import answered, asked_gold, asked_prompts, best_of, standing, worth
from posttrain.methods.ppo import ppo
from posttrain.rewards.scorers.combined import Combined
from posttrain.rewards.scorers.reward_model import RewardModel
from posttrain.rewards.shaping.kl_in_reward import kl_in_reward

POOL = 64  # answers per prompt for best of n, unless --num-generations says
OPTIMISERS = ("ppo", "best-of-n")


class Ensemble:
    """The members of a plan as a scorer, in units of answers of the start policy; the units are kept in the notes."""

    def __init__(self, roles: list[str], how: str, pairs: str, by_text: bool = False, **params: Any) -> None:
        self.roles, self.how, self.pairs, self.by_text, self.params = roles, how, pairs, by_text, params

    def plain(self, context: Context) -> Combined:
        models = [RewardModel(context.role(r)) for r in self.roles]
        return Combined(models, self.how, by_text=self.by_text, **self.params)

    def measure(self, context: Context) -> None:
        """Units of each member, and where the start policy stands in them."""
        env = asked_prompts(context, self.pairs)
        groups = answered(context, context.role("start"), env, 4)
        made = self.plain(context).centred([r for g in groups for r in g.rollouts])
        context.notes["units"] = [x.flatten().tolist() for x in made.stats]
        self.look(context, "start")

    def scorer(self, context: Context) -> Combined:
        mean, std = (torch.tensor(x).unsqueeze(-1) for x in context.notes["units"])
        made = self.plain(context)
        made.stats = (mean, std)
        return made

    def look(self, context: Context, role: str) -> None:
        """Proxy, gold, KL and how far the members are apart, of a role's answers."""
        env, proxy = asked_prompts(context, self.pairs), self.scorer(context)
        policy, gold = context.role(role), asked_gold(context, self.pairs)
        found = standing(context, policy, context.role("start"), proxy, gold, env)
        rollouts = [r for g in answered(context, policy, env, 4) for r in g.rollouts]
        apart = float(proxy.units(rollouts).std(0, correction=0).nanmean())
        context.notes.setdefault("measured", {})[role] = found | {"members_apart": apart}

    def best_of_n(self, context: Context) -> None:
        """What best of n of the start policy would give."""
        most = context.config.num_generations or POOL
        groups = answered(context, context.role("start"), asked_prompts(context, self.pairs), most)
        gold = asked_gold(context, self.pairs)
        proxy = worth(self.scorer(context), groups)
        context.notes["best_of_n"] = best_of(proxy, worth(gold, groups) if gold else None, most)


def optimised(ensemble: Ensemble, optimiser: str, steps: int, beta: float) -> list[Any]:
    """What follows the reward models: PPO with a KL price, or best of n of the start policy."""
    if optimiser == "best-of-n":
        return [Do("best-of-n", ensemble.best_of_n)]
    method = ppo.but(shaping=(kl_in_reward.but(coef=beta),))
    env = lambda c: asked_prompts(c, ensemble.pairs)  # noqa: E731
    learn = Phase("ppo", method, steps, env, rewards=ensemble.scorer, reference="start")
    return [learn, Do("measured", lambda c: ensemble.look(c, "policy"))]
