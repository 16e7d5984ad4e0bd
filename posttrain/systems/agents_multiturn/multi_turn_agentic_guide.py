"""A practitioner's guide to multi-turn agentic RL: PPO, RLOO or GRPO over whole episodes, with rewards per turn or at the end."""

from __future__ import annotations

from collections.abc import Sequence

from posttrain.advantages.gae import gae
from posttrain.advantages.rloo import rloo as leave_one_out
from posttrain.core.critic import CriticSettings
from posttrain.core.errors import UserError
from posttrain.core.method import Method
from posttrain.core.plan import Context, Phase, Plan, plan
from posttrain.core.protocols import Environment
from posttrain.core.registry import scorer
from posttrain.core.types import End, Group, Rollout
from posttrain.losses.aggregate import token_mean
from posttrain.losses.regularisers.kl import kl
from posttrain.methods.from_pairs import demonstrations, imitation
from posttrain.methods.grpo import grpo
from posttrain.methods.ppo import ppo
from posttrain.methods.settings import asked_task
from posttrain.rewards.runtime.scorer import BaseScorer, Verdict, answers_of
from posttrain.rewards.shaping.kl_in_reward import kl_in_reward
from posttrain.rollouts.sample import sample

PAPER = "arXiv:2510.01132"
ALGORITHMS, DENSITIES = ("ppo", "rloo", "grpo"), ("dense", "single")

# ---- what turns are worth


def dense(earned: Sequence[float], won: bool, most: float = 1.0, per: str = "sum") -> list[float]:
    """What each turn earned, so that an episode earns at most 1 in all.

    r_k / c;  won: c = the sum of the positive r;  lost: c = the most that the game gives.  per="count": c = how many r are positive, where
    won, as the released code has it; the same where each is 1. A game that is won without a reward on the way pays its last turn 1.
    """
    positive = [x for x in earned if x > 0]
    if won and not positive:
        return [*(0.0 for _ in earned[:-1]), 1.0]
    share = (sum(positive) if per == "sum" else float(len(positive))) if won else most
    return [x / share for x in earned]


def single(earned: Sequence[float], won: bool) -> list[float]:
    """1 on the last turn of a game that was won, nothing elsewhere."""
    return [*(0.0 for _ in earned[:-1]), float(won)]


def was_won(rollout: Rollout) -> bool:
    """What the environment says (`Step.info["won"]`); of one that does not, an episode that ended by itself with a reward."""
    told = rollout.info.get("won")
    return bool(told) if told is not None else rollout.end is End.COMPLETED and raw(rollout)[-1] > 0


def raw(rollout: Rollout) -> list[float]:
    """What the environment itself paid for each turn."""
    kept: list[float] = rollout.info.setdefault("turn_rewards", [float(t.reward or 0.0) for t in rollout.turns])
    return kept


@scorer(title="Turn rewards, dense or single", paper=PAPER)
class TurnRewards(BaseScorer):
    """Turn rewards, dense or single (multi-turn guide): the environment's rewards of turns, normalised to at most 1 in all, or one at the end.

    What the environment paid is kept in `info["turn_rewards"]`; the component `won` is 1 for games that were won.
    """

    reported = ("won",)

    def __init__(self, density: str = "dense", most: float = 1.0, per: str = "sum") -> None:
        self.density, self.most, self.per = density, most, per

    def verdicts(self, groups: list[Group]) -> list[Verdict]:
        out = []
        for r in answers_of(groups):
            earned, won = raw(r), was_won(r)
            most = float(r.info.get("most", r.prompt.info.get("most", self.most)))
            paid = dense(earned, won, most, self.per) if self.density == "dense" else single(earned, won)
            for turn, x in zip(r.turns, paid, strict=True):
                turn.reward = x
            out.append(Verdict(None, {"won": float(won)}))
        return out


# ---- the plan


