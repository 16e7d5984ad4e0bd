"""What a step of the planned run does."""

from __future__ import annotations

from dataclasses import dataclass

from posttrain.planning.lengths import Lengths
from posttrain.planning.shapes import Shape


@dataclass(frozen=True)
class Work:
    """One step: prompts, answers, passes over them, and the networks that are there besides the policy."""

    prompts: int
    n: int  # answers per prompt
    lengths: Lengths
    prompt_tokens: int = 128
    micro_tokens: int = 16384  # answer tokens per cell: one forward and backward pass
    updates: int = 1  # passes over the answers
    reference: bool = True
    critic: str = ""  # "own": a network of the policy's size; "shared": a head on it
    lora: int = 0
    reward_shape: Shape | None = None  # of a reward model on the cards that sample
    reward_s: float = 0.0  # seconds of one process per answer, for rewards that take long
    save_every: int = 10
    divided: int = 1  # cards that share the tokens of a cell: --context-parallel

    @property
    def answers(self) -> int:
        return self.prompts * self.n

    @property
    def trunks(self) -> int:
        """Networks that a training pass goes through and back."""
        return 2 if self.critic == "own" else 1

    @property
    def cell(self) -> int:
        """Tokens of the largest cell: micro_tokens, or one answer that is longer, and the prompts of those."""
        actions = max(self.micro_tokens, self.lengths.most)
        return actions + -(-actions // (self.lengths.most * self.n)) * self.prompt_tokens
