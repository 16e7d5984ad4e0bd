"""Robustness of one's own model: the least change of its input embeddings that makes an answer wrong which was right."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import fmean
from typing import Any, Protocol

import torch
from torch import Tensor

from posttrain.core import rng
from posttrain.core.errors import UserError, unknown
from posttrain.core.plan import Context, Do, Plan, plan
from posttrain.core.registry import evaluation
from posttrain.core.sampling import Sampling
from posttrain.core.types import Prompt
from posttrain.methods.settings import asked_task
from posttrain.models.sampling import generate

# ---- what is measured
# How robust one's own small model is: the least change of its inputs that makes what it says wrong.

Output = tuple[int, ...]  # a label, or the tokens of an answer
Logits = Callable[[Tensor], Tensor]  # inputs (B, ...) -> logits (B, V); differentiable by its inputs
Score = Callable[[Output], float]  # 1 for a wrong output, 0 for a right one; any function, no gradient needed


class Reads(Protocol):
    """A model that reads one input, to which a change is added."""

    x: Tensor

    def top(self, delta_B: Tensor) -> list[Output]:
        """What it says under each change of a stack, its likeliest output."""

    def draws(self, delta: Tensor, n: int, seed: int) -> list[Output]:
        """n different outputs under a change, drawn by how likely they are."""

    def logp(self, delta: Tensor, output: Output) -> Tensor:
        """Mean log-probability of the output's tokens; differentiable by the change."""


class Label:
    """A classifier that reads one input: its output is one label."""

    def __init__(self, logits: Logits, x: Tensor) -> None:
        self.logits, self.x = logits, x

    def top(self, delta_B: Tensor) -> list[Output]:
        return [(int(y),) for y in self.logits(self.x + delta_B).argmax(-1)]

    def draws(self, delta: Tensor, n: int, seed: int) -> list[Output]:
        with torch.no_grad():
            return different(self.logits((self.x + delta).unsqueeze(0))[0], n, seed)

    def logp(self, delta: Tensor, output: Output) -> Tensor:
        return self.logits((self.x + delta).unsqueeze(0))[0].log_softmax(-1)[output[0]]


class Answer:
    """A language model that reads one prompt: its output is a whole answer. The embeddings of the prompt's tokens are changed."""

    def __init__(self, policy: Any, prompt: Prompt, longest: int) -> None:
        self.model, self.stops, self.longest = policy.model, policy.stop_ids, longest
        self.tokens_S = policy.encode(prompt).to(policy.device)
        with torch.no_grad():
            self.x = self.model.embed(self.tokens_S.unsqueeze(0))[0].float()

    @contextmanager
    def changed(self, delta_BSD: Tensor) -> Iterator[None]:
        """While it lasts, whatever begins with the prompt is read with these changes (one for all rows, or one each)."""
        S = len(self.tokens_S)

        def moved(module: Any, tokens: Any, out: Tensor) -> Tensor:
            if out.dim() < 3 or out.shape[1] < S:
                return out  # a later token of an answer
            front = out[:, :S].float() + delta_BSD  # half precision would round small changes away
            return torch.cat([front, out[:, S:].float()], 1)

        hook = self.model.model.embed_tokens.register_forward_hook(moved)
        try:
            yield
        finally:
            hook.remove()

    def said(self, delta_BSD: Tensor, begun: Sequence[Output], temperature: float, seed: int = 0) -> list[Output]:
        """Answers that go on from what is begun, one under each change (or all under one)."""
        contexts = [torch.cat([self.tokens_S.cpu(), torch.tensor(b, dtype=torch.long)]) for b in begun]
        keys = [[rng.key("pgd", seed, i)] for i in range(len(begun))]
        how = Sampling(max_tokens=self.longest, temperature=temperature)
        with self.changed(delta_BSD):
            made = generate(self.model, contexts, keys, how, self.stops)
        return [(*b, *some[0].tokens.tolist()) for b, some in zip(begun, made, strict=True)]

    def top(self, delta_B: Tensor) -> list[Output]:
        return self.said(delta_B, [()] * len(delta_B), 0.0)

    def draws(self, delta: Tensor, n: int, seed: int) -> list[Output]:
        """Answers with different first tokens, so that a sure model too is seen to say other things."""
        with torch.no_grad(), self.changed(delta.unsqueeze(0)):
            first_V = self.model.logits(self.model.hidden(self.tokens_S.unsqueeze(0))[:, -1])[0]
        begun = different(first_V, n, seed)
        ended = [b for b in begun if b[0] in self.stops]
        return ended + self.said(delta.unsqueeze(0), [b for b in begun if b not in ended], 1.0, seed)

    def logp(self, delta: Tensor, output: Output) -> Tensor:
        said_T = torch.tensor(output, device=self.tokens_S.device)
        with self.changed(delta.unsqueeze(0)):
            h_TD = self.model.hidden(torch.cat([self.tokens_S, said_T]).unsqueeze(0))[0, len(self.tokens_S) - 1 : -1]
        logp_TV: Tensor = self.model.logits(h_TD).log_softmax(-1)
        return logp_TV.gather(-1, said_T.unsqueeze(-1)).mean()


