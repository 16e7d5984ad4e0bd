"""How an answer is sampled: settings only, so that the command line can show them without importing torch."""

from __future__ import annotations

from dataclasses import dataclass

from posttrain.core.errors import UserError
from posttrain.core.typed import check_fields


@dataclass(frozen=True)
class Sampling:
    """How an answer is sampled.

    Log-probabilities are those of the distribution at `temperature` before truncation (top_k, top_p, min_p): the one trained.
    """

    max_tokens: int = 64
    """longest answer, in tokens"""
    temperature: float = 1.0
    """logits are divided by this before sampling; 0 always takes the most likely token"""
    top_k: int = 0
    """sample only from the k most likely tokens; 0: off"""
    top_p: float = 1.0
    """sample only from the most likely tokens whose probabilities sum to this; 1: off"""
    min_p: float = 0.0
    """sample only from tokens at least this fraction as likely as the most likely one; 0: off"""
    stop: str = ""
    """a text that ends an answer (and is its end), such as "</search>"; several with | between them"""
    raw_logp: bool = False
    """record log-probabilities at temperature 1, whatever the sampling temperature"""

    @property
    def stops(self) -> tuple[str, ...]:
        """The texts that end an answer."""
        return tuple(x for x in self.stop.split("|") if x)

    def __post_init__(self) -> None:
        check_fields(self)
        if not 1 <= self.max_tokens <= 10**9:
            raise UserError(f"max_tokens is {self.max_tokens}; an answer needs at least 1")
        if not (self.temperature == 0 or 1e-3 <= self.temperature <= 1e3):
            raise UserError(f"temperature is {self.temperature}; it must be 0 (greedy), or between 0.001 and 1000")
        if not 0 < self.top_p <= 1 or not 0 <= self.min_p < 1 or not 0 <= self.top_k < 2**31:
            raise UserError(
                f"top_p is {self.top_p}, min_p {self.min_p} and top_k {self.top_k}; top_p must be in (0, 1], min_p in [0, 1), "
                "top_k 0 (off) or more"
            )
