"""DR-PO: PPO whose answers begin, half of the time, in the middle of a demonstration: states worth seeing need not be found.

Departures: the paper first fine-tunes on its demonstrations and trains a reward model of preferences over the same
data; here neither is done, and both must be given (`--model`, `--reward runs/NAME`), else the task's own grade pays.
A prompt without a demonstration or a preferred answer starts from a prefix of its gold answer, which is trivial where
that is a bare number. Half of the prompts are reset (beta 0.5); the authors' code resets all of them (1). 8 answers
per prompt and the critic are `ppo`'s.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from posttrain.core import rng
from posttrain.core.errors import UserError
from posttrain.core.method import method
from posttrain.core.protocols import Policy, RolloutRequest
from posttrain.core.registry import rollout
from posttrain.core.sampling import Sampling
from posttrain.core.types import Group, Prompt, Rollout
from posttrain.methods.ppo import ppo
from posttrain.rollouts.resume import cut, resume, stem


@rollout(title="Dataset reset (DR-PO)", paper="arXiv:2404.08495", base="sample", system="dr-po")
def dataset_reset(ask: RolloutRequest, n: int = 8, beta: float = 0.5
) -> list[Group]:  # fmt: skip
    """Dataset reset (DR-PO): with probability beta a prompt's answers begin where a random prefix of its demonstration ends.

    start ~ beta (x, y*_{<h}), h uniform over the demonstration, + (1 - beta) x;  all n answers go on from the same start
    Tokens of the prefix are outside the mask: they are read, never learned. The demonstration is `info["demonstration"]`,
    else the preferred answer of a pair, else the gold answer; a prompt with none starts as usual. The authors' code has beta=1.
    """
    if not 0 <= beta <= 1:
        raise UserError(f"beta is {beta}; it is the share of prompts that start from a demonstration, 0 to 1")
    prompts, seed, step = ask.prompts, ask.seed, ask.step
    stems = [start(ask.policy, p, rng.python(seed, step, p.id, "reset"), beta, ask.sampling) for p in prompts]
    keys = [[rng.key(seed, step, p.id, i) for i in range(n)] for p in prompts]
    made = resume(ask.policy, stems, keys, ask.sampling, step)
    return [Group(p, [replace(r, index=i) for i, r in enumerate(some)]) for p, some in zip(prompts, made, strict=True)]


def start(policy: Policy, prompt: Prompt, draw: Any, beta: float, how: Sampling) -> Rollout:
    """The prompt alone, or with a prefix of its demonstration that leaves at least one action to choose."""
    told = next((x for k in ("demonstration", "chosen") if isinstance(x := prompt.info.get(k), str)), prompt.answer)
    resets, share = draw.random() < beta, draw.random()
    if not resets or not isinstance(told, str):
        return stem(policy, prompt)
    whole = policy.written(prompt, told)
    h = int(share * min(len(whole), how.max_tokens))
    begun = cut(policy, whole, h)
    return replace(begun.but_turn(mask_T=torch.zeros(h, dtype=torch.bool)), info={"prefix": h})


dr_po = method(ppo.but(name="dr-po", title="DR-PO", paper="arXiv:2404.08495", doc=__doc__, rollout=dataset_reset))
