from __future__ import annotations

from torch import Tensor

from posttrain.advantages.whiten import group_whiten
from posttrain.core.batch import Batch
from posttrain.core.credit import on_last
from posttrain.core.registry import shaping


@shaping(title="Input-specific z-score", paper="arXiv:2205.12548", system="rlprompt")
def zscore(batch: Batch, scale: float = 1.0, eps: float = 1e-4) -> Tensor:
    """Input-specific z-score (RLPrompt): rewards in standard deviations of those of the same input, so none outshouts others.

    R = scale (R - mean_group R) / (std_group R + eps);  a group is what was tried for one input, equals get 0
    scale is the inverse temperature of methods whose optimum is softmax(R), as soft Q-learning's is.
    """
    return on_last(scale * group_whiten(batch.returns_B, batch["group_B"], batch.valid_B, eps), batch)
