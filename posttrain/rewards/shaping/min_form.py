from __future__ import annotations

import torch
from torch import Tensor

from posttrain.core.batch import Batch
from posttrain.core.credit import component, on_last
from posttrain.core.errors import UserError
from posttrain.core.registry import shaping


@shaping(title="Min-form credit (PURE)", paper="arXiv:2504.15275", system="pure")
def min_form(batch: Batch, temperature: float = 0.1, outcome: str = "") -> Tensor:
    """Min-form credit (PURE): a chain is worth its worst step, so that steps of filler add nothing.

    r*_i = r_i exp(-r_i / T) / sum_j exp(-r_j / T), over the answer's steps;  sum_i r*_i -> min_i r_i as T -> 0
    Steps are the tokens that earned something (not 0). outcome names a component of the reward that is no step, the check
    of the final answer, say: it stays as it is, on the last token.
    """
    if temperature <= 0:
        raise UserError(f"temperature is {temperature}; it is more than 0, and the smaller, the nearer to the minimum")
    reward_BT = batch["reward_BT"]
    apart_BT = torch.zeros_like(reward_BT)
    if outcome:
        apart_BT = torch.where(batch.valid_B.unsqueeze(-1), on_last(component(batch, outcome), batch), 0.0)
    step_BT = reward_BT - apart_BT
    earned_BT = step_BT.abs() > 1e-7
    weight_BT = torch.softmax(torch.where(earned_BT, -step_BT / temperature, -1e30), -1)
    return torch.where(earned_BT, weight_BT * step_BT, 0.0) + apart_BT
