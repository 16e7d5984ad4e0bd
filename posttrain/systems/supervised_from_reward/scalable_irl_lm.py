"""Inverse RL for language models (offline IQ-Learn): imitation whose logits are soft Q values, held consistent from token to token.

L = E_D[ -log pi(a | s) + lambda (Q(s, a) - gamma V(s'))^2 ];  Q: the logits, V = log sum exp Q, log pi = Q - V, V = 0 after the end
Inverse soft Q-learning with a chi-square regulariser is maximum likelihood plus this squared temporal difference: r = Q - gamma V' is the reward that
the policy would be optimal for, and it is kept small. lambda = 0 is SFT, bit for bit. The term costs no further pass: the policy's forward pass gives V
beside the log-probability. `--terms "td(coef=0.01)"` sets lambda, `td(gamma=0.99)` the discount, `td(semi=True)` lets no gradient flow into V(s').

Departures: the objective is the paper's equation for fixed data (read in a summary of the paper, whose code was not released); its values of lambda and gamma could not be checked, they are 0.001
and 1 here (0.1 broke the embedded model within 40 updates, since V must fall to 0 at the end of every answer), and gradients flow through both values, as in IQ-Learn. The online variant, which adds the policy's own samples to the values, GAIL, and the use of
the extracted reward in later training are not here. The end of an assistant's turn counts as the end of the episode. Steps and rate are `sft`'s.
"""

from __future__ import annotations

import torch
from torch import Tensor

from posttrain.core.batch import Batch
from posttrain.core.method import method
from posttrain.core.registry import term
from posttrain.methods.sft import sft

PAPER = "arXiv:2409.01369"


@term(name="td", title="Temporal difference (IQ-Learn)", paper=PAPER, system="scalable-irl-lm", reads=("logz_BT",))
def temporal_difference(batch: Batch, coef: float = 0.001, gamma: float = 1.0, semi: bool = False) -> Tensor:
    """Temporal difference (IQ-Learn): the logit of a token is to be the log-sum-exp of the logits that follow it, and 0 after the last.

    L_t = coef (log pi_t + V_t - gamma V_{t+1})^2;  V_t: the log-sum-exp before token t, 0 where no own token follows
    semi: V_{t+1} is a constant.
    """
    own_BT = batch.mask_BT > 0
    value_BT = torch.where(own_BT, batch["logz_BT"], 0.0)
    after_BT = torch.cat((value_BT[:, 1:], torch.zeros_like(value_BT[:, :1])), 1)
    after_BT = after_BT.detach() if semi else after_BT
    return coef * (torch.where(own_BT, batch.logp_BT, 0.0) + value_BT - gamma * after_BT) ** 2


scalable_irl_lm = method(
    sft.but(
        name="scalable-irl-lm", title="Scalable IRL (IQ-Learn)", paper=PAPER, doc=__doc__, terms=(temporal_difference,)
    )
)
