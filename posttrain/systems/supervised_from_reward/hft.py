"""HFT (half fine-tuning): in every round half of each layer learns, and the other half stays exactly as it was, so that less is forgotten."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import partial
from statistics import fmean
from typing import Any

from posttrain.core import rng
from posttrain.core.errors import UserError, unknown
from posttrain.core.method import Method, find_method
from posttrain.core.plan import Context, Make, Phase, Plan, plan
from posttrain.environments.base import size_of
from posttrain.environments.worked import Worked
from posttrain.methods.from_pairs import ENDLESS, epochs_of
from posttrain.methods.settings import asked_pairs, asked_rewards, asked_task, named_task, written
from posttrain.runs.build import measure
from posttrain.runs.refuse import suits

# the matrices of a layer by kind; what else belongs to one of them (a bias, the norm of queries) goes with it
KINDS = {
    "attention": ("q_proj", "k_proj", "v_proj", "o_proj"),
    "feed-forward": ("gate_proj", "up_proj", "down_proj"),
    "norms": ("input_layernorm", "post_attention_layernorm"),
}
WITH = {"q_norm": "q_proj", "k_norm": "k_proj"}
LEVELS = ("category", "layer", "model")
_LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.(.+)$")
Env = Callable[[Context], Any]

# ---- which half learns


def matrix_of(name: str) -> tuple[int, str] | None:
    """The layer and the matrix (or norm) that a parameter belongs to; None outside of the layers: embeddings, head, last norm."""
    found = _LAYER.search(name)
    if not found:
        return None
    words = [WITH.get(word, word) for word in found[2].split(".")]
    known = [word for word in words if any(word in kind for kind in KINDS.values())]
    return int(found[1]), known[0] if known else words[0]


def half(matrices: Iterable[tuple[int, str]], level: str, *identity: object) -> set[tuple[int, str]]:
    """Which matrices learn, drawn by identity.

    category: 2 of the 4 of attention, 1 of the 2 norms, and of the 3 of the feed-forward network 1 and 2 in turn from layer to layer
    layer: all of every second layer, by lot;  model: half of all matrices, wherever they are
    """
    there, draw = sorted(set(matrices)), rng.python("half", *identity)
    layers = sorted({layer for layer, _ in there})
    if level == "model":
        return set(draw.sample(there, len(there) // 2))
    if level == "layer":
        mine = set(draw.sample(layers, len(layers) // 2))
        return {m for m in there if m[0] in mine}
    out, more = set[tuple[int, str]](), draw.randrange(2)
    for at, layer in enumerate(layers):
        words = [word for i, word in there if i == layer]
        for kind in KINDS.values():
            some = [word for word in kind if word in words]
            odd = len(some) % 2 * ((at + more) % 2)  # 3 matrices: 1, 2, 1, 2 ...
            out |= {(layer, word) for word in draw.sample(some, len(some) // 2 + odd)}
        rest = [word for word in words if not any(word in kind for kind in KINDS.values())]
        out |= {(layer, word) for word in draw.sample(rest, len(rest) // 2)}
    return out


def halved(policy: Any, level: str, embeddings: bool, *identity: object) -> Any:
    """The policy itself, with one half of its layers to be learned; embeddings: what is outside of the layers is learned too."""
    named = [(name, p, matrix_of(name)) for name, p in policy.named_parameters()]
    mine = half([m for _, _, m in named if m], level, *identity)
    if not mine:
        raise UserError(
            f"hft draws half of the matrices of a transformer's layers, and {type(policy).__name__} has no layers"
        )
    for _, p, matrix in named:
        p.requires_grad_(matrix in mine if matrix else embeddings)
    return policy


def whole(context: Context) -> Any:
    """The policy, all of it free to learn again."""
    return context.role("policy").requires_grad_(True)


def share(policy: Any) -> float:
    """The share of all weights that learn."""
    sizes = [(int(p.numel()), bool(p.requires_grad)) for p in policy.parameters()]
    return sum(n for n, learns in sizes if learns) / sum(n for n, _ in sizes)


# ---- what is learned


def data_of(method: Method, spec: str) -> Env:
    """What a task's name stands for, for this method: pairs, written answers, or questions."""
    kind = method.rollout.card.data

    def env(context: Context) -> Any:
        if kind == "pairs":
            return asked_pairs(context, spec)
        found = named_task(context, spec) if spec else asked_task(context)
        return Worked(found, size_of(found, "train") or ENDLESS) if kind == "demonstrations" else found

    return env


def looked(context: Context, method: Method, envs: list[Env], paid: Callable[[Context], Any]) -> list[float]:
    """The held-out score of each task that has one."""
    policy, c = context.role("policy"), context.config
    found = [measure(policy, c, method, env(context), paid(context)) for env in envs]
    return [score.accuracy for score in found if score.problems]