def different(logits_V: Tensor, n: int, seed: int) -> list[Output]:
    """n different tokens, drawn by their probability without replacement."""
    p_V = logits_V.float().softmax(-1).cpu().clamp_min(1e-12)
    drawn = torch.multinomial(p_V, min(n, len(p_V)), generator=rng.torch_generator("pgd", seed))
    return [(int(y),) for y in drawn]


def project(delta: Tensor, eps: float) -> Tensor:
    """Back into the ball: |delta|_inf <= eps."""
    return delta.clamp(-eps, eps)


def reward_guided_pgd(
    reads: Reads, score: Score, eps: float, steps: int = 10, samples: int = 4, seed: int = 0
) -> Tensor:
    """The change (within eps) that projected gradients reach, their target chosen by reward at each step.

    y = the best-scored of `samples` different outputs of model(x + delta), the likeliest of equals;  delta <- P(delta - step sign(grad CE(model(x + delta), y)))
    with step = 2.5 eps / steps. The score needs no gradient: the best sample stands for it. No weights are changed.
    """
    delta = torch.zeros_like(reads.x)
    for i in range(steps):
        drawn = reads.draws(delta, samples, rng.key(seed, i) & 0x7FFFFFFF)
        scored = [(score(y), y) for y in drawn]
        best = max(s for s, _ in scored)
        with torch.no_grad():
            target = max((y for s, y in scored if s == best), key=lambda y, at=delta: float(reads.logp(at, y)))  # type: ignore[misc]
        delta = moved(reads, delta, target, -2.5 * eps / steps, eps)
    return delta


def untargeted_pgd(reads: Reads, score: Score, eps: float, steps: int = 10, samples: int = 4, seed: int = 0) -> Tensor:
    """Plain projected gradients away from what is said without a change, at as many gradients: the control of the guidance.

    delta <- P(delta + step sign(grad CE(model(x + delta), y_0)));  it begins at a random place in the ball, where the gradient is not 0
    """
    (right,) = reads.top(torch.zeros_like(reads.x).unsqueeze(0))
    draws = rng.torch_generator("untargeted", seed)
    delta = 0.1 * eps * (2 * torch.rand(reads.x.shape, generator=draws) - 1).to(reads.x)
    for _ in range(steps):
        delta = moved(reads, delta, right, 2.5 * eps / steps, eps)
    return delta


def moved(reads: Reads, delta: Tensor, output: Output, step: float, eps: float) -> Tensor:
    """One signed step along the gradient of the output's cross-entropy, back into the ball."""
    delta = delta.detach().requires_grad_()
    (grad,) = torch.autograd.grad(-reads.logp(delta, output), delta)
    return project(delta.detach() + step * grad.sign(), eps)


def random_change(reads: Reads, score: Score, eps: float, steps: int = 10, samples: int = 4, seed: int = 0) -> Tensor:
    """As many looks at the model without gradients: the corner of the ball, of steps * samples random ones, whose top output
    scores best."""
    draws = rng.torch_generator("random change", seed)
    signs = torch.randint(0, 2, (steps * samples, *reads.x.shape), generator=draws).to(reads.x) * 2 - 1
    tops = reads.top(eps * signs)
    return eps * signs[max(range(len(tops)), key=lambda i: score(tops[i]))]


@evaluation(paper="arXiv:2508.03365")
def robustness_margin(
    inputs: Sequence[Reads], scores: Sequence[Score], find: Any = reward_guided_pgd, most: float = 4.0, halvings: int = 6
) -> dict[str, float]:  # fmt: skip
    """Robustness margin: the smallest eps at which a change of the input makes the model's top output a wrong one.

    By bisection up to `most`, input by input, over those the model gets right; `most` where nothing was found. The score
    says what is wrong: 1, else 0. A larger mean is more robust.
    """
    if len(inputs) != len(scores) or not inputs:
        raise UserError(f"got {len(inputs)} inputs and {len(scores)} scores; give as many of each, at least one")
    found = [least(x, score, find, most, halvings, i) for i, (x, score) in enumerate(zip(inputs, scores, strict=True))]
    margins = [x for x in found if x is not None]
    share = len(margins) / len(inputs)
    return {"margin": fmean(margins) if margins else 0.0, "right": share, "inputs": float(len(margins))}


