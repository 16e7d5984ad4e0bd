"""SuperHF: RAFT held near the start by a KL prior: imitate the best of 16 fresh answers, pay for leaving the start anywhere.

Departures: the KL is averaged over all tokens as the imitation is; the authors' code averages it over the tokens of each answer and adds the answers of
a minibatch up (for their 2 prompts `--terms "forward_kl(per='answer', coef=0.7)"`), and takes it one token later: at an answer's tokens, where the
next one is predicted, so behind the last and not before the first. They train LoRA of rank 4 (`--lora 4`) at 2e-5 with a cosine and 32
warm-up steps, sample 64 tokens with top-p 0.95 (`--sampling.top-p 0.95`), and take 2 prompts per step (`--prompts 2`); here all weights, no top-p and 16. A
reward model must be given (`--reward runs/NAME`, or a folder); without one the task's own grade chooses. Best of 16, 0.35, the direction KL(start ||
policy) and its sum over the whole vocabulary are theirs (for LLaMA they have the best of 32 to one prompt, 0.23 and 3e-5); they clamp the
mean of each answer at 0, below which an exact sum never falls. Their penalty 1 / loss against low entropy, 0 by default, is not here.
"""

from __future__ import annotations

from torch import Tensor

from posttrain.core.batch import Batch
from posttrain.core.method import method
from posttrain.core.registry import term
from posttrain.models.divergence import STREAMS, divergence_of
from posttrain.rollouts.sample import sample
from posttrain.systems.supervised_from_reward.raft import raft


@term(title="Forward KL (SuperHF)", paper="arXiv:2310.16763", base="kl", reads=STREAMS)
def forward_kl(batch: Batch, coef: float = 0.35, per: str = "") -> Tensor:
    """Forward KL (SuperHF): stay near the reference in every token that could have come, not only in those that did.

    L_t = coef sum_v ref(v | s_t) (log ref(v | s_t) - log pi(v | s_t));  exact, for answers of anybody's
    per: token or answer, what is averaged first; "": as the loss is
    Both distributions are made in chunks of actions, in the update and again in its gradient; none is kept.
    """
    return coef * divergence_of(batch, beta=0.0)


superhf = method(
    raft.but(
        name="superhf", title="SuperHF", paper="arXiv:2310.16763", doc=__doc__,
        rollout=sample.but(n=16), terms=(forward_kl,), epochs=1, minibatches=1,
    )
)  # fmt: skip
