"""DR-IRL: a reward learned from demonstrations alone (they must score above the policy's own answers), then GRPO-S, whose
credit is scaled by how hard the prompt is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from posttrain.advantages.difficulty_scaled import difficulty_scaled
from posttrain.core.method import method
from posttrain.core.sampling import Sampling
from posttrain.core.types import Prompt
from posttrain.methods.grpo import grpo

dr_irl = method(
    grpo.but(name="dr-irl", title="DR-IRL", paper="arXiv:2503.18991", doc=__doc__, advantage=difficulty_scaled),
    __file__,
)


def irl_pairs(policy: Any, prompts: Sequence[Prompt], how: Sampling, seed: int = 0, n: int = 1) -> list[Prompt]:
    """Demonstration against one's own answer, as pairs for a reward model: argmax_r E_demo[r] - E_policy[r], logistic.

    Each prompt's `info["demonstration"]` is chosen, each of n answers of the policy rejected; equal texts are left out.
    """
    made = policy.sample(list(prompts), n, how, seed, -1)
    out = []
    for p, rollouts in zip(prompts, made, strict=True):
        for i, r in enumerate(rollouts):
            if r.text != p.info["demonstration"]:
                info = p.info | {"chosen": p.info["demonstration"], "rejected": r.text}
                out.append(replace(p, id=f"{p.id}#{i}", info=info))
    return out