def least(reads: Reads, score: Score, find: Any, most: float, halvings: int, seed: int) -> float | None:
    """The margin of one input; None where the model is wrong without any change."""

    def wrong(delta: Tensor) -> bool:
        return score(reads.top(delta.unsqueeze(0))[0]) > 0

    if wrong(torch.zeros_like(reads.x)):
        return None
    low, high = 0.0, most
    if not wrong(find(reads, score, most, seed=seed)):
        return most
    for _ in range(halvings):
        middle = (low + high) / 2
        low, high = (low, middle) if wrong(find(reads, score, middle, seed=seed)) else (middle, high)
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


# ---- the plan

SEARCHES = {"guided": reward_guided_pgd, "plain": untargeted_pgd, "random": random_change}


@plan(paper="arXiv:2508.03365", title="Reward-guided PGD robustness", uses=("task",))
def rl_pgd_robustness(problems: int = 8, most: float = 0.25, searches: str = "guided,plain,random") -> Plan:
    """Reward-guided PGD robustness: measures a model, trains nothing. Only the test of one's own model is here.

    delta <- P_eps(delta - step sign(grad CE(model(x + delta), best-scored of several different answers)))
    Over those of the first `problems` held-out problems that the model gets right: the least change of the prompt's embeddings, in
    units of their root mean square and up to `most`, at which its likeliest answer is graded wrong. By reward-guided search
    (margin_guided), by plain PGD away from the right answer at as many gradients (margin_plain), and by random corners of
    the ball (margin_random); `searches` names those that are run. A task without gold answers: any other answer than the model's own is wrong.

    Departures: the paper changes sound given to an audio-language model; here embeddings of a text are changed, on tasks
    with harmless answers, where wrong is all that can be reached. Its reward is a judge's, here the task's grade. Answers are as long as
    `--sampling.max-tokens` lets them be. 10 steps, 4 samples and steps of 2.5 eps / 10 are this package's. Only native
    decoders can be measured, and nothing is hardened in the plan (`harden` is a function for Python).
    """
    if problems < 1 or not most > 0:
        raise UserError(f"got problems={problems}, most={most}; it takes 1 problem and a change of more than 0")
    chosen = {name: SEARCHES.get(name) for name in (x.strip() for x in searches.split(","))}
    if None in chosen.values():
        raise unknown("search", next(name for name, search in chosen.items() if search is None), SEARCHES)

    def measure(context: Context) -> None:
        policy, env = context.role("policy"), asked_task(context)
        if not hasattr(getattr(policy.model, "model", None), "embed_tokens") or not hasattr(policy.model, "embed"):
            raise UserError("this test reads a decoder's embeddings; use the embedded model or another native decoder")
        found: dict[str, list[float]] = {name: [] for name in chosen}
        for p in (env.prompt(i, "test") for i in range(problems)):
            reads = Answer(policy, p, context.config.sampling.max_tokens)
            unit, score = float(reads.x.square().mean().sqrt()), wrong_answer(policy, env, p, reads)
            for name, search in chosen.items():
                margin = robustness_margin([reads], [score], search, most * unit)
                found[name] += [margin["margin"] / unit] if margin["inputs"] else []
        right = len(next(iter(found.values())))
        if not right:
            raise UserError(f"the model gets none of {problems} problems right, so nothing can be made wrong")
        context.notes["robustness"] = {f"margin_{name}": fmean(xs) for name, xs in found.items()} | {"right": right}

    return Plan((Do("measure", measure),))


def wrong_answer(policy: Any, env: Any, prompt: Prompt, reads: Answer) -> Score:
    """1 where the task grades an answer below 1; without gold answers, where it is not what the model itself says."""
    lead = str(policy.lead(prompt))

    def text(output: Output) -> str:
        return lead + str(policy.decode(torch.tensor(output, dtype=torch.long)))

    if env.graded:
        return lambda output: float(env.grade(prompt, text(output)) < 1)
    own = text(reads.top(torch.zeros_like(reads.x).unsqueeze(0))[0])
    return lambda output: float(text(output) != own)
