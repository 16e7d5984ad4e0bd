"""Credit inside an answer: split it into steps, and put the reward of a step on the policy's token that ends it.

The one place where spans become tokens. A span is (start, end) in characters of the answer's text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from posttrain.core.batch import Batch
from posttrain.core.errors import UserError, unknown

Span = tuple[int, int]
# what ends a step of each level; an answer is one step
LEVELS = {
    "word": r"\s+",
    "phrase": r"[,;:.!?\n]+\s*",
    "sentence": r"(?<!\d)[.!?]+\s*|\n+",
    "line": r"\n+",
    "answer": "",
}


def split_steps(text: str, level: str = "sentence") -> list[Span]:
    """The spans of a text's steps, one after another and together all of it; steps of nothing but space are no steps."""
    if level not in LEVELS:
        raise unknown("level of steps", level, LEVELS)
    ends = [m.end() for m in re.finditer(LEVELS[level], text)] if LEVELS[level] else []
    bounds = [0, *[e for e in ends if e < len(text)], len(text)]
    spans: list[Span] = []
    for start, end in zip(bounds, bounds[1:], strict=False):
        if text[start:end].strip():
            spans.append((start, end))
        elif spans:
            spans[-1] = (spans[-1][0], end)
    return spans


def token_ends(decode: Callable[[Tensor], str], actions: Tensor, lead: str = "") -> list[int]:
    """Where each token ends in the text; prefixes are decoded, since a token alone may be half a character.

    lead: what the text begins with before the first action (`Observation.lead`)."""
    return [len(lead) + len(decode(actions[: t + 1])) for t in range(len(actions))]


def spans_to_tokens(spans: Sequence[Span], worths: Sequence[float], ends: Sequence[int], mask_T: Tensor) -> Tensor:
    """reward_T: the reward of each span on the token that ends it; spans that end together are summed.

    r_t = sum_j worth_j [t = end of span j]. A token that the policy did not choose passes its worth to the last one
    before it that it did (else to the first after it).
    """
    if len(spans) != len(worths):
        raise UserError(f"{len(spans)} spans have {len(worths)} worths; each span needs one")
    own = mask_T.nonzero().squeeze(-1).tolist()
    reward_T = torch.zeros(len(ends))
    for (_, end), worth in zip(spans, worths, strict=True):
        at = next((t for t, e in enumerate(ends) if e >= end), len(ends) - 1)
        mine = max((t for t in own if t <= at), default=own[0] if own else -1)
        if mine >= 0:
            reward_T[mine] += worth
    return reward_T


def on_last(reward_B: Tensor, batch: Batch) -> Tensor:
    """One reward per answer, on the last token that the policy chose; rows that are not valid keep what they had."""
    T = batch.mask_BT.shape[1]
    place_BT = torch.where(batch.mask_BT > 0, torch.arange(T, device=batch.mask_BT.device), -1)
    last_BT = place_BT == place_BT.amax(-1, keepdim=True)
    reward_BT = torch.where(last_BT, reward_B.to(batch.mask_BT).unsqueeze(-1), 0.0)
    return torch.where(batch.valid_B.unsqueeze(-1), reward_BT, batch["reward_BT"])


def component(batch: Batch, name: str) -> Tensor:
    """What answers earned by one component (B,); `reward` is all of it. Says which there are if it is not among them."""
    if name == "reward":
        return batch.returns_B
    known = [k.removeprefix("reward:").removesuffix("_B") for k in batch if k.startswith("reward:")]
    if name not in known:
        raise unknown("component of the reward", name, [*known, "reward"])
    found: Tensor = batch[f"reward:{name}_B"].to(batch.mask_BT)
    return found


def members(batch: Batch, prefix: str = "") -> Tensor:
    """Every component whose name begins so, in order of name (K, B); all of the reward where there is none."""
    names = sorted(k for k in batch if k.startswith(f"reward:{prefix}"))
    if not names:
        return batch.returns_B.unsqueeze(0)
    return torch.stack([batch[k].to(batch.mask_BT) for k in names])
