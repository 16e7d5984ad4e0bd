"""DFT: supervised fine-tuning in which each token counts as much as it is already likely, so that rare tokens cannot tear at the policy.

Departures: the authors train on 100,000 rows of NuminaMath for one epoch at 5e-5 with a cosine and 256 rows per step; here 40 steps of 16
prompts and a rate by the size (`--steps`, `--prompts 256`, `--lr 5e-5 --schedule cosine`). They say it is for tasks with one clear answer,
mathematics and code, and report that elsewhere it may do worse than SFT. The formula, the stopped gradient of the weight and the mean over all tokens are theirs.
"""

from __future__ import annotations

from torch import Tensor

from posttrain.core.batch import Batch
from posttrain.core.method import method
from posttrain.core.registry import supervised_loss
from posttrain.methods.sft import sft


@supervised_loss(name="dft", title="DFT", paper="arXiv:2508.05629", base="sft")
def weighed_by_probability(batch: Batch) -> Tensor:
    """DFT: maximum likelihood weighed by the probability of the token itself, which has no gradient.

    L = -sg(pi) log pi
    """
    return -batch.logp_BT.detach().exp() * batch.logp_BT


dft = method(sft.but(name="dft", title="DFT", paper="arXiv:2508.05629", doc=__doc__, loss=weighed_by_probability))
