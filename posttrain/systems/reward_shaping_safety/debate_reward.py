"""Debate reward: the task's reward mixed with how often an action wins a debate about it, so that it can be justified.

aux: what a debate said, a function around `Debate`
posttrain run debate-reward --reward "task + 0*mine.py:aux" --shaping "blend(phi=(0, 0.5, 0.5)) + kl_in_reward"

Departures: the paper trains double DQN offline on records of patients, a judge from preferences and debaters by
self-play over 6 pieces of evidence. Here `Debate` is over rows of features, with a table as judge and debaters that
are greedy or play minimax, for Python only; nothing debates a text. As run this is PPO on the task's own grade: the
debate has the weight 0 until `--reward` has a component `aux` and `--shaping` gives it one, as above.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from posttrain.core.errors import UserError
from posttrain.core.method import method
from posttrain.core.registry import Part
from posttrain.methods.ppo import ppo
from posttrain.rewards.shaping.blend import blend
from posttrain.rewards.shaping.kl_in_reward import kl_in_reward

# ---- what answers are worth
# Debate as a reward (arXiv:2402.15826): two sides show a judge a little evidence each, and the judge compares two actions.
#
# A state is a row of features; a piece of evidence is the index of one, shown with its value. A judge gives an action a score
# from the evidence alone; a debater picks the next piece for its side.

State = Sequence[float]
Judge = Callable[[int, dict[int, float]], float]  # (action, evidence shown) -> score
# (state, my action, the other's, shown so far, how many pieces there will be) -> the feature to show next
Debater = Callable[[State, int, int, tuple[int, ...], int], int]


@dataclass(frozen=True)
class Debate:
    """L pieces of evidence, shown in turn by the side of an action and the side of a baseline action, none twice.

    u = J(a, evidence) - J(a', evidence), a zero-sum game;  reward = 1 if u > 0, 1/2 if u = 0, else 0
    """

    judge: Judge
    mine: Debater
    other: Debater
    length: int = 6

    def evidence(self, state: State, action: int, baseline: int) -> tuple[int, ...]:
        if not 0 < self.length <= len(state):
            raise UserError(f"a debate of {self.length} pieces needs as many features, the state has {len(state)}")
        shown: tuple[int, ...] = ()
        for turn in range(self.length):
            side, a, b = (self.mine, action, baseline) if turn % 2 == 0 else (self.other, baseline, action)
            pick = side(state, a, b, shown, self.length)
            if pick in shown or not 0 <= pick < len(state):
                raise UserError(f"a debater showed feature {pick}, of {len(state)} with {shown} shown; show a new one")
            shown = (*shown, pick)
        return shown

    def utility(self, state: State, action: int, baseline: int) -> float:
        seen = {i: state[i] for i in self.evidence(state, action, baseline)}
        return self.judge(action, seen) - self.judge(baseline, seen)

    def reward(self, state: State, action: int, baseline: int) -> float:
        """How justifiable the action is: whether it wins the debate."""
        u = self.utility(state, action, baseline)
        return 0.5 if u == 0 or action == baseline else float(u > 0)


def greedy(judge: Judge) -> Debater:
    """Shows what helps its side most at once, whatever the other side will answer (an isolated agent)."""

    def pick(state: State, mine: int, other: int, shown: tuple[int, ...], length: int) -> int:
        seen = {i: state[i] for i in shown}
        left = [i for i in range(len(state)) if i not in shown]
        return max(left, key=lambda i: (judge(mine, seen | {i: state[i]}) - judge(other, seen | {i: state[i]}), -i))

    return pick


def minimax(judge: Judge) -> Debater:
    """Plays the zero-sum game exactly: its piece is the best against the best answers to it (max-min)."""

    def value(state: State, mine: int, other: int, shown: tuple[int, ...], left: int) -> float:
        """What the side to move can get."""
        if left == 0:
            seen = {i: state[i] for i in shown}
            return judge(mine, seen) - judge(other, seen)
        rest = (i for i in range(len(state)) if i not in shown)
        return max(-value(state, other, mine, (*shown, i), left - 1) for i in rest)

    def pick(state: State, mine: int, other: int, shown: tuple[int, ...], length: int) -> int:
        rest = [i for i in range(len(state)) if i not in shown]
        return max(rest, key=lambda i: (-value(state, other, mine, (*shown, i), length - len(shown) - 1), -i))

    return pick


def linear_judge(weights: Sequence[Sequence[float]]) -> Judge:
    """A table: the score of an action is the sum of its weights over the evidence shown, each times its value."""
    return lambda action, seen: sum(weights[action][i] * x for i, x in seen.items())


# ---- the method


def mixed(lam: float) -> Part:
    """R = (1 - lam) r_task + lam r_debate: the blend with the debate as component `aux`."""
    return blend.but(phi=(0.0, 1 - lam, lam))  # type: ignore[attr-defined, no-any-return]


debate_reward = method(
    ppo.but(
        name="debate-reward", title="Debate reward", paper="arXiv:2402.15826", doc=__doc__,
        shaping=(mixed(0.0), kl_in_reward),
    )
)  # fmt: skip
