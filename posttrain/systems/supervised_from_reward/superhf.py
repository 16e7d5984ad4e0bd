"""SuperHF: RAFT held near the start by a KL prior: imitate the best of 16 fresh answers, pay for leaving the start anywhere.

Departures: the KL is averaged over tokens as the imitation is; the authors' code adds it up over the answers of a
minibatch, of which they have 2. They train LoRA of rank 4 (`--lora 4`) at 2e-5 with a cosine and 32 warm-up steps, sample
with top-p 0.95 (`--sampling.top-p 0.95`), and take 2 prompts per step (`--prompts 2`); here all weights, no top-p and 16.
A reward model must be given (`--reward runs/NAME`, or a folder); without one the task's own grade chooses. Best of 16,
0.35, the direction KL(start || policy), its sum over the whole vocabulary and the clamp at 0 are theirs (for LLaMA they have the best of
32 to one prompt, 0.23 and 3e-5); they clamp the mean of each answer, here each token, where the exact sum is never below 0 anyway.
"""

from __future__ import annotations

from torch import Tensor

from posttrain.core.batch import Batch
from posttrain.core.method import method
from posttrain.core.registry import term
from posttrain.rollouts.sample import sample
from posttrain.systems.supervised_from_reward.raft import raft


@term(title="Forward KL (SuperHF)", paper="arXiv:2310.16763", base="kl", reads=("dist_BTV", "ref_dist_BTV"))
def forward_kl(batch: Batch, coef: float = 0.35) -> Tensor:
    """Forward KL (SuperHF): stay near the reference in every token that could have come, not only in those that did.

    L_t = coef max(0, sum_v ref(v | s_t) (log ref(v | s_t) - log pi(v | s_t)));  exact, for answers of anybody's
    Both distributions of every action are kept: (answers x tokens x vocabulary) numbers twice.
    """
    ref_BTV = batch["ref_dist_BTV"]
    return coef * (ref_BTV.exp() * (ref_BTV - batch["dist_BTV"])).sum(-1).clamp_min(0)


superhf = method(
    raft.but(
        name="superhf", title="SuperHF", paper="arXiv:2310.16763", doc=__doc__,
        rollout=sample.but(n=16), terms=(forward_kl,), epochs=1, minibatches=1,
    )
)  # fmt: skip
