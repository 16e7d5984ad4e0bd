"""What was sampled after the beginning of a turn, and who is told of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from posttrain.core.turn import Turn
from posttrain.models.sampling import Sample


def among(
    heard: Callable[[int, int, Tensor], None], places: Sequence[int], group: int, index: int, tokens: Tensor
) -> None:
    """The same for contexts that stand at these places."""
    heard(places[group], index, tokens)


def grown(begun: Turn, s: Sample, actions: Tensor, text: str, version: int) -> Turn:
    """The turn with what was sampled after what it had."""
    new = Turn.of(begun.observation, s.tokens, s.logp_T, begun.observation.lead + text, version)
    if len(begun):
        new.logp_T = torch.cat([begun.logp_T, s.logp_T])
        new.mask_T = torch.cat([begun.mask_T, new.mask_T])
        new.version_T = torch.cat([begun.version_T, new.version_T])
    new.actions, new.continues, new.stopped = actions, begun.continues, s.stopped
    return new
