from __future__ import annotations

import torch
from torch import Tensor

from posttrain.advantages.group import group_std, spread
from posttrain.advantages.whiten import group_centre
from posttrain.core.batch import Batch
from posttrain.core.registry import advantage


@advantage(
    title="Task-specific advantage", paper="arXiv:2512.12967", base="lite_ppo", system="qwenlong-l15",
    laws=("shift_invariant", "scale_invariant", "sums_to_zero"),
)  # fmt: skip
def task_std(batch: Batch, eps: float = 1e-4) -> Tensor:
    """Task-specific advantage (QwenLong-L1.5): compare with siblings, measure in the spread of the task's rewards.

    A_i = (R_i - mean_group R) / (std_task R + eps);  std: unbiased, over the live answers of the same task in the batch
    A task whose rewards are small learns as fast as one whose rewards are large. `Prompt.info["task"]` names the task;
    without names all are one task, which is Lite PPO's credit.
    """
    group_B, valid_B = batch["group_B"], batch.valid_B
    task_B = batch["task_B"] if "task_B" in batch else torch.zeros_like(group_B)
    credit_B = group_centre(batch.returns_B, group_B, valid_B)
    return spread(credit_B / (group_std(batch.returns_B, task_B, valid_B) + eps), batch)
