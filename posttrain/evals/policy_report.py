"""A report on a policy trained by RLHF: true reward, reward-model score, KL from the reference, diversity, length."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from posttrain.core.protocols import Policy
from posttrain.core.sampling import Sampling
from posttrain.core.types import Prompt, Rollout
from posttrain.evals.diversity import across_input, per_input
from posttrain.evals.kl import kl_of
from posttrain.evals.length_controlled import length_controlled
from posttrain.evals.win_rate import win_rate
from posttrain.rewards.scorers.reward_model import RewardModel

Worth = tuple[float, float]  # of an answer: its reward, its characters
EVAL_SEED = 30_000  # apart from every training seed; every policy answers the same prompts with the same draws


@dataclass
class Judge:
    """Held-out prompts, the learned reward, and the hidden one where there is one (utility)."""

    prompts: Sequence[Prompt]
    model: RewardModel
    utility: Callable[[Prompt, str], float] | None
    how: Sampling
    n: int = 4

    def answers(self, policy: Policy) -> list[list[Rollout]]:
        return policy.sample(list(self.prompts), self.n, self.how, EVAL_SEED)

    def worth(self, rollouts: Sequence[Rollout], proxy: Sequence[float]) -> list[float]:
        """What decides a win: the hidden utility, or the reward model's score where there is none."""
        return [self.utility(r.prompt, r.text) for r in rollouts] if self.utility else list(proxy)

    def report(
        self, policy: Policy, reference: Policy, baseline: Sequence[Worth] = ()
    ) -> tuple[dict[str, float], list[Worth]]:
        """gold (when there is one), proxy, kl, diversity and length; and the reward and the characters of each answer.

        win_rate and length_controlled are against those of the baseline's answers to the same prompts.
        """
        made_PG = self.answers(policy)
        flat = [r for rollouts in made_PG for r in rollouts]
        proxy = self.model.scores(flat).tolist()
        worth = self.worth(flat, proxy)
        words_PG = [[r.text.lower().split() for r in rollouts] for rollouts in made_PG]
        told = [(w, float(len(r.text))) for w, r in zip(worth, flat, strict=True)]
        kl, error = kl_of(policy, reference, flat)
        found = {
            **({"gold": _mean(worth)} if self.utility else {}),
            "proxy": _mean(proxy),
            "kl": kl,
            "kl_error": error,
            **(against(told, baseline) if baseline else {}),
            "diversity_per_input": per_input(words_PG),
            "diversity_across_input": across_input(words_PG),
            "words": _mean([len(words) for row in words_PG for words in row]),
        }
        return found, told


def against(ours: Sequence[Worth], theirs: Sequence[Worth]) -> dict[str, float]:
    """How often answers win against others to the same prompts, and how often they would if both were as long."""
    (worth, length), (their_worth, their_length) = (zip(*some, strict=True) for some in (ours, theirs))
    at_equal = length_controlled(worth, their_worth, length, their_length)
    return {"win_rate": win_rate(worth, their_worth), "length_controlled": at_equal}


def _mean(xs: Sequence[float]) -> float:
    return sum(xs) / max(len(xs), 1)
