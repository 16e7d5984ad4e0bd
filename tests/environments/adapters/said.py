"""A turn that says a text, for episodes that read nothing else."""

from __future__ import annotations

import torch

import posttrain as pt


def turn(text: str, stopped: bool = True) -> pt.Turn:
    made = pt.Turn.empty(pt.Observation(torch.zeros(0).long()))
    made.text, made.stopped = text, stopped
    return made


def seen(step: pt.Step) -> str:
    """What follows a turn, as a text; nothing where the episode ended."""
    return "\n".join(m["content"] for m in step.messages) if step.messages else ""  # type: ignore[union-attr]
