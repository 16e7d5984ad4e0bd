from __future__ import annotations

import torch
from torch import Tensor

from posttrain.core.batch import Batch
from posttrain.core.registry import policy_loss


@policy_loss(title="Soft Q-learning", paper="arXiv:2106.07704", reads=("value_BT",), system="rlprompt")
def soft_q(batch: Batch, gamma: float = 1.0) -> Tensor:
    """Soft Q-learning (SQL, path consistency): logits are worths Q, and a path must earn what they promise.

    V = log sum_a exp Q;  A = Q - V = logp;  L_t = the mean of four squares, halved; x' is the target's, without gradient:
      one step    Q_t - r_t - gamma V'_{t+1},  Q'_t - r_t - gamma V_{t+1}
      whole path  G_t - V'_t,  G'_t - V_t;  G_t = sum_{l >= t} gamma^{l - t} (r_l - A_l)
    V is 0 after the last action. value_BT must be V of the very logits (`models/prompt_writer.py`), not a critic's; the
    target is the policy as the step began (old_logp, old_value), in the paper a slow average of it. No credit is read.
    """
    own_BT = batch.mask_BT > 0
    live, target = (batch.logp_BT, batch["value_BT"]), (batch["old_logp_BT"], batch["old_value_BT"])
    target = (target[0].detach(), target[1].detach())
    reward_BT = torch.nan_to_num(batch["reward_BT"])
    here = [follow(own_BT, reward_BT, A_BT, V_BT, gamma) for A_BT, V_BT in (live, target)]
    (path_BT, next_BT), (path_target_BT, next_target_BT) = here
    gaps = (
        live[0] + live[1] - next_target_BT,
        target[0] + target[1] - next_BT,
        path_BT - target[1],
        path_target_BT - live[1],
    )
    return torch.where(own_BT, sum(gap_BT**2 for gap_BT in gaps) / 8, 0.0)


def follow(own_BT: Tensor, reward_BT: Tensor, A_BT: Tensor, V_BT: Tensor, gamma: float) -> tuple[Tensor, Tensor]:
    """From each action on: what the path earns less what it promised (G), and the next state's promise (r + gamma V).

    What falls on tokens that the policy did not choose belongs to its action before them.
    """
    zero_B = torch.zeros_like(A_BT[:, 0])
    gained_B, path_B, value_B = zero_B, zero_B, zero_B
    paths, promises = [], []
    for t in reversed(range(own_BT.shape[1])):
        own_B, gained_B = own_BT[:, t], gained_B + reward_BT[:, t]
        promises.append(gained_B + gamma * value_B)
        path_B = torch.where(own_B, gained_B - A_BT[:, t] + gamma * path_B, path_B)
        paths.append(path_B)
        value_B = torch.where(own_B, V_BT[:, t], value_B)
        gained_B = torch.where(own_B, 0.0, gained_B)
    return torch.stack(paths[::-1], 1), torch.stack(promises[::-1], 1)
