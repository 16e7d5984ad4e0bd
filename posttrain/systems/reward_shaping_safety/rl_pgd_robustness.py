"""Robustness of one's own model: the least change of its input embeddings that changes the first token it answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from posttrain.core import rng
from posttrain.core.errors import UserError
from posttrain.core.plan import Context, Do, Plan, plan
from posttrain.core.registry import evaluation
from posttrain.methods.settings import asked_task

# ---- what is measured
# How robust one's own small model is: the least change of its inputs that changes what it answers.

Logits = Callable[[Tensor], Tensor]  # inputs (B, ...) -> logits (B, V); differentiable by its inputs
Score = Callable[[int], float]  # what an output is worth to the test; any function, no gradient needed


def project(delta: Tensor, eps: float) -> Tensor:
    """Back into the ball: |delta|_inf <= eps."""
    return delta.clamp(-eps, eps)


def reward_guided_pgd(
    logits: Logits, x: Tensor, score: Score, eps: float, steps: int = 10, samples: int = 4, seed: int = 0
) -> Tensor:
    """The change (within eps) that projected gradients reach, their target chosen by reward at each step.

    y = the best-scored of `samples` different outputs of model(x + delta), the likeliest of equals;  delta <- P(delta - step sign(grad CE(model(x + delta), y)))
    with step = 2.5 eps / steps. The score needs no gradient: the best sample stands for it. No weights are changed.
    """
    delta = torch.zeros_like(x)
    for i in range(steps):
        delta.requires_grad_()
        logp_V = logits((x + delta).unsqueeze(0)).squeeze(0).log_softmax(-1)
        draws = rng.torch_generator("pgd", seed, i)
        p_V = logp_V.detach().exp().clamp_min(1e-12)
        drawn = torch.multinomial(p_V, min(samples, len(p_V)), generator=draws).tolist()  # different ones
        target = max(drawn, key=lambda y, p_V=p_V: (score(y), float(p_V[y])))  # type: ignore[misc]
        (grad,) = torch.autograd.grad(-logp_V[target], delta)
        delta = project(delta.detach() - 2.5 * eps / steps * grad.sign(), eps)
    return delta


def random_change(
    logits: Logits, x: Tensor, score: Score, eps: float, steps: int = 10, samples: int = 4, seed: int = 0
) -> Tensor:
    """The baseline at as many looks at the model: the corner of the ball, of steps * samples random ones, whose top output
    scores best."""
    draws = rng.torch_generator("random change", seed)
    signs = torch.randint(0, 2, (steps * samples, *x.shape), generator=draws).to(x) * 2 - 1
    tops = logits(x + eps * signs).argmax(-1).tolist()
    return eps * signs[max(range(len(tops)), key=lambda i: score(tops[i]))]


@evaluation(paper="arXiv:2508.03365")
def robustness_margin(
    logits: Logits, inputs: Sequence[Tensor], labels: Sequence[int], find: Any = reward_guided_pgd,
    most: float = 4.0, halvings: int = 6,
) -> dict[str, float]:  # fmt: skip
    """Robustness margin: the smallest eps at which a change of the input makes the model's top output another label.

    By bisection up to `most`, input by input, over those the model gets right; `most` where nothing was found. The score
    that guides the search is 1 for another label, 0 for the right one. A larger mean is more robust.
    """
    if len(inputs) != len(labels) or not inputs:
        raise UserError(f"got {len(inputs)} inputs and {len(labels)} labels; give as many of each, at least one")
    found = []
    for i, (x, label) in enumerate(zip(inputs, labels, strict=True)):
        if int(logits(x.unsqueeze(0)).argmax()) == label:
            found.append(least(logits, x, label, find, most, halvings, i))
    share = len(found) / len(inputs)
    return {"margin": sum(found) / len(found) if found else 0.0, "right": share, "inputs": float(len(found))}


def least(logits: Logits, x: Tensor, label: int, find: Any, most: float, halvings: int, seed: int) -> float:
    def flips(eps: float) -> bool:
        delta = find(logits, x, lambda y: float(y != label), eps, seed=seed)
        return int(logits((x + delta).unsqueeze(0)).argmax()) != label

    low, high = 0.0, most
    if not flips(most):
        return most
    for _ in range(halvings):
        middle = (low + high) / 2
        low, high = (low, middle) if flips(middle) else (middle, high)
    return high


def harden(
    model: torch.nn.Module, x_BF: Tensor, y_B: Tensor, eps: float, steps: int = 60, lr: float = 0.02
) -> torch.nn.Module:
    """Adversarial training, the defence: fit on inputs moved by a few projected steps against their labels; eps 0 is plain."""
    optimiser = torch.optim.Adam(model.parameters(), lr=lr)
    for _ in range(steps):
        delta = torch.zeros_like(x_BF)
        for _ in range(3 if eps else 0):
            delta.requires_grad_()
            loss = torch.nn.functional.cross_entropy(model(x_BF + delta), y_B)
            (grad,) = torch.autograd.grad(loss, delta)
            delta = project(delta.detach() + 0.8 * eps * grad.sign(), eps)
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(model(x_BF + delta.detach()), y_B).backward()
        optimiser.step()
    return model


def of_embeddings(model: Any, tokens_S: Tensor) -> tuple[Tensor, Logits]:
    """A decoder as a function of what it reads: the embeddings of these tokens, and logits of the token that follows."""
    table = model.model.embed_tokens

    def logits(x_BSD: Tensor) -> Tensor:
        instead = table.register_forward_hook(lambda module, tokens, out: x_BSD)
        try:
            logits_BV: Tensor = model.logits(model.hidden(tokens_S.expand(len(x_BSD), -1))[:, -1])
            return logits_BV
        finally:
            instead.remove()

    return table(tokens_S).detach().float(), logits


# ---- the plan


@plan(paper="arXiv:2508.03365", title="Reward-guided PGD robustness", uses=("task",))
def rl_pgd_robustness(problems: int = 8, most: float = 1.0) -> Plan:
    """Reward-guided PGD robustness: measures a model, trains nothing. Only the test of one's own model is here.

    delta <- P_eps(delta - step sign(grad CE(model(x + delta), best-scored of several different outputs)))
    Margins in units of the embeddings' root mean square, up to `most`: by guided search, and by random changes.

    Departures: the paper changes sound given to an audio-language model; here embeddings of a text are changed, with
    harmless labels: what the model itself would have answered first, so that `--task` gives prompts only. One token
    is scored, not an answer. The control is random corners of the ball, which is weak; plain PGD against the label at
    as many gradients is not here. Only native decoders can be measured, and nothing is hardened in the plan (`harden`
    is a function for Python).
    """
    if problems < 1 or not most > 0:
        raise UserError(f"got problems={problems}, most={most}; it takes 1 problem and a change of more than 0")

    def measure(context: Context) -> None:
        policy, env = context.role("policy"), asked_task(context)
        if not hasattr(policy.model, "hidden"):
            raise UserError("this test reads a decoder's embeddings; use the embedded model or another native decoder")
        found: dict[str, list[float]] = {"guided": [], "random": []}
        for i in range(problems):
            x_SD, logits = of_embeddings(policy.model, policy.encode(env.prompt(i, "test")).to(policy.device))
            unit, label = float(x_SD.square().mean().sqrt()), int(logits(x_SD.unsqueeze(0)).argmax())
            for name, search in (("guided", reward_guided_pgd), ("random", random_change)):
                margin = robustness_margin(logits, [x_SD], [label], search, most * unit)["margin"]
                found[name].append(margin / unit)
        context.notes["robustness"] = {f"margin_{name}": fmean(xs) for name, xs in found.items()}

    return Plan((Do("measure", measure),))
