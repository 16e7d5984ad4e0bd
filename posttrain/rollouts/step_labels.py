"""Steps of answers with what they are worth, estimated by finishing them: what a process reward model learns from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from posttrain.core import rng
from posttrain.core.credit import split_steps, token_ends
from posttrain.core.errors import UserError
from posttrain.core.protocols import Policy, RolloutRequest, Scorer
from posttrain.core.registry import rollout
from posttrain.core.sampling import Sampling
from posttrain.core.turn import Observation
from posttrain.core.types import Group, Origin, Prompt, Rollout
from posttrain.rollouts.resume import cut, resume, room
from posttrain.select.valid import reward_of


@rollout(title="Labelled steps (Math-Shepherd)", paper="arXiv:2312.08935", data="steps")
def step_labels(ask: RolloutRequest) -> list[Group]:
    """Labelled steps (Math-Shepherd): answers up to the end of a step; what the step is worth is the reward.

    Rows have `completions` (the steps of an answer) and `labels` (what each is worth, 0 to 1); or `steps`, as `label_steps`
    leaves them: each `{"tokens": [...], "worth": ...}`, an answer so far.
    """
    groups = []
    for p in ask.prompts:
        if not (told := labelled(p)):
            raise UserError(f"prompt {p.id!r} has no labelled steps: completions with labels, or steps")
        context = ask.policy.observe(p)
        tokens = [s["tokens"] if "tokens" in s else _ids(ask.policy, p, s["text"]) for s in told]
        made = [_prefix(p, context, t, float(s["worth"]), i) for i, (t, s) in enumerate(zip(tokens, told, strict=True))]
        groups.append(Group(p, made))
    return groups


def labelled(p: Prompt) -> list[dict[str, Any]]:
    """The labelled steps of a row, each an answer so far with what it is worth; none where it has none."""
    steps, texts, labels = (p.info.get(k) for k in ("steps", "completions", "labels"))
    if isinstance(steps, (list, tuple)):
        return [s for s in steps if isinstance(s, dict) and "worth" in s]
    if not isinstance(texts, (list, tuple)) or not isinstance(labels, (list, tuple)):
        return []
    if len(texts) != len(labels):
        raise UserError(f"prompt {p.id!r} has {len(texts)} completions and {len(labels)} labels; each step has one")
    so_far = ["\n".join(map(str, texts[: k + 1])) for k in range(len(texts))]
    return [{"text": text, "worth": float(x)} for text, x in zip(so_far, labels, strict=True)]


def _ids(policy: Policy, prompt: Prompt, text: str) -> list[int]:
    """The tokens of an answer so far: as it is written, without its end."""
    ids: list[int] = policy.written(prompt, text).actions[:-1].tolist()
    return ids


def _prefix(prompt: Prompt, context: Observation, tokens: list[int], worth: float, index: int) -> Rollout:
    T = len(tokens)
    own = torch.ones(T, dtype=torch.bool)
    return Rollout.single(
        prompt, context, torch.tensor(tokens), torch.zeros(T), own, reward=worth, index=index, origin=Origin.WRITTEN
    )


def step_ends(policy: Policy, r: Rollout, level: str) -> list[int]:
    """How many actions an answer has at the end of each of its steps; the last is all of them."""
    ends = token_ends(policy.decode, r.actions, r.turns[-1].observation.lead)
    places = [next((t + 1 for t, e in enumerate(ends) if e >= end), len(r)) for _, end in split_steps(r.text, level)]
    return sorted({*places[:-1], len(r)}) if len(r) else []


def label_steps(
    policy: Policy, prompts: Sequence[Prompt], scorer: Scorer, how: Sampling, shape: tuple[int, int] = (4, 4),
    level: str = "sentence", seed: int = 0,
) -> list[Prompt]:  # fmt: skip
    """Prompts with labelled steps: shape = (answers per prompt, continuations from the end of each step).

    worth of a step = mean reward of the continuations; of the last one, the answer's own reward. A step without a
    continuation that could be scored is left out, and so is a prompt without steps.
    """
    n, k = shape
    made = [r for group in policy.sample(prompts, n, how, seed, 0) for r in group]
    places = [(r, at) for r in made for at in step_ends(policy, r, level)]
    inner = [(r, at) for r, at in places if at < len(r)]
    stems = [cut(policy, r, at) for r, at in inner]
    keys = [[rng.key(seed, "step", r.prompt.id, r.index, at, j) for j in range(k)] for r, at in inner]
    stems, keys, inner = _with_room(policy, how, stems, keys, inner)
    tried = resume(policy, stems, keys, how, 0)
    scorer.score([Group(r.prompt, rs) for (r, _), rs in zip(inner, tried, strict=True)])
    scorer.score([Group(r.prompt, [r]) for r in made])
    found = [(r, at, [reward_of(x) for x in rs if not x.failed]) for (r, at), rs in zip(inner, tried, strict=True)]
    found += [(r, len(r), [reward_of(r)]) for r in made if len(r) and not r.failed]
    steps: dict[str, list[dict[str, Any]]] = {}
    for r, at, worths in found:
        if worths:
            label = {"tokens": r.actions[:at].tolist(), "worth": sum(worths) / len(worths)}
            steps.setdefault(r.prompt.id, []).append(label)
    return [Prompt(p.id, p.content, p.answer, p.info | {"steps": steps[p.id]}) for p in prompts if p.id in steps]


def _with_room(
    policy: Policy, how: Sampling, stems: list[Rollout], keys: list[Any], inner: list[Any]
) -> tuple[Any, ...]:
    """Only the states from which an answer may go on."""
    some = [i for i, s in enumerate(stems) if room(policy, s, how)]
    return [stems[i] for i in some], [keys[i] for i in some], [inner[i] for i in some]
