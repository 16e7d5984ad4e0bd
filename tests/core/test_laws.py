"""Every registered part obeys the laws of its stage and those it claims; and the laws can fail."""

from __future__ import annotations

import pytest
import torch

from posttrain.core import laws
from posttrain.core.errors import UserError
from posttrain.core.registry import LOSSES, Card, Part, find
from tests.package import package_parts

CASES = [(part, law) for part in package_parts() for law in laws.of(part)]


@pytest.mark.parametrize(("part", "law"), CASES, ids=[f"{p.card.stage}-{p.name}-{law.__name__}" for p, law in CASES])
def test_law(part: Part, law: laws.Law) -> None:
    law(part)


def test_every_loss_and_advantage_is_held_to_something() -> None:
    for part in package_parts(*LOSSES, "term", "advantage", "shaping"):
        assert len(laws.of(part)) >= 3, part


def broken(fn, stage: str) -> Part:
    return Part(fn, Card(fn.__name__, stage, "broken on purpose"))


@pytest.mark.parametrize(
    ("law", "fn"),
    [
        ("on_policy_is_reinforce", lambda b: b["adv_BT"] * b.logp_BT),  # flipped sign
        (
            "on_policy_is_reinforce",
            lambda b: -b["adv_BT"] * torch.exp(b.logp_BT - b["old_logp_BT"]) * b.logp_BT,
        ),  # no detach
        (
            "on_policy_is_reinforce",
            lambda b: -b["adv_BT"] * b.logp_BT / b.lengths_B.unsqueeze(-1).clamp_min(1),
        ),  # a mean
        ("zero_credit_no_gradient", lambda b: -(b["adv_BT"] + 1) * b.logp_BT),
        (
            "never_against_the_credit",
            lambda b: (b["adv_BT"] * torch.exp(b.logp_BT - b["old_logp_BT"]) - b["adv_BT"]) ** 2,
        ),
        ("padding_is_inert", lambda b: -b["adv_BT"] * (b.logp_BT - b.logp_BT.mean())),  # a mean over padding
        ("row_order_is_irrelevant", lambda b: -b["adv_BT"] * b.logp_BT * torch.arange(len(b.mask_BT)).unsqueeze(-1)),
        ("dead_rows_do_not_count", lambda b: -b["adv_BT"] * b.logp_BT / len(b.mask_BT)),
        ("zero_at_the_reference", lambda b: b.logp_BT - b["ref_logp_BT"]),  # value 0, gradient not
    ],
)
def test_a_broken_loss_breaks_its_law(law: str, fn) -> None:
    with pytest.raises(AssertionError, match=r"difference|against"):
        laws.LAWS[law](broken(fn, "policy_loss"))


@pytest.mark.parametrize(
    ("law", "fn"),
    [
        ("swap_flips_gradient_sign", lambda b: -(b["score_B"][b["chosen_P"]])),
        ("chosen_up_rejected_down", lambda b: b["score_B"][b["chosen_P"]] - b["score_B"][b["rejected_P"]]),
        ("dead_rows_do_not_count", lambda b: -b["score_B"][b["chosen_P"]] + b["score_B"].mean()),
    ],
)
def test_a_broken_pair_loss_breaks_its_law(law: str, fn) -> None:
    with pytest.raises(AssertionError):
        laws.LAWS[law](broken(fn, "reward_model_loss"))


@pytest.mark.parametrize(
    ("law", "fn"),
    [
        ("shift_invariant", lambda b: b.returns_B.nan_to_num(0).unsqueeze(-1) * b.mask_BT),
        ("scale_invariant", lambda b: b.returns_B.nan_to_num(0).unsqueeze(-1) * b.mask_BT),
        ("sums_to_zero", lambda b: b.returns_B.nan_to_num(0).unsqueeze(-1) * b.mask_BT),
        ("tokens_sum_to_zero", lambda b: b.mask_BT),
        ("groups_are_separate", lambda b: (b.returns_B - b.returns_B.nan_to_num(0).mean()).unsqueeze(-1) * b.mask_BT),
        ("dead_rows_do_not_count", lambda b: (b.returns_B - b.returns_B.mean()).unsqueeze(-1) * b.mask_BT),  # nan
        ("credit_only_inside_the_mask", lambda b: torch.ones_like(b.mask_BT)),
    ],
)
def test_a_broken_advantage_breaks_its_law(law: str, fn) -> None:
    with pytest.raises(AssertionError, match="difference"):
        laws.LAWS[law](broken(fn, "advantage"))


def test_free_at_the_reference_can_fail() -> None:
    with pytest.raises(AssertionError, match="at the reference"):
        laws.free_at_the_reference(broken(lambda b: b["reward_BT"] - b["old_logp_BT"], "shaping"))


def test_a_claim_of_no_law_is_told_the_nearest() -> None:
    ppo = find("ppo", "policy_loss")
    part = Part(ppo.fn, Card("x", "policy_loss", "x", laws=("on_policy_is_reinforced",)))
    with pytest.raises(UserError, match="did you mean 'on_policy_is_reinforce'"):
        laws.of(part)
