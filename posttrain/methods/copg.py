"""CoPG: two answers a prompt, fitted so that their log-ratios to the reference differ as their rewards do; old ones too.

Fully offline with `--rollout "logged(n=2, logp=False)" --task log.jsonl`: nobody needs to know how likely the logged answers were.
"""

from posttrain.core.method import method
from posttrain.losses.preference.copg import copg as contrastive
from posttrain.methods.dpo import dpo
from posttrain.rollouts.sample import sample
from posttrain.select.in_twos import in_twos

copg = method(
    dpo.but(
        name="copg", title="CoPG", paper="arXiv:2406.19185", doc=__doc__,
        rollout=sample.but(n=2), select=(in_twos,), loss=contrastive, epochs=2, minibatches=2,
    ),
    __file__,
)  # fmt: skip
