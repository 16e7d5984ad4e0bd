"""Dr. GRPO: GRPO without its two biases: no division by the group's spread, none by the answer's length; and no KL.

Departures: none known. It divides by the run's `--sampling.max-tokens`, as the paper by its budget of 3,000 tokens. 8
answers per question and no KL are the paper's; it samples 128 questions per step, here 16 (`--prompts 128`).
"""

from __future__ import annotations

from posttrain.advantages.dr_grpo import dr_grpo as centred
from posttrain.core.method import method
from posttrain.losses.aggregate import constant
from posttrain.methods.grpo import grpo

dr_grpo = method(
    grpo.but(
        name="dr-grpo", title="Dr. GRPO", paper="arXiv:2503.20783", doc=__doc__,
        advantage=centred, aggregate=constant, terms=(),
    )
)  # fmt: skip
