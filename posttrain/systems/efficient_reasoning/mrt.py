"""MRT: GRPO that also pays a thought for what it adds to the chance of answering right at once, so that no part of the budget
is wasted: the regret over the tokens falls, not only the error at the end.

To each prompt the policy thinks once, and the thought is cut where one of its episodes begins; 8 answers go on from there, and only what
they add is learned. Where an answer is forced right after a thought, J is how often it is right (of 4 answers that are sampled and
graded); an answer earns its outcome + alpha (J after what it added - J at the cut). An episode begins where a line or sentence takes
a new course ("Wait", "Alternatively", "Let me", ...); in short thoughts without such turns every line, sentence or word may be one:
`--rollout "mrt(episode='line')"`. Cost: one whole answer more for each prompt, and 4 short ones for the cut and each of the 8.
`--rollout "mrt(continued=False)"` trains whole answers and pays every episode of them on its own tokens (the authors' later
on-policy form): (episodes + 1) x 4 short answers for each of the 8. The metric `answers/thought` is the share of answers that hold
a thought: where it falls to 0 nothing is left but GRPO.

Departures: the paper's cuts are in answers of an earlier policy, here of the policy as it is, at an episode drawn evenly (its choice could
not be checked). Half of its continuations close the thought at the cut and answer, which gives J there; here those
answers are sampled beside, with at most 64 tokens (`--rollout "mrt(longest=64)"`), and not trained on. Its J is of a separate policy asked
for its best guess, here of the policy itself, graded by the task whatever `--reward` pays. Its released guide has the reward of
stopping as the only baseline; here answers are compared with their siblings, which share it. Its form by self-training (STaR:
imitate the continuations of most progress that end right) is not here. Where no answer of the first step holds a thought (`<think>`,
written by the model or opened by its template), the run ends with that sentence. alpha 1 and GRPO's KL of 0.04 are this package's.
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
from posttrain.core.credit import Span, on_last, split_steps, token_ends
from posttrain.core.errors import UserError
from posttrain.core.method import method
from posttrain.core.protocols import RolloutRequest
from posttrain.core.registry import advantage, rollout
from posttrain.core.types import Group, Rollout
from posttrain.methods.grpo import grpo
from posttrain.rollouts.resume import cut, resume
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
def probed(ask: RolloutRequest, n: int = 8, answers: int = 4, longest: int = 64, episode: str = TURN, continued: bool = True,
    probe: Probe | None = None,
) -> list[Group]:  # fmt: skip
    """MRT: n answers that go on from where an episode of a thought begins, with what each adds to the chance of answering right at once.

    p = J(c + z) - J(c);  c: the first episodes of one thought, how many is drawn evenly, z: what an answer adds to it;  J: the mean grade of
    `answers` answers (of at most `longest` tokens) sampled where the thought is closed;  c is outside the mask: read, never learned
    continued=False: n whole answers; each token of episode j carries p_j = J(z_0..j) - J(z_0..j-1), the others and the last 0
    episode: where one ends: "turn" (before a sentence that takes a new course), or at every word, phrase, sentence or line
    """
    if min(n, answers, longest) < 1:
        raise UserError(f"got n={n}, answers={answers}, longest={longest}; each is at least 1")
    if continued and probe is None:
        return from_prefixes(ask, n, answers, longest, episode)
    groups = sample(ask, n=n)
    rollouts = [r for g in groups for r in g.rollouts]
    gains = [probe(ask.policy, r) for r in rollouts] if probe else progress(ask, rollouts, answers, longest, episode)
    for r, gain in zip(rollouts, gains, strict=True):
        gain_T = torch.tensor(gain)
        gain_T[-1:] = 0.0  # the outcome's place
        r.set_stream("reward", gain_T)
        r.info["figures"] = {"thought": float(thought_of(r, episode) is not None)}
    return groups


@dataclass(frozen=True)
class Thought:
    """Where the thought of an answer stands in its text: begin (after the tag) and end, and its episodes counted from the beginning."""

    begin: int
    end: int
    text: str
    episodes: list[Span]


def from_prefixes(ask: RolloutRequest, n: int, answers: int, longest: int, episode: str) -> list[Group]:
    """One thought to each prompt, cut where one of its episodes begins, and n answers from there with their progress."""
    once = [g.rollouts[0] for g in sample(ask.but(finished=None), n=1)]
    stems = [begun(ask, r, t) for r, t in zip(once, thoughts(ask, once, episode), strict=True)]
    keys = [[rng.key(ask.seed, ask.step, r.prompt.id, "continued", i) for i in range(n)] for r in once]
    made = resume(ask.policy, stems, keys, ask.sampling, ask.step)
    groups = [Group(s.prompt, [replace(r, index=i) for i, r in enumerate(m)]) for s, m in zip(stems, made, strict=True)]
    heads = [(s, closed(s)) for s in stems]
    later = [(r, closed(r)) for g in groups for r in g.rollouts]
    J = chance(ask, heads + later, answers, longest)
    after = iter(zip(later, J[len(heads) :], strict=True))
    for (start, head), before, g in zip(heads, J, groups, strict=False):
        for (r, whole), right in (next(after) for _ in g.rollouts):
            p = right - before if whole != head else 0.0  # nothing was thought beyond the cut
            told = {"thought": float(thought_of(r, episode) is not None), "prefix": float(len(start)), "progress": p}
            r.info.update(prefix=len(start), progress=p, figures=told)
    return groups


def begun(ask: RolloutRequest, r: Rollout, t: Thought | None) -> Rollout:
    """The beginning of an answer up to an episode of its thought, drawn evenly, outside the mask; nothing of one without a thought."""
    at = 0
    if t is not None and t.episodes:
        j = rng.python(ask.seed, ask.step, r.prompt.id, "episode").randrange(len(t.episodes))
        ends = token_ends(ask.policy.decode, r.actions, r.row.observation.lead)
        at = sum(end <= t.begin + t.episodes[j][0] for end in ends) if j else 0
    return cut(ask.policy, r, at).but_turn(mask_T=torch.zeros(at, dtype=torch.bool))


def closed(r: Rollout) -> str:
    """An answer up to the end of its thought, closed there; of one that has none, an empty thought."""
    found = thinking.thought_of(r.text)
    empty = r.row.observation.lead + thinking.OPEN
    return (r.text[: found.end].partition(CLOSE)[0] if found.opened else empty) + CLOSE


def thought_of(r: Rollout, episode: str = TURN) -> Thought | None:
    """The thought of an answer: behind <think>, whoever wrote the tag (the text of an answer begins with what was written for it)."""
    found = thinking.thought_of(r.text)
    if not found.opened:
        return None
    inside = r.text[found.start : found.end].partition(CLOSE)[0]
    return Thought(found.start, found.start + len(inside), r.text, episodes(inside, episode))


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
    found = thoughts(ask, rollouts, episode)
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


def thoughts(ask: RolloutRequest, rollouts: list[Rollout], episode: str) -> list[Thought | None]:
    """The thought of each answer; an error where nothing can be graded, or where no answer of the first step thinks."""
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
    return found


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
    """MRT: an answer's outcome and what it added to the chance of being right, compared with its siblings'.

    A = GRPO(outcome + alpha p) where the progress of the whole continuation is known (`progress_B`, of the rollout `mrt`)
    A_t = GRPO(outcome) + alpha (p_t - mean p) otherwise;  p_t the progress of the piece that token t belongs to, mean over the
    group's tokens;  the reward on an answer's last own token is its outcome, those before it are p (as `mrt(continued=False)`
    puts them). Progress counts where it is made and is not summed to what is to come: each piece is to lower the regret.
    """
    if "progress_B" in batch:
        return group_relative(batch.but(reward_BT=on_last(batch.returns_B + alpha * batch["progress_B"], batch)))
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
