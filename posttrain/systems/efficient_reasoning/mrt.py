"""MRT: GRPO that also pays each episode of a thought for what it adds to the chance of answering right at once, so that no
part of the budget is wasted: the regret over the tokens falls, not only the error at the end.

After each episode of a thought the thought is closed, and 4 answers are sampled from there and graded: their mean is J. An
episode begins where a line or sentence takes a new course ("Wait", "Alternatively", "Let me", ...); in short thoughts without
such turns every line, sentence or word may be one: `--rollout "mrt(episode='line')"`. Cost: (episodes + 1) x 4 short answers
for each of the 8.

Departures: the paper's chance of answering is that of a separate policy asked for its best guess, here of the policy itself
(with at most 64 tokens, `--rollout "mrt(longest=64)"`), graded by the task whatever `--reward` pays. The paper samples new
continuations from a prefix of an earlier answer and pays each for its progress beyond that prefix (its released guide: the
baseline is the reward of stopping there); here the prefixes are those of the answers that are trained, and every episode of
them is paid. Its form by self-training (STaR: imitate the continuations of most progress that end right) is not here. Where no
answer of the first step holds a thought (`<think>`, written by the model or opened by its template), the run ends with that
sentence. alpha 1 and GRPO's KL of 0.04 are this package's.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from posttrain.advantages.group import group_sum
from posttrain.advantages.grpo import grpo as group_relative
from posttrain.core import rng, thinking
from posttrain.core.batch import Batch
from posttrain.core.credit import Span, split_steps, token_ends
from posttrain.core.errors import UserError
from posttrain.core.method import method
from posttrain.core.protocols import RolloutRequest
from posttrain.core.registry import advantage, rollout
from posttrain.core.types import Group, Rollout
from posttrain.methods.grpo import grpo
from posttrain.rollouts.resume import cut
from posttrain.rollouts.sample import sample

# ---- how answers are made

Probe = Callable[[Any, Rollout], list[float]]  # (policy, answer) -> for each token, the progress of its episode
CLOSE = thinking.CLOSE
TURN = "turn"
TURNS = re.compile(
    r"\s*(?:wait|alternatively|hmm|hold on|but wait|however|let me|let's|actually|another|maybe|perhaps|on second thought)\b",
    re.IGNORECASE,
)


@rollout(name="mrt", title="MRT", paper="arXiv:2503.07572", base="sample")
def probed(ask: RolloutRequest, n: int = 8, answers: int = 4, longest: int = 64, episode: str = TURN,
    probe: Probe | None = None,
) -> list[Group]:  # fmt: skip
    """MRT: sample, and for each episode of a thought note by how much it raised the chance of answering right at once.

    p_j = J(z_0..j) - J(z_0..j-1);  J: the mean grade of `answers` answers (of at most `longest` tokens) sampled where the
    thought is closed after episode j;  each token of episode j carries p_j, the others and the last 0
    episode: where one ends: "turn" (before a sentence that takes a new course), or at every word, phrase, sentence or line
    """
    if min(n, answers, longest) < 1:
        raise UserError(f"got n={n}, answers={answers}, longest={longest}; each is at least 1")
    groups = sample(ask, n=n)
    rollouts = [r for g in groups for r in g.rollouts]
    gains = [probe(ask.policy, r) for r in rollouts] if probe else progress(ask, rollouts, answers, longest, episode)
    for r, gain in zip(rollouts, gains, strict=True):
        gain_T = torch.tensor(gain)
        gain_T[-1:] = 0.0  # the outcome's place
        r.set_stream("reward", gain_T)
    return groups


@dataclass(frozen=True)
class Thought:
    """Where the thought of an answer stands in its text: begin (after the tag), and its episodes counted from there."""

    begin: int
    text: str
    episodes: list[Span]


def thought_of(r: Rollout, episode: str = TURN) -> Thought | None:
    """The thought of an answer: behind <think>, whoever wrote the tag (the text of an answer begins with what was written for it)."""
    found = thinking.thought_of(r.text)
    if not found.opened:
        return None
    inside = r.text[found.start : found.end].partition(CLOSE)[0]
    return Thought(found.start, r.text, episodes(inside, episode))


def episodes(thought: str, episode: str = TURN) -> list[Span]:
    """The spans of a thought's episodes: sentences and lines, joined until one takes a new course; or all steps of a level."""
    if episode != TURN:
        return split_steps(thought, episode)
    out: list[Span] = []
    for begin, end in split_steps(thought, "sentence"):
        if out and not TURNS.match(thought[begin:end]):
            out[-1] = (out[-1][0], end)
        else:
            out.append((begin, end))
    return out


