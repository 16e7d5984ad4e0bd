"""RLPrompt: a small policy writes a short prompt for a frozen model and is paid for how well that model then answers.

Soft Q-learning on a frozen model with a trainable MLP before its head; rewards are compared within each input.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from posttrain.advantages.outcome import outcome
from posttrain.core.errors import UserError
from posttrain.core.method import Method
from posttrain.core.plan import Context, Do, Phase, Plan, plan
from posttrain.core.types import Prompt
from posttrain.evals.accuracy import held_out
from posttrain.losses.aggregate import sequence_mean
from posttrain.losses.policy.soft_q import soft_q
from posttrain.methods.asked import asked_task
from posttrain.methods.grpo import grpo
from posttrain.models.prompt_writer import PromptWriter
from posttrain.rewards.scorers.prompted import Prompted, label_reader
from posttrain.rewards.shaping.zscore import zscore
from posttrain.rollouts.sample import sample

MOST_LABELS, TRIES = 20, 16


def writing(n: int = 8, scale: float = 20.0) -> Method:
    """n prompts tried on each input, z-scores of their rewards, soft Q-learning."""
    return grpo.but(
        name="rlprompt", title="RLPrompt", paper="arXiv:2205.12548", doc=__doc__,
        rollout=sample.but(n=n), shaping=zscore.but(scale=scale), advantage=outcome, loss=soft_q,
        aggregate=sequence_mean, terms=(),
    )  # fmt: skip


class Shots:
    """The first inputs of a task and the labels among their answers: a few-shot classification problem."""

    def __init__(self, env: Any, size: int) -> None:
        self.name, self.size = env.name, size
        self.inputs: list[Prompt] = [env.prompt(i, "train") for i in range(size)]
        self.labels = sorted({str(p.answer) for p in self.inputs})
        if not 2 <= len(self.labels) <= MOST_LABELS:
            raise UserError(
                f"{env.name} has {len(self.labels)} different answers among {size} questions; rlprompt writes prompts for a "
                f"choice of 2 to {MOST_LABELS}: --task counting, or a file with few labels"
            )

    def prompt(self, index: int, split: str = "train") -> Prompt:
        return self.inputs[index % self.size]


@plan(paper="arXiv:2205.12548", title="RLPrompt")
def rlprompt(
    steps: int = 100, length: int = 2, n: int = 8, shots: int = 64, lr: float = 3e-3, scale: float = 20.0
) -> Plan:
    """RLPrompt: search the best prompt of `length` tokens for a frozen model on a task with few labels.

    max E_z[z-score of R(z, x)] + H(z) / scale;  R = 200 gap if right else 180 gap;  gap = P(label) - max P(other)
    The writer is a copy of the frozen model with an MLP before its head, all else frozen (the paper: distilGPT-2). Of the
    prompts it likes in the end the one with the largest mean gap on the shots is kept; the summary has it, with the
    accuracy on held-out inputs with and without it. The paper optimises one prompt for thousands of steps.
    """
    if min(steps, length, shots) < 1 or n < 2:
        raise UserError(
            f"got steps={steps}, length={length}, n={n}, shots={shots}; 2 prompts an input at least, 1 else"
        )

    def env(context: Context) -> Shots:
        context.config = replace(context.config, think=False)  # a label is said at once
        return Shots(asked_task(context), shots)

    def rewards(context: Context) -> Prompted:
        labels = env(context).labels
        return Prompted(label_reader(context.role("policy"), labels), labels)

    def report(context: Context) -> None:
        inputs, scorer = env(context).inputs, rewards(context)
        tried = written(context.role("writer"), inputs[0], length, context.config.seed)
        worth = {z: float(scorer.gaps(inputs, [z] * len(inputs)).mean()) for z in tried}
        best = max(worth, key=lambda z: worth[z])
        test = [p for p in held_out(asked_task(context), context.config.eval_problems, "test")]
        known = [p for p in test if str(p.answer) in scorer.labels]
        for name, z in (("accuracy_without_prompt", ""), ("accuracy_with_prompt", best)):
            context.notes[name] = float((scorer.gaps(known, [z] * len(known)) > 0).float().mean())
        context.notes |= {"prompt": best, "prompts_tried": len(tried)}

    def make(context: Context) -> PromptWriter:
        return PromptWriter.of(context.role("policy"), seed=context.config.seed)

    learn = Phase(
        "write", writing(n, scale), steps, env, "writer", make, rewards, {"sampling": _tokens(length), "lr": lr}
    )  # fmt: skip
    options = {"steps": steps, "length": length, "n": n, "shots": shots, "lr": lr, "scale": scale}
    parts = (learn, Do("choose", report))
    return Plan("rlprompt", parts, "RLPrompt", "arXiv:2205.12548", rlprompt.__doc__ or "", options)


def _tokens(length: int) -> Any:
    from posttrain.core.sampling import Sampling

    return Sampling(max_tokens=length)


@torch.no_grad()
def written(writer: PromptWriter, any_input: Prompt, length: int, seed: int) -> list[str]:
    """Different prompts that the writer likes: its likeliest and some draws."""
    greedy = writer.sample([any_input], 1, replace(_tokens(length), temperature=0.0), seed, -1)
    drawn = writer.sample([any_input], TRIES, _tokens(length), seed, -1)
    return list(dict.fromkeys(r.text for some in (*greedy, *drawn) for r in some))