def learned_by(algorithm: str, n: int, price: float | None = None) -> Method:
    """The three that are compared; one update per batch, a mean over all own tokens."""
    told = {"title": "Multi-turn agentic guide", "paper": PAPER, "doc": __doc__, "epochs": 1, "minibatches": 1}
    told |= {"aggregate": token_mean, "rollout": sample.but(n=n), "name": f"guide-{algorithm}"}
    if algorithm == "ppo":
        paid = kl_in_reward.but(coef=0.01 if price is None else price)
        return ppo.but(**told, advantage=gae.but(lam=1.0), shaping=paid, critic=CriticSettings(pace=10.0))
    if algorithm == "rloo":
        paid = kl_in_reward.but(coef=0.001 if price is None else price)
        return grpo.but(**told, advantage=leave_one_out, shaping=paid, terms=())
    return grpo.but(**told, terms=kl.but(coef=0.01 if price is None else price))


@plan(paper=PAPER, title="Multi-turn agentic guide", uses=("task", "tools"))
def multi_turn_agentic_guide(
    steps: int = 60, algorithm: str = "ppo", density: str = "dense", n: int = 0, most: float = 1.0, demos: str = "",
    passes: float = 1.0,
) -> Plan:  # fmt: skip
    """Multi-turn agentic guide: an episode is one sequence, of which the policy's own tokens learn; its turns are rewarded, or its end.

    dense: each turn's reward over the sum of those that were earned, where the game was won, and over the most it gives (most) where it was
    lost, so that an episode earns at most 1;  single: 1 at the end of a game that was won
    ppo: GAE (gamma 1, lambda 1) with a critic at ten times the rate, KL 0.01 in the reward;  rloo: R - mean of the others, KL 0.001 in the
    reward;  grpo: (R - mean) / std, KL 0.01 in the loss.  All with the clip 0.2, one update per batch and samples at temperature 0.7
    Task: an environment with turns (`--task mine.py:Game`, textworld). demos: a file of played games (messages) to imitate first, `passes`
    times over; the guide finds that a few are worth many episodes. n: episodes per game, 1 for ppo and 8 for the others unless given.

    Departures: the paper's batches are 256 episodes at 1e-6 (`--prompts`, `--lr`). The code divides a won game's rewards by how many there are,
    which is the same where each is 1, as in its games; here by their sum. Its RLOO recipe has one episode per game, which leaves nobody to
    compare with; here 8. Its turn rewards sit on a separator after the turn, here on the turn's last own token. Held-out games are scored by
    what the environment pays. Whether a game was won is `Step.info["won"]`, else that it ended by itself with a reward.
    """
    if algorithm not in ALGORITHMS or density not in DENSITIES:
        raise UserError(
            f"got algorithm={algorithm!r}, density={density!r}; expected one of {', '.join(ALGORITHMS)}, and dense or single"
        )
    n = n or (1 if algorithm == "ppo" else 8)
    if steps < 1 or n < 1 or (n < 2 and algorithm != "ppo") or most <= 0 or passes < 0:
        raise UserError(
            f"got steps={steps}, n={n}, most={most}, passes={passes}; it takes 1 step, 2 episodes per game to compare (rloo, grpo), and a "
            "highest score above 0"
        )

    highest = most if density == "dense" else 1.0

    def env(context: Context) -> Environment:
        found: Environment = asked_task(context)
        if not found.opens:
            raise UserError(
                f"multi-turn-agentic-guide plays episodes, and {found.name} has single answers; give an environment with turns: --task mine.py:Game, "
                "--task escape_room --model pocket-2, or --tools FILE"
            )
        return found

    def rewards(context: Context) -> TurnRewards:
        return TurnRewards(density, highest)

    played = demonstrations(spec=demos)

    def ready(context: Context) -> None:
        env(context)
        if demos:
            played(context)

    learn = Phase(algorithm, learned_by(algorithm, n), steps, env, rewards=rewards)
    first = imitation(passes, played) if demos else ()
    return Plan((*first, learn), ready=ready, settings=(("sampling.temperature", 0.7),))
