"""How an answer is drawn: settings only, so that the command line can show them without importing torch."""

from __future__ import annotations

from dataclasses import dataclass

from posttrain.core.errors import UserError


@dataclass(frozen=True)
class Sampling:
    """How an answer is drawn. Log-probabilities are of the tempered, untruncated distribution, which is the one trained."""

    max_tokens: int = 64  # the longest answer
    temperature: float = 1.0  # 0 takes the likeliest token
    top_k: int = 0  # only the k likeliest tokens; 0: off
    top_p: float = 1.0  # only the likeliest tokens of this total probability
    min_p: float = 0.0  # only tokens at least this likely beside the likeliest
    raw_logp: bool = False  # log-probabilities at temperature 1 instead, whatever the temperature

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise UserError(f"max_tokens is {self.max_tokens}; an answer needs at least 1")
        if self.temperature < 0:
            raise UserError(f"temperature is {self.temperature}; it must be 0 (greedy) or more")
        if not 0 < self.top_p <= 1 or not 0 <= self.min_p < 1 or self.top_k < 0:
            raise UserError("top_p must be in (0, 1], min_p in [0, 1), top_k 0 (off) or more")
