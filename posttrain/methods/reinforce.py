"""REINFORCE: make answers likelier in proportion to what they earned; no baseline, no clipping, one update per sample.
Williams 1992, doi:10.1007/BF00992696

Departures: the article allows a baseline, and follows the plain gradient after each trial; here there is none
(`--advantage "baseline(c=0.5)"`), 8 answers to each of 16 prompts make an update, and AdamW takes it.
"""

from posttrain.advantages.outcome import outcome
from posttrain.core.method import method
from posttrain.losses.aggregate import sequence_sum
from posttrain.losses.policy.reinforce import reinforce as score_function
from posttrain.methods.grpo import grpo

reinforce = method(
    grpo.but(
        name="reinforce", title="REINFORCE", paper="", doc=__doc__,
        advantage=outcome, loss=score_function, aggregate=sequence_sum, terms=(),
    )
)  # fmt: skip
