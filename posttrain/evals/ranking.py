"""Preferences that nobody trained on: how often the preferred answer is ranked above the other, a good one above a bad one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch

from posttrain.core.protocols import Policy
from posttrain.core.types import Prompt, Rollout
from posttrain.environments.conversions import matched, paired
from posttrain.evals.accuracy import Score

_AT_ONCE = 32  # pairs of one forward pass
LABELLED = "good answers"  # what was graded, where answers to different prompts are compared


def ranked_right(policy: Policy, prompts: Sequence[Prompt], kind: str) -> Score:
    """By pairs: those of pairs, every two answers of a list with different scores, a good and a bad answer to the same question. Where
    no question has answers of both labels, each good answer is compared with all bad ones."""
    if kind == "pairs":
        return ranking(policy, prompts)
    if kind == "lists":
        return ranked_lists(policy, prompts)
    same = matched(prompts)
    return ranking(policy, same) if same else told_apart(policy, prompts)


@torch.no_grad()
def ranking(policy: Policy, prompts: Sequence[Prompt]) -> Score:
    """The share of pairs with s(chosen) > s(rejected); equals count half, and of no pairs it is nan.

    s is the score of a reward model, else log pi(y | x), the whole answer's log-probability; margin is the mean of
    s(chosen) - s(rejected). rollouts are the preferred answers, each worth 1, 1/2 or 0.
    """
    chosen: list[Rollout] = []
    margins: list[float] = []
    for start in range(0, len(prompts), _AT_ONCE):
        some = prompts[start : start + _AT_ONCE]
        written = [policy.written(p, p.info[k]) for p in some for k in ("chosen", "rejected")]
        for better, worse, s in zip(written[::2], written[1::2], worth(policy, written).view(-1, 2).tolist()):
            better.reward, worse.reward = [0.5 + 0.5 * ((a > b) - (a < b)) for a, b in (s, s[::-1])]
            chosen.append(better)
            margins.append(s[0] - s[1])
    return _score(chosen, margins)


@torch.no_grad()
def ranked_lists(policy: Policy, prompts: Sequence[Prompt]) -> Score:
    """The same over every two answers of a list with different scores; each answer is scored once."""
    chosen: list[Rollout] = []
    margins: list[float] = []
    for p in prompts:
        texts = [answer["text"] for answer in p.info["ranked"]]
        written = [policy.written(p, text) for text in texts]
        value = dict(zip(texts, worth(policy, written).tolist(), strict=True))
        made = dict(zip(texts, written, strict=True))
        for pair in paired(p, every=True):
            s = value[pair.info["chosen"]] - value[pair.info["rejected"]]
            chosen.append(replace(made[pair.info["chosen"]], prompt=pair, reward=0.5 + 0.5 * ((s > 0) - (s < 0))))
            margins.append(s)
    return _score(chosen, margins)


@torch.no_grad()
def told_apart(policy: Policy, prompts: Sequence[Prompt]) -> Score:
    """Of good answers the share of all bad ones that they are ranked above (the area under the ROC curve); log-probabilities are per
    token here, since the answers are to different prompts. margin is the difference of the means."""
    written = [policy.written(p, p.info["response"]) for p in prompts]
    found: list[float] = []
    for start in range(0, len(written), 2 * _AT_ONCE):
        some = written[start : start + 2 * _AT_ONCE]
        per = 1 if getattr(policy, "score", None) is not None else torch.tensor([len(r) for r in some])
        found += (worth(policy, some) / per).tolist()
    bad = [s for s, p in zip(found, prompts, strict=True) if not p.info["label"]]
    good = [(r, s) for r, s, p in zip(written, found, prompts, strict=True) if p.info["label"]]
    if not bad:
        return _score([], [], LABELLED)
    for r, s in good:
        r.reward = sum(0.5 + 0.5 * ((s > b) - (s < b)) for b in bad) / len(bad)
    return _score([r for r, _ in good], [s - sum(bad) / len(bad) for _, s in good], LABELLED)


def _score(chosen: list[Rollout], margins: list[float], of: str = "pairs") -> Score:
    """Mean and standard error of what the preferred answers are worth."""
    grades = [r.reward or 0.0 for r in chosen]
    mean = sum(grades) / len(grades) if grades else math.nan
    var = sum((g - mean) ** 2 for g in grades) / max(len(grades) - 1, 1)
    tokens = sum(len(r) for r in chosen) / max(len(chosen), 1)
    margin = sum(margins) / len(margins) if margins else math.nan
    return Score(mean, math.sqrt(var / max(len(grades), 1)), len(chosen), tokens, chosen, of=of, margin=margin)


def worth(policy: Policy, written: list[Rollout]) -> torch.Tensor:
    """s of each answer: the reward model's score, or the sum of its tokens' log-probabilities."""
    if getattr(policy, "score", None) is not None:
        return policy.forward(written, ("score_B",))["score_B"].float().cpu()
    return policy.forward(written, ("logp_BT",))["logp_BT"].sum(-1).float().cpu()
