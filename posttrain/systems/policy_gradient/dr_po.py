"""DR-PO: PPO whose answers begin in the middle of a demonstration: states worth seeing need not be found."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from posttrain.core import rng
from posttrain.core.errors import UserError
from posttrain.core.method import Method
from posttrain.core.plan import Phase, Plan, plan
from posttrain.core.protocols import Policy, RolloutRequest
from posttrain.core.registry import rollout
from posttrain.core.sampling import Sampling
from posttrain.core.types import Group, Prompt, Rollout
from posttrain.methods.from_pairs import (
    critic_of_reward_model,
    demonstrations,
    epochs_of,
    imitation,
    paid_and_shown,
    payer,
    reward_phase,
)
from posttrain.methods.ppo import ppo
from posttrain.rewards.shaping.kl_in_reward import kl_in_reward
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


# ---- the plan


def reset_ppo(beta: float = 1.0, kl: float = 0.05) -> Method:
    """PPO from states of demonstrations, one answer per prompt and four passes over a batch; it learns from the tokens that it wrote."""
    return ppo.but(
        name="dr-po", title="DR-PO", paper="arXiv:2404.08495", doc=__doc__,
        rollout=dataset_reset.but(n=1, beta=beta), shaping=kl_in_reward.but(coef=kl), epochs=4, minibatches=1,
    )  # fmt: skip


@plan(paper="arXiv:2404.08495", title="DR-PO")
def dr_po(
    pairs: str = "", warmup: float = 1, epochs: float = 1, beta: float = 1.0, kl: float = 0.05, questions: int = 0
) -> Plan:  # fmt: skip
    """DR-PO: SFT on demonstrations, a reward model of preferences, then PPO whose answers begin where a random prefix of a demonstration
    ends.

    start ~ beta (x, y*_{<h}), h uniform, + (1 - beta) x;  maximise E[R - kl log(pi / pi_sft)]
    R: a reward model of `pairs` (a file with chosen and rejected), trained here for one pass, or --reward. Demonstrations are those of
    --task. warmup, epochs: passes of SFT (0: none) and of PPO over them. beta: share of prompts that are reset.

    Departures: the paper's data are TL;DR and Anthropic HH; here yours. All prompts are reset (beta 1), as in the authors' code; the
    paper also mixes. They scale rewards by their deviation in the batch, here the reward model's scores have deviation 1; they sample at
    temperature 0.7 (`--sampling.temperature`) and pay -1 for answers that do not end. One answer per prompt, 4 passes over a batch, KL 0.05 and a
    critic that begins as the reward model are the authors'; with --reward in place of pairs the critic begins as `ppo`'s does.
    """
    if warmup < 0 or epochs <= 0 or questions < 0:
        raise UserError(
            f"got warmup={warmup}, epochs={epochs}, questions={questions}; epochs is above 0, the others 0 or more"
        )
    worked = demonstrations(questions, option="")
    parts = (
        *imitation(warmup, worked),
        *reward_phase(pairs),
        Phase(
            "ppo", reset_ppo(beta, kl), epochs_of(worked, epochs), worked, rewards=payer(pairs),
            critic=critic_of_reward_model if pairs else None,
        ),
    )  # fmt: skip
    return Plan(parts, ready=paid_and_shown("dr-po", pairs, worked), uses=("task",) if pairs else ("task", "reward"))
