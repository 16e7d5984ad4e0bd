"""Debate reward: the task's reward mixed with how often an answer wins a debate about it, so that it can be justified."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from posttrain.core.errors import UserError
from posttrain.core.method import Method
from posttrain.core.plan import Context, Copy, Phase, Plan, plan
from posttrain.core.protocols import Policy, Scorer
from posttrain.core.registry import Part, scorer
from posttrain.core.sampling import Sampling
from posttrain.core.types import Group, Prompt
from posttrain.methods.ppo import ppo
from posttrain.methods.settings import asked_rewards, asked_task
from posttrain.rewards.runtime.scorer import BaseScorer, Verdict, answers_of
from posttrain.rewards.scorers.pairwise import Compares, asking
from posttrain.rewards.scorers.spec import Build, judge_of
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


# ---- in words


@scorer(title="Debate in words", paper="arXiv:2402.15826")
class DebateInWords(BaseScorer):
    """Debate in words: two copies of the start policy argue in turn for an answer and for a baseline answer; a judge compares them.

    r_debate = P(the answer wins | question, both answers, the arguments);  component `aux` beside the reward of the task
    The baseline is an answer of the start policy. Arguments and baselines are drawn by the identity of prompt and answer.
    """

    reported = ("aux",)

    def __init__(
        self, scorer: Scorer, debater: Policy, judge: Compares, how: Sampling, turns: int = 6, seed: int = 0
    ) -> None:  # fmt: skip
        self.inner, self.debater, self.judge = scorer, debater, asking(judge)
        self.how, self.turns, self.seed = how, turns, seed
        self.baselines: dict[str, str] = {}

    def verdicts(self, groups: list[Group]) -> list[Verdict]:
        rollouts = answers_of(groups)
        self.answer([g.prompt for g in groups])
        mine, other = [r.text for r in rollouts], [self.baselines[r.prompt.id] for r in rollouts]
        said: list[list[str]] = [[] for _ in rollouts]
        for turn in range(self.turns):
            asked = [
                argument(r.prompt, f"{r.index}-{turn}", (a, b) if turn % 2 == 0 else (b, a), told)
                for r, a, b, told in zip(rollouts, mine, other, said, strict=True)
            ]
            for told, (made,) in zip(said, self.debater.sample(asked, 1, self.how, self.seed, turn), strict=True):
                told.append(made.text)
        heard = [transcript(r.prompt, told) for r, told in zip(rollouts, said, strict=True)]
        won = self.judge(heard, mine, other)
        return [Verdict(None, {"aux": 0.5 if a == b else p}) for p, a, b in zip(won, mine, other, strict=True)]

    def answer(self, prompts: Sequence[Prompt]) -> None:
        """A baseline answer to each prompt, asked once."""
        new = list({p.id: p for p in prompts if p.id not in self.baselines}.values())
        for p, (made,) in zip(new, self.debater.sample(new, 1, self.how, self.seed, -1) if new else [], strict=True):
            self.baselines[p.id] = made.text


def question(prompt: Prompt) -> str:
    return "\n".join(str(m["content"]) for m in prompt.content)


def argument(prompt: Prompt, name: str, sides: tuple[str, str], said: Sequence[str]) -> Prompt:
    """What a debater is asked: one more reason for its side, which is the first."""
    so_far = "".join(f"\nArgument {i + 1}: {text}" for i, text in enumerate(said))
    ask = f"{question(prompt)}\nAnswer A: {sides[0]}\nAnswer B: {sides[1]}{so_far}\nGive one short argument why A is better."
    return Prompt.text(f"{prompt.id}-debate-{name}", ask)


def transcript(prompt: Prompt, said: Sequence[str]) -> Prompt:
    """What the judge reads besides the two answers; the sides argued in turn, the first for answer A."""
    told = "".join(f"\nFor {'AB'[i % 2]}: {text}" for i, text in enumerate(said))
    return replace(
        prompt, content=({"role": "user", "content": f"{question(prompt)}\nA debate about two answers:{told}"},)
    )


# ---- over pieces of the question

MOST_SETS = 300  # sets of evidence that the judge is asked about, per answer


@scorer(title="Debate over evidence", paper="arXiv:2402.15826")
class DebateOverEvidence(DebateInWords):
    """Debate over evidence: two sides show `turns` pieces of the question in turn; a judge who sees nothing else compares answers.

    r_debate = 1 if u > 0, 1/2 if u = 0, else 0;  u = max min ... (P(the answer wins | shown) - 1/2), the answer's side first, no piece
    twice. Each side plays its best against the best replies, so u is the value of the game; with as many turns as pieces the
    judge sees all. The baseline is an answer of the start policy; component `aux` beside the reward of the task.
    """

    def __init__(self, pieces: Callable[[Prompt], list[str]], *given: Any) -> None:
        super().__init__(*given)
        self.pieces = pieces

    def verdicts(self, groups: list[Group]) -> list[Verdict]:
        rollouts = answers_of(groups)
        self.answer([g.prompt for g in groups])
        mine, other = [r.text for r in rollouts], [self.baselines[r.prompt.id] for r in rollouts]
        sets = [self.sets(r.prompt) for r in rollouts]
        asked = [(i, some) for i, every in enumerate(sets) for some in every]
        shown = [evidence(rollouts[i].prompt, self.pieces(rollouts[i].prompt), some) for i, some in asked]
        told = self.judge(shown, [mine[i] for i, _ in asked], [other[i] for i, _ in asked])
        worth: list[dict[frozenset[int], float]] = [{} for _ in rollouts]
        for (i, some), p in zip(asked, told, strict=True):
            worth[i][frozenset(some)] = p - 0.5
        won = [played(u, len(self.pieces(r.prompt))) for u, r in zip(worth, rollouts, strict=True)]
        return [
            Verdict(None, {"aux": 0.5 if a == b or u == 0 else float(u > 0)})
            for u, a, b in zip(won, mine, other, strict=True)
        ]

    def sets(self, prompt: Prompt) -> list[tuple[int, ...]]:
        """All that may have been shown in the end."""
        n = len(self.pieces(prompt))
        if math.comb(n, min(self.turns, n)) > MOST_SETS:
            raise UserError(
                f"prompt {prompt.id!r} has {n} pieces, of which {self.turns} are shown in too many ways to play the debate out "
                f"(at most {MOST_SETS}); give fewer turns: --plan.turns 2"
            )
        return list(combinations(range(n), min(self.turns, n)))


def played(worth: Mapping[frozenset[int], float], n: int, shown: frozenset[int] = frozenset()) -> float:
    """The value of the game for the side that shows first: worth of the set that is shown in the end, each side at its best."""
    if shown in worth:
        return worth[shown]
    best = max if len(shown) % 2 == 0 else min
    return best(played(worth, n, shown | {i}) for i in range(n) if i not in shown)


def evidence(prompt: Prompt, pieces: Sequence[str], some: Sequence[int]) -> Prompt:
    """What the judge reads: these pieces of the question, in their order."""
    return replace(prompt, content=({"role": "user", "content": "\n".join(pieces[i] for i in some)},))


def pieces_of(named: str) -> Callable[[Prompt], list[str]]:
    """A question in pieces: its sentences, or a column of the data that lists them."""

    def pieces(prompt: Prompt) -> list[str]:
        if named == "sentences":
            found = [x.strip() for x in re.split(r"(?<=[.!?])\s+|\n+", question(prompt)) if x.strip()]
        else:
            found = [str(x) for x in prompt.info.get(named) or ()]
        if not found:
            raise UserError(f"prompt {prompt.id!r} has no pieces in {named!r}; name a column with a list, or sentences")
        return found

    return pieces


# ---- the plan

NO_JUDGE = (
    "a debate needs somebody who decides it; name a judge: --plan.judge \"judge(url='http://127.0.0.1:8000/v1')\" "
    "or --plan.judge mine.py:prefer"
)


def mixed(lam: float) -> Part:
    """R = (1 - lam) r_task + lam r_debate: the blend with the debate as component `aux`."""
    return blend.but(phi=(0.0, 1 - lam, lam))  # type: ignore[attr-defined, no-any-return]


def debated_ppo(lam: float = 0.5) -> Method:
    """PPO on the mix of the task's reward and the debate's."""
    return ppo.but(
        name="debate-reward", title="Debate reward", paper="arXiv:2402.15826", doc=__doc__,
        shaping=(mixed(lam), kl_in_reward),
    )  # fmt: skip


@plan(paper="arXiv:2402.15826", title="Debate reward")
def debate_reward(
    judge: str = "", lam: float = 0.5, turns: int = 6, steps: int = 60, evidence: str = "sentences"
) -> Plan:
    """Debate reward: PPO on the task's reward mixed with whether an answer wins a debate against the start policy's answer.

    R = (1 - lam) r_task + lam P(the answer wins the debate) - beta KL;  r_task: --reward, or the task's own grade
    judge: who decides: `judge(url='http://127.0.0.1:8000/v1')`, a function `mine.py:prefer` of (prompt, a, b), or a reward
    such as `runs/NAME`. evidence: what is shown to it, `turns` pieces: sentences (of the question), or a column of the data that
    lists pieces; both sides play the game out, and the judge sees the two answers and these pieces alone. evidence=words: two copies
    of the start policy write `turns` arguments in turn, and the judge reads them beside the whole question.

    Departures: the paper is about dosing decisions: double DQN on records of patients, evidence that is a feature of the state, a
    judge trained on comparisons, debaters trained by self-play or max-min. Here answers in words, PPO, a judge that is given,
    and sides that play exactly what max-min training aims at, for which each set of pieces is judged (at most 300 an answer). The
    game over rows of features is here for Python (`Debate`, `minimax`). Six pieces and the mix 0.5 are among the paper's.
    """
    if not 0 <= lam <= 1 or turns < 1 or steps < 1:
        raise UserError(f"got lam={lam}, turns={turns}, steps={steps}; lam is a share, the others are 1 at least")

    def rewards(context: Context) -> DebateInWords:
        c, env = context.config, asked_task(context)
        decides = judge_of(judge, Build(env, c.reward_timeout, c.device))
        given = (asked_rewards(context), context.role("start"), decides, c.sampling, turns, c.seed)
        return DebateInWords(*given) if evidence == "words" else DebateOverEvidence(pieces_of(evidence), *given)

    learn = Phase("ppo", debated_ppo(lam), steps, asked_task, rewards=rewards, reference="start")
    return Plan((Copy("policy", "start"), learn), missing="" if judge else NO_JUDGE)
