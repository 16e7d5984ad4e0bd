"""A turn: observation, actions and their log-probabilities; turns of one context are joined into a row."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Observation:
    """All that a policy is conditioned on: token ids, and whatever else it perceives.

    The first dimension of a stream counts moments or pictures, so observations of one context are joined end to end.
    """

    tokens: Tensor  # (S,) ids; empty where the policy reads none (control)
    streams: Mapping[str, Tensor] = field(default_factory=dict)  # pixels, sound, joint angles, noise
    lead: str = ""  # how the policy's own answer begins where that was written for it: a thought that the template opens, a prefill

    @cached_property
    def key(self) -> bytes:
        """Identifies the whole observation; prefix sharing compares it, in the trainer and in the engine."""
        tokens = self.tokens.cpu().numpy().tobytes()
        if not self.streams:
            return tokens
        digest = hashlib.blake2b(tokens)
        for name, x in sorted(self.streams.items()):
            digest.update(f"|{name}{tuple(x.shape)}{x.dtype}".encode())
            digest.update(x.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
        return digest.digest()


@dataclass
class Turn:
    """One contiguous decision of one role, as it was sampled (never re-tokenised), and streams computed for it since.

    With `continues` it goes on in the context of the turn before it: its observation holds only what was added since that
    turn's last action. Without, its observation is the whole context, and it is a row of its own in training.
    """

    observation: Observation
    actions: Tensor  # (T, ...) token ids, denoising steps or controls
    logp_T: Tensor  # log-probability of each action under the weights that sampled it
    mask_T: Tensor  # bool: True where the policy itself chose the action
    version_T: Tensor  # the weights that sampled each action, as the number of updates published by then
    text: str = ""  # of the whole answer: `observation.lead` and what the actions say
    reward: float | None = None  # earned at this turn
    streams_T: dict[str, Tensor] = field(
        default_factory=dict
    )  # reward, adv, value ... of each action, as they become known
    continues: bool = False
    stopped: bool = True  # False when it ran into the length limit

    @staticmethod
    def empty(observation: Observation, continues: bool = False) -> Turn:
        """A turn without actions, for `Policy.act` to continue."""
        none = torch.zeros(0)
        return Turn(observation, none.long(), none, none.bool(), none.long(), continues=continues, stopped=False)

    @staticmethod
    def of(observation: Observation, actions: Tensor, logp_T: Tensor, text: str = "", version: int = 0) -> Turn:
        """A turn whose every action the policy chose, with one version of the weights."""
        T = len(actions)
        own_T = torch.ones(T, dtype=torch.bool)
        return Turn(observation, actions, logp_T, own_T, _number(version).expand(T), text)

    def __len__(self) -> int:
        return int(self.actions.shape[0])

    @property
    def row(self) -> Turn:
        """As a row of a batch: itself. A rollout has one too, so both can be given to `Policy.forward`."""
        return self

    @property
    def context(self) -> Tensor:
        return self.observation.tokens


@lru_cache(maxsize=64)
def _number(version: int) -> Tensor:
    """A version as a tensor, made once for all turns that have it."""
    return torch.tensor(version)


def join(turns: Sequence[Turn]) -> Turn:
    """Turns of one context as one row: what was observed in between is among the actions, outside the mask.

    `streams_T["turn"]` says which turn an action belongs to, where there are several.
    """
    if len(turns) == 1:
        return turns[0]
    first, between = turns[0], [t.observation.tokens for t in turns[1:]]
    pieces: dict[str, list[Tensor]] = {k: [getattr(first, k)] for k in ("actions", "logp_T", "mask_T", "version_T")}
    for seen, t in zip(between, turns[1:], strict=True):
        n = len(seen)
        added = (seen.to(t.actions.dtype), torch.zeros(n), torch.zeros(n, dtype=torch.bool), torch.zeros(n).long())
        for (name, parts), x in zip(pieces.items(), added, strict=True):
            parts += [x, getattr(t, name)] if n else [getattr(t, name)]
    names = {k for t in turns for k in t.observation.streams}
    streams = {k: torch.cat([t.observation.streams[k] for t in turns if k in t.observation.streams]) for k in names}
    gaps = [0, *map(len, between)]
    parts_T = {
        "turn": torch.cat([torch.full((n + len(t),), k) for k, (n, t) in enumerate(zip(gaps, turns, strict=True))])
    }
    for name in {k for t in turns for k in t.streams_T}:
        padded = [
            (torch.zeros(n), t.streams_T.get(name, torch.zeros(len(t)))) for n, t in zip(gaps, turns, strict=True)
        ]
        parts_T[name] = torch.cat([x for pair in padded for x in pair])
    actions, logp_T, mask_T, version_T = (torch.cat(v) for v in pieces.values())
    seen_all = Observation(first.observation.tokens, streams, first.observation.lead)
    return Turn(
        seen_all, actions, logp_T, mask_T, version_T, text=turns[-1].text, streams_T=parts_T, stopped=turns[-1].stopped
    )
