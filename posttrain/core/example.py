"""A small batch with everything in it, for laws and tests of parts."""

from __future__ import annotations

import torch
from torch import Tensor

from posttrain.core.batch import Batch
from posttrain.core.example_heads import HIDDEN, head_streams

# carry gradient; head_VD does too, and is no stream of rows
LEAVES = (
    "logp_BT", "entropy_BT", "logz_BT", "mixed_logp_BT", "value_BT", "value_after_BT", "value_BTK", "score_B", "scores_BK", "dist_BTV",
    "hidden_BTD",
)  # fmt: skip
STREAMS = (
    "logp_BT", "old_logp_BT", "ref_logp_BT", "adv_BT", "return_BT", "value_BT", "old_value_BT", "entropy_BT",
    "value_after_BT", "old_value_after_BT", "value_BTK", "old_value_BTK", "return_BTK", "ref_value_BT", "old_entropy_BT", "mark_BT", *HIDDEN,
    "topk_logp_BTK", "start_logp_BT", "logz_BT", "mixed_logp_BT",
)  # fmt: skip
LABELS = torch.tensor([1, 0, 1, float("nan"), 0, 1, 1, 0], dtype=torch.float64)  # row 3 is neither good nor bad
COMPONENTS = {
    "reward:explored_B": torch.tensor([1.0, 0, 0, 1, 1, 0, 0, 1]),  # of each pair (0, 1), (2, 3) ... one
    "reward:degree_B": torch.zeros(8),  # the example has a critic of one output
    "reward:side_B": torch.tensor([1.0, 1, 1, 0, 0, 0, 1, 0]),
}
WHOLE = ("dist_BTV", "ref_dist_BTV")  # of a vocabulary of three


def example(seed: int = 0) -> Batch:
    """Eight answers to two prompts, in fp64: unequal lengths, environment tokens in rows 0 and 6, and row 5 failed."""
    draw = torch.Generator().manual_seed(seed)
    B, T = 8, 6

    def normal(scale: float) -> Tensor:
        return scale * torch.randn(B, T, generator=draw, dtype=torch.float64)

    length_B = torch.tensor([6, 4, 5, 1, 6, 3, 5, 4])
    mask_BT = (torch.arange(T) < length_B.unsqueeze(-1)).double()
    mask_BT[0, 2] = mask_BT[6, 1] = 0.0
    mask_BT[5] = 0.0
    old_logp_BT = -0.5 - normal(1.0).abs()
    reward_BT = torch.zeros(B, T, dtype=torch.float64)
    reward_BT[torch.arange(B), length_B - 1] = normal(1.0)[:, 0]
    reward_BT[5] = float("nan")
    return Batch(
        logp_BT=old_logp_BT + normal(0.3), mask_BT=mask_BT, old_logp_BT=old_logp_BT,
        ref_logp_BT=old_logp_BT + normal(0.5), adv_BT=normal(1.0), reward_BT=reward_BT, return_BT=normal(1.0),
        value_BT=normal(1.0), old_value_BT=normal(1.0), entropy_BT=normal(1.0).abs(), score_B=normal(1.0)[:, 0],
        group_B=torch.tensor([7, 7, 7, 7, 3, 3, 3, 3]), chosen_P=torch.tensor([0, 2, 4, 6]),
        rejected_P=torch.tensor([1, 3, 5, 7]), preferred_P=torch.tensor([1.0, 0.8, 0.9, 0.6], dtype=torch.float64),
        ranked_LK=torch.tensor([[2, 0, 1, 3], [4, 6, 7, -1], [5, 4, -1, -1]]),
        **{"length_B": length_B, "reward:cost_B": normal(1.0)[:, 0], "label_B": LABELS.clone()}, **COMPONENTS,
        token_BT=torch.randint(0, 3, (B, T), generator=draw), value_after_BT=normal(1.0), old_value_after_BT=normal(1.0),
        **{n: normal(1.0).unsqueeze(-1) for n in STREAMS if n.endswith(("value_BTK", "return_BTK"))},
        **{name: torch.stack([normal(1.0) for _ in range(3)], -1).log_softmax(-1) for name in WHOLE},
        old_entropy_BT=-old_logp_BT, ref_value_BT=normal(1.0), mark_BT=(normal(1.0) > 0).double(), thought_BT=torch.arange(T).expand(B, T) % 4,
        **head_streams(B, T, seed),
        logz_BT=normal(1.0), scores_BK=normal(1.0)[:, :2], rating_BK=normal(1.0)[:, :2], mixed_logp_BT=-normal(1.0).abs(),
    )  # fmt: skip
