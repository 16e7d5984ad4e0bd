"""More padding changes no credit and no shaped reward, and who reads the answers of other prompts is known by name."""

from __future__ import annotations

import pytest
import torch

from posttrain.core import laws
from posttrain.core.batch import Batch, suffix
from posttrain.core.registry import Part
from posttrain.systems.policy_gradient.clip_cov import covariance
from tests.package import package_parts

PARTS = package_parts("advantage", "shaping")
# their formulas have a mean, a spread or a state over the whole step
OF_THE_STEP = {
    "adacot", "aepo", "gae", "gae-by-reward", "gpg", "length-adaptive-gae", "lite-ppo", "prime", "reinforce-pp", "task-std", "treepo", "turn-gae",
    "class-weight",
}  # fmt: skip


def widened(batch: Batch, columns: int = 3) -> Batch:
    """The same batch with columns of padding at its end: nothing is earned there, and the other streams hold anything."""
    wild = torch.Generator().manual_seed(5)
    out = {}
    for name, x in batch.streams.items():
        if suffix(name).startswith("BT"):
            more = 9 * torch.randn(len(x), columns, *x.shape[2:], generator=wild, dtype=torch.float64)
            quiet = name in ("mask_BT", "reward_BT")
            out[name] = torch.cat([x, torch.zeros_like(more).to(x) if quiet else more.to(x)], 1)
    return batch.but(**out)


@pytest.mark.parametrize("part", PARTS, ids=[f"{p.card.stage}-{p.name}" for p in PARTS])
def test_more_padding_changes_nothing(part: Part) -> None:
    batch = laws.example()
    T = batch.mask_BT.shape[1]
    for got, expected in zip(laws.outputs(part, widened(batch)), laws.outputs(part, batch), strict=True):
        valid_B = batch.valid_B
        laws.same(got[valid_B, :T], expected[valid_B], f"{part} depends on how far rows are padded")
        if part.card.stage == "advantage":
            laws.same(got[valid_B, T:], torch.zeros_like(got[valid_B, T:]), f"{part} gives credit to padding")


@pytest.mark.parametrize("part", [p for p in PARTS if p.card.stage == "advantage"], ids=str)
def test_answers_to_other_prompts_change_nothing_but_where_it_is_said(part: Part) -> None:
    if part.name in OF_THE_STEP:
        assert "groups_are_separate" not in part.card.laws
        with pytest.raises(AssertionError):
            laws.LAWS["groups_are_separate"](part)
    else:
        laws.LAWS["groups_are_separate"](part)


def test_a_mean_over_padding_would_be_found() -> None:
    def broken(batch: Batch) -> torch.Tensor:
        logp_BT = batch["old_logp_BT"]
        return torch.where(batch.mask_BT > 0, logp_BT - logp_BT.mean(), 0.0)

    with pytest.raises(AssertionError, match="padded"):
        test_more_padding_changes_nothing(Part(broken, PARTS[0].card))


@pytest.mark.derived("advantage/clip-cov", "advantage/kl-cov")
def test_the_covariance_is_over_the_mask_alone() -> None:
    # log-probabilities -1 and -3, credit 1 and -1: means -2 and 0, products 1 and 1; a third column of padding is no token
    logp_BT, adv_BT = torch.tensor([[-1.0, -3.0, 50.0]]), torch.tensor([[1.0, -1.0, 7.0]])
    assert covariance(logp_BT, adv_BT, torch.tensor([[1.0, 1.0, 0.0]])).tolist() == [[1.0, 1.0, 0.0]]