def transfer(table: list[list[float]]) -> dict[str, float]:
    """table[i][j]: the score on task j after task i. overall: the mean over tasks after the last; backward_transfer: what became of earlier tasks.

    overall = mean_j R[T][j];  backward_transfer = mean_{j < T} R[T][j] - R[j][j]  (below 0: forgotten)
    """
    last, n = table[-1], len(table)
    out = {"overall": fmean(last)}
    return out | ({"backward_transfer": fmean(last[j] - table[j][j] for j in range(n - 1))} if n > 1 else {})


# ---- the plan


@plan(paper="arXiv:2404.18466", title="HFT", uses=("task", "reward"))
def hft(
    method: str = "sft", tasks: str = "", epochs: float = 1, rounds: int = 1, level: str = "category", embeddings: bool = True
) -> Plan:  # fmt: skip
    """HFT (half fine-tuning): any method, with half of every layer's matrices free to learn and the others exactly as they were; drawn anew for every task.

    min L(theta)  s.t.  (I - M)(theta - theta_0) = 0;  M: 2 of q, k, v, o; 1 or 2 of gate, up, down in turn from layer to layer;
    1 of 2 norms; embeddings, head and last norm learn. Gradients and the optimiser's moments exist for that half alone.
    method: what is minimised: sft, dpo, or another that learns from written answers, pairs or its own samples ("dpo(loss='ipo')").
    tasks: files, one after another: 'a.jsonl,b.jsonl'; empty: --task alone. epochs: passes over each. rounds: how often each is gone
    through so, with a half of its own. level: category is the paper's; layer takes half of the layers whole, model half of all matrices.
    embeddings=False holds everything outside of the layers fixed as well. With several tasks the summary has `held_out`, the score on each
    task after each, `overall` (the mean after the last) and `backward_transfer` (what became of earlier ones; below 0: forgotten).

    Departures: no code was published, and of the paper the abstract and notes on it were read: that embeddings and head learn, the counts
    of each kind and that a half is drawn anew for each task are second-hand; which layers get 2 of the 3 feed-forward matrices is drawn here
    for the first and alternates from then on. Biases and norms of queries and keys go with their matrix. The paper fine-tunes Llama 2 on
    Tulu v2, UltraFeedback and TRACE; its rates and epochs could not be checked. Adapters (--lora) are refused: half of the weights is meant.
    """
    if epochs <= 0 or rounds < 1:
        raise UserError(f"got epochs={epochs}, rounds={rounds}; epochs is above 0, and it takes 1 round at least")
    if level not in LEVELS:
        raise unknown("way to draw a half (level)", level, LEVELS)
    base = find_method(method)
    kind = base.rollout.card.data
    if base.scores or kind not in ("", "demonstrations", "pairs"):
        raise UserError(
            f"hft wraps a method that trains the policy on answers, pairs or its own samples, not {base.name}"
        )
    specs = [word.strip() for word in tasks.split(",") if word.strip()] or [""]
    envs = [data_of(base, spec) for spec in specs]
    paid = written if kind else asked_rewards

    def ready(context: Context) -> None:
        if context.config.lora:
            raise UserError("hft learns half of the weights themselves; leave --lora away")
        for env in envs:
            suits(base, env(context))

    def report(context: Context, at: int) -> None:
        notes = context.notes
        notes["share_learned"] = [*notes.get("share_learned", []), share(context.role("policy"))]
        if len(specs) == 1 or not context.config.eval_problems:
            return
        notes["held_out"] = [*notes.get("held_out", [])[:at], looked(context, base, envs[: at + 1], paid)]
        if all(len(row) == i + 1 for i, row in enumerate(notes["held_out"])):
            notes |= transfer(notes["held_out"])

    parts: list[Any] = []
    for at, env in enumerate(envs):
        for again in range(rounds):
            name, drawn = f"{base.name}-{at + 1}" + (f"-{again + 1}" if rounds > 1 else ""), at * rounds + again
            parts += [
                Make("policy", partial(_drawn, level, embeddings, drawn), f"half-{drawn + 1}"),
                Phase(
                    name, base, epochs_of(env, epochs), env, rewards=paid, measured=True,
                    after=partial(report, at=at) if again == rounds - 1 else None,
                ),
            ]  # fmt: skip
    asked = ("task", "pairs") if kind == "pairs" else ("task",)
    uses = (*(() if tasks else asked), *(() if kind else ("reward",)))
    return Plan((*parts, Make("policy", whole)), ready=ready, uses=uses)


def _drawn(level: str, embeddings: bool, number: int, context: Context) -> Any:
    return halved(context.role("policy"), level, embeddings, context.config.seed, number)