def progress(
    ask: RolloutRequest, rollouts: list[Rollout], answers: int = 4, longest: int = 64, episode: str = TURN
) -> list[list[float]]:
    """Each token's p, for every answer: thoughts are closed after each episode (and before the first), and answers sampled."""
    if not ask.env.graded:
        raise UserError(
            f"mrt grades answers after each episode, and {ask.env.name} has no gold answers; give rows with one"
        )
    found = [thought_of(r, episode) for r in rollouts]
    if ask.step == 0 and not any(t is not None and t.episodes for t in found):
        raise UserError(
            "mrt pays the progress of thoughts, and no answer of the first step holds one (<think> ... </think>); use a model "
            "that thinks, or ask for it: --think"
        )
    heads = [
        (k, t.text[: t.begin + end] + CLOSE)
        for k, t in enumerate(found)
        if t is not None and t.episodes
        for end in (0, *(end for _, end in t.episodes))
    ]
    chances = iter(chance(ask, [(rollouts[k], head) for k, head in heads], answers, longest))
    out = []
    for r, t in zip(rollouts, found, strict=True):
        if t is None or not t.episodes:
            out.append([0.0] * len(r))
            continue
        J = [next(chances) for _ in range(len(t.episodes) + 1)]
        worth = [(t.begin + a, t.begin + b, J[j + 1] - J[j]) for j, (a, b) in enumerate(t.episodes)]
        ends = token_ends(ask.policy.decode, r.actions, r.turns[-1].observation.lead)
        out.append([next((p for a, b, p in worth if a < end <= b), 0.0) for end in ends])
    return out


@torch.no_grad()
def chance(ask: RolloutRequest, heads: list[tuple[Rollout, str]], answers: int, longest: int) -> list[float]:
    """J after each head: the mean grade of answers that go on from it."""
    stems = [ask.policy.written(r.prompt, head) for r, head in heads]
    stems = [cut(ask.policy, s, len(s) - 1) for s in stems]  # without the end
    keys = [
        [rng.key(ask.seed, ask.step, r.prompt.id, "probe", r.index, len(head), i) for i in range(answers)]
        for r, head in heads
    ]
    if not stems:
        return []
    made = ask.policy.act([s.turns for s in stems], keys, replace(ask.sampling, max_tokens=longest), version=ask.step)
    grades = [[ask.env.grade(r.prompt, t.text) for t in turns] for (r, _), turns in zip(heads, made, strict=True)]
    return [sum(some) / len(some) for some in grades]


# ---- who gets the credit


@advantage(
    name="mrt",
    title="MRT",
    paper="arXiv:2503.07572",
    base="grpo",
    laws=("shift_invariant", "groups_are_separate"),
    reads=("group_B", "reward_BT"),
)
def by_progress(batch: Batch, alpha: float = 1.0) -> Tensor:
    """MRT: an answer's credit among its siblings, plus what each piece of its thought added to the chance of being right.

    A_t = GRPO(outcome) + alpha (p_t - mean p);  p_t the progress of the piece that token t belongs to, mean over the
    group's tokens;  the reward on an answer's last own token is its outcome, those before it are p (as the rollout `mrt`
    puts them). Progress counts where it is made and is not summed to what is to come: each piece is to lower the regret.
    """
    reward_BT, own_BT = batch["reward_BT"], batch.mask_BT > 0
    number_BT = torch.where(own_BT, torch.arange(own_BT.shape[1], device=own_BT.device), -1)
    last_BT = own_BT & (number_BT == number_BT.amax(-1, keepdim=True))
    thought_BT = (own_BT & ~last_BT).to(reward_BT)
    p_BT = torch.where(thought_BT > 0, reward_BT, 0.0)
    group_B = batch["group_B"]
    mean_B = group_sum(p_BT.sum(-1), group_B) / group_sum(thought_BT.sum(-1), group_B).clamp_min(1)
    outcome_BT = group_relative(batch.but(reward_BT=torch.where(last_BT, reward_BT, 0.0)))
    return outcome_BT + alpha * (p_BT - mean_B.unsqueeze(-1)) * batch.mask_BT


# ---- the method

mrt = method(
    grpo.but(name="mrt", title="MRT", paper="arXiv:2503.07572", doc=__doc__, rollout=probed, advantage=by_progress)
)
