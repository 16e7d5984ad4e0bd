"""Go on from where an answer stands: the ground of trees, of resets to demonstrations, of Monte Carlo values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from posttrain.core.types import Prompt, Rollout
from posttrain.inference.sampling import Sample, Sampling, generate
from posttrain.rollouts.stepwise import extend


def stem(policy: Any, prompt: Prompt) -> Rollout:
    """An answer that has not begun."""
    none = torch.zeros(0)
    return Rollout(prompt, policy.encode(prompt), none.long(), none, none.bool(), stopped=False)


def cut(policy: Any, rollout: Rollout, at: int) -> Rollout:
    """The first `at` actions of an answer, to go on from."""
    actions, logp_T, mask_T = rollout.actions[:at], rollout.logp_T[:at], rollout.mask_T[:at]
    return replace(
        rollout, actions=actions, logp_T=logp_T, mask_T=mask_T, text=policy.decode(actions), stopped=False,
        reward=None, rewards={}, reward_T=None, info={},
    )  # fmt: skip


def room(policy: Any, rollout: Rollout, how: Sampling) -> int:
    """How many more actions an answer may have: 0 once it has stopped or is as long as allowed."""
    longest = min(how.max_tokens, getattr(policy, "T", how.max_tokens))
    return 0 if rollout.stopped else max(longest - len(rollout), 0)


def resume(
    policy: Any, stems: Sequence[Rollout], keys: Sequence[Sequence[int]], how: Sampling, step: int, more: int | None = None
) -> list[list[Rollout]]:  # fmt: skip
    """Each stem continued once a key (its random identity), until it ends, is how.max_tokens long in all, or has `more`
    further actions. Continuations are whole answers: the stem's actions, log-probabilities and mask come first."""
    out: list[list[Rollout]] = [[s for _ in k] for s, k in zip(stems, keys, strict=True)]
    sizes = sorted({(len(s), room(policy, s, how)) for s in stems})
    for length, left in sizes:
        if left == 0:
            continue
        which = [i for i, s in enumerate(stems) if (len(s), room(policy, s, how)) == (length, left)]
        some = replace(how, max_tokens=left if more is None else min(more, left))
        made = _extend(policy, [stems[i] for i in which], [keys[i] for i in which], some)
        for i, samples in zip(which, made, strict=True):
            out[i] = [_grown(policy, stems[i], s, step) for s in samples]
    return out


def _extend(policy: Any, stems: list[Rollout], keys: list[Sequence[int]], how: Sampling) -> list[list[Sample]]:
    """A language model reads prompt and prefix once for all their continuations; a table has no prefix to read."""
    if not hasattr(policy, "tokenizer"):
        return extend(policy, stems, keys, how)
    was = policy.training
    policy.eval()
    contexts = [torch.cat([s.context, s.actions]) for s in stems]
    engine = policy._engine()
    if engine is not None:
        made = engine.generate(contexts, [list(k) for k in keys], how, policy.stop_ids)
    else:
        made = generate(policy.model, contexts, keys, how, policy.stop_ids, policy.device)
    policy.train(was)
    return made


def _grown(policy: Any, begun: Rollout, s: Sample, step: int) -> Rollout:
    actions, logp_T = torch.cat([begun.actions, s.tokens]), torch.cat([begun.logp_T, s.logp_T])
    mask_T = torch.cat([begun.mask_T, torch.ones(len(s.tokens), dtype=torch.bool)])
    return replace(
        begun, actions=actions, logp_T=logp_T, mask_T=mask_T, text=policy.decode(actions), version=step,
        stopped=s.stopped, info=dict(begun.info),
    )  # fmt: skip
