"""Seconds of sampling and of training on one device: counts of bytes and FLOPs, times factors that were measured.

The factors were fitted on one H200 (`python -m benchmarks.plan_check --fit`; which rows, and which rows check them, is in
docs/scale.md). Other cards differ by the peaks of their data sheets alone.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from posttrain.planning.hardware import Device
from posttrain.planning.shapes import Shape

ADAM_BYTES = 34  # read and written per parameter and update: fp32 weight, two moments, gradient; the bf16 copy
TP_HOP = 15e-6  # seconds per all-reduce of a decode step under tensor parallel, two per layer


@dataclass(frozen=True)
class Speed:
    """Factors over the peak of a device, and fixed costs in seconds."""

    call: float = 0.0118  # of one call of the engine
    prompt: float = 1.99e-4  # per prompt that is read
    answer: float = 3.51e-5  # per answer that is begun
    prefill: float = 1.168  # times the FLOPs of reading prompts, over the peak
    layer_decode: float = 2.31e-5  # per layer and decode step
    traffic: float = 0.848  # times the bytes of a decode step, over the peak
    decode: float = 0.738  # times the FLOPs of a decode step, over the peak
    refill: int = 130  # decode steps that a slot waits before another answer is in it
    train: float = 1.553  # times the FLOPs of matrices in training, over the peak
    attend: float = 2.655  # times the FLOPs of attention in training, over the peak
    layer_train: float = 2.23e-3  # per layer and forward and backward pass
    host: float = 0.102  # per step: text, grading, batches, records


MEASURED = Speed()


def makespan(lengths: Sequence[int], slots: int, refill: int) -> int:
    """Decode steps until every answer has ended, when a free slot takes the next one after `refill` steps."""
    if len(lengths) <= slots:
        return max(lengths, default=0)
    busy = list(lengths[:slots])
    heapq.heapify(busy)
    for length in lengths[slots:]:
        heapq.heapreplace(busy, busy[0] + refill + length)
    return max(busy)


@dataclass(frozen=True)
class Pace:
    """A model on a device (or on `tp` of them, for rollouts) at some speed."""

    shape: Shape
    device: Device
    speed: Speed = MEASURED
    tp: int = 1

    def sample(self, lengths: Sequence[int], prompts: int, prompt_tokens: int, slots: int) -> float:
        """Seconds of one call of the engine that makes all these answers to so many prompts.

        steps x (layers x launch + weights / traffic) + sum over answers of (FLOPs / peak + keys and values / traffic)
        """
        s, v = self.shape, self.speed
        flops, traffic = self.device.flops * self.tp, self.device.traffic * self.tp
        steps = makespan(lengths, slots, v.refill)
        tokens = sum(lengths)
        seen = prompt_tokens * tokens + sum(x * x for x in lengths) / 2
        each = (
            s.layers * (v.layer_decode + (2 * TP_HOP if self.tp > 1 else 0.0)) + v.traffic * 2 * s.multiplied / traffic
        )
        answers = v.decode * 2 * s.multiplied * tokens / flops + v.traffic * s.position_bytes() * seen / traffic
        fixed = v.call + v.prompt * prompts + v.answer * len(lengths)
        return fixed + self.read(prompts, prompt_tokens) + steps * each + answers

    def read(self, prompts: int, prompt_tokens: int) -> float:
        """Seconds of the FLOPs of reading prompts."""
        s, v = self.shape, self.speed
        matrices, attention = 2 * s.multiplied * prompt_tokens, 2 * s.layers * s.wide * prompt_tokens**2
        return prompts * (v.prefill * matrices + v.attend * attention) / (self.device.flops * self.tp)

    def update(
        self, tokens: float, pairs: float, passes: int = 1, recomputed: float = 0.0, frozen: bool = False
    ) -> float:
        """Seconds of forward and backward passes over so many tokens that attend to `pairs` earlier ones in all.

        recomputed: share of the layers that run forward twice; frozen: weights that need no gradient (LoRA)
        """
        s, v = self.shape, self.speed
        share = (2 / 3 if frozen else 1.0) + recomputed / 3
        matrices = 6 * s.multiplied * tokens * share
        attention = 12 * s.layers * s.wide * pairs * (1 + recomputed / 3)
        return (v.train * matrices + v.attend * attention) / self.device.flops + passes * s.layers * v.layer_train

    def forward(self, tokens: float, pairs: float, passes: int = 1) -> float:
        """Seconds of forward passes alone: references, values."""
        return (self.update(tokens, pairs, 0) + passes * self.shape.layers * self.speed.layer_train) / 3

    def step(self, trained: float) -> float:
        """Seconds of the optimiser on so many parameters."""
        return ADAM_BYTES * trained / self.device.traffic
