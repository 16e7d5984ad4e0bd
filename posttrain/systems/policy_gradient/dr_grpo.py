"""Dr. GRPO: GRPO without its two biases: no division by the group's spread, none by the answer's length; and no KL.

Departures: the paper divides by its budget of 3,000 tokens; here by 64, which does not follow
`--sampling.max-tokens`: use `--aggregate "constant(length=3000)"`. AdamW hides that scale except where gradients are
clipped. 8 answers per question and no KL are the paper's.
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
