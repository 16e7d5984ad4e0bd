from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from posttrain.core.credit import split_steps, token_ends
from posttrain.core.errors import UserError
from posttrain.core.protocols import RolloutRequest
from posttrain.core.registry import rollout
from posttrain.core.types import Group, Prompt, Rollout
from posttrain.rollouts.sample import sample

Probe = Callable[[Any, Rollout], list[float]]  # (policy, answer) -> for each token, the progress of its piece


@rollout(title="MRT", paper="arXiv:2503.07572", base="sample")
def mrt(ask: RolloutRequest, n: int = 8, probe: Probe | None = None,
) -> list[Group]:  # fmt: skip
    """MRT: sample, and for each piece of a thought note by how much it raised the chance of answering right at once.

    p_j = J(z_0..j) - J(z_0..j-1);  J: the chance of the gold answer if the thought were closed here, read off the policy's
    own probabilities (the paper samples such answers);  each token of piece j carries p_j, the others and the last 0
    """
    groups = sample(ask, n=n)
    for r in (r for g in groups for r in g.rollouts):
        gain_T = torch.tensor((probe or progress)(ask.policy, r))
        gain_T[-1:] = 0.0  # the outcome's place
        r.set_stream("reward", gain_T)
    return groups


@torch.no_grad()
def progress(policy: Any, r: Rollout, level: str = "sentence") -> list[float]:
    """Each token's p: pieces are sentences between <think> and </think>, the gold answer is forced after each."""
    if not isinstance(r.prompt.answer, str):
        raise UserError(f"prompt {r.prompt.id!r} has no gold answer; MRT measures progress towards it")
    head, opened, rest = r.text.partition("<think>")
    spans = split_steps(rest.partition("</think>")[0], level) if opened else []
    if not spans:
        return [0.0] * len(r)
    thoughts = ["", *[rest[:end] for _, end in spans]]
    J = forced(policy, r.prompt, [f"{head}<think>{z}</think>" for z in thoughts])
    start = len(head) + len("<think>")
    pieces = [(start + a, start + b, J[j + 1] - J[j]) for j, (a, b) in enumerate(spans)]
    ends = token_ends(policy.decode, r.actions)
    return [next((p for a, b, p in pieces if a < end <= b), 0.0) for end in ends]


def forced(policy: Any, prompt: Prompt, heads: list[str]) -> list[float]:
    """The chance that the policy, having written each head, goes on with the gold answer and ends."""
    whole = [policy.written(prompt, head + prompt.answer) for head in heads]
    more = [len(w) - len(policy.written(prompt, head)) + 1 for w, head in zip(whole, heads, strict=True)]
    logp_BT = policy.forward(whole)["logp_BT"].cpu()
    return [
        float(logp_BT[b, len(w) - k : len(w)].sum().exp()) for b, (w, k) in enumerate(zip(whole, more, strict=True))
    ]
