"""Robustness margins by hand on linear models and a tabular policy's features, and of a decoder's embeddings."""

from __future__ import annotations

import pytest
import torch

from claims.worlds.tabular import TabularPolicy
from posttrain.core.errors import UserError
from posttrain.systems.reward_shaping_safety.rl_pgd_robustness import (
    harden,
    of_embeddings,
    project,
    random_change,
    reward_guided_pgd,
    robustness_margin,
)
from tests.runs import tiny_run


def linear(x_BF: torch.Tensor) -> torch.Tensor:
    """Label 0 where x_0 + 2 x_1 > 0, else 1."""
    u_B = x_BF[:, 0] + 2 * x_BF[:, 1]
    return torch.stack([u_B, -u_B], -1)


def other_than(label: int):
    return lambda y: float(y != label)


@pytest.mark.derived("eval/robustness-margin")
def test_the_margin_of_a_linear_model() -> None:
    # at (1, 1) the margin is u / |w|_1 = 3 / 3 = 1: every change within eps moves u by at most 3 eps
    got = robustness_margin(linear, [torch.tensor([1.0, 1.0])], [0], most=4.0, halvings=12)
    assert got["margin"] == pytest.approx(1.0, abs=0.01) and got["right"] == 1.0


def test_the_step_goes_towards_the_better_output_and_stays_in_the_ball() -> None:
    # towards label 1 both features must fall; with the sign flipped delta would be +eps
    delta = reward_guided_pgd(linear, torch.tensor([1.0, 1.0]), other_than(0), eps=0.5)
    assert delta.tolist() == [-0.5, -0.5]
    assert project(torch.tensor([-2.0, 0.1, 2.0]), 0.5).tolist() == pytest.approx([-0.5, 0.1, 0.5])


def test_what_the_model_gets_wrong_is_not_counted() -> None:
    got = robustness_margin(linear, [torch.tensor([1.0, 1.0]), torch.tensor([-1.0, 0.0])], [0, 0], halvings=12)
    assert got["right"] == 0.5 and got["inputs"] == 1 and got["margin"] == pytest.approx(1.0, abs=0.01)
    nothing = robustness_margin(linear, [torch.tensor([1.0, 1.0])], [0], most=0.5)
    assert nothing["margin"] == 0.5  # no change within the limit does it
    with pytest.raises(UserError, match="as many of each"):
        robustness_margin(linear, [], [])


def test_random_changes_need_more_in_many_dimensions() -> None:
    # u = sum of 64 features = 64 eps for the best corner; a random one moves it by about 8 eps
    def wide(x_BF: torch.Tensor) -> torch.Tensor:
        return torch.stack([x_BF.sum(-1), -x_BF.sum(-1)], -1)

    x = torch.full((64,), 0.25)
    guided, random = (robustness_margin(wide, [x], [0], f)["margin"] for f in (reward_guided_pgd, random_change))
    assert guided == pytest.approx(0.25, abs=0.07) and random > 2 * guided


def test_a_tabular_policys_features() -> None:
    # logits = f . table: features (1, 0), letter 0 ahead by 2; moving feature 0 down to -eps closes 2 (1 - eps)
    policy = TabularPolicy(1, 1, 2, memory=False, features_PF=torch.tensor([[1.0, 0.0]]))
    with torch.no_grad():
        policy.table[0, 0, 0] = torch.tensor([2.0, 0.0])

    def logits(f_BF: torch.Tensor) -> torch.Tensor:
        return f_BF @ policy.table.detach()[:, 0, 0]

    got = robustness_margin(logits, list(policy.features_PF), [0], most=4.0, halvings=12)
    assert got["margin"] == pytest.approx(1.0, abs=0.01)


def test_hardening_raises_the_margin() -> None:
    # feature 0 says the label by a wide margin, 20 others by a narrow one: plain training leans on all, hardened on one
    draws = torch.Generator().manual_seed(0)
    y_B = torch.randint(0, 2, (200,), generator=draws)
    sign_B1 = (2.0 * y_B - 1).unsqueeze(-1)
    x_BF = torch.cat([2 * sign_B1, 0.2 * sign_B1.expand(-1, 20)], -1) + 0.1 * torch.randn(200, 21, generator=draws)
    margins = []
    for eps in (0.0, 0.5):
        model = torch.nn.Linear(21, 2)
        torch.nn.init.zeros_(model.weight)
        torch.nn.init.zeros_(model.bias)
        harden(model, x_BF, y_B, eps)
        margins.append(robustness_margin(model, list(x_BF[:10]), y_B[:10].tolist())["margin"])
    assert margins[1] > 1.2 * margins[0]


def test_a_decoder_as_a_function_of_its_embeddings() -> None:
    torch.manual_seed(0)
    model = tiny_run.policy().model
    tokens_S = torch.tensor([3, 5, 7])
    x_SD, logits = of_embeddings(model, tokens_S)
    plain = model.logits(model.hidden(tokens_S.unsqueeze(0))[:, -1])
    torch.testing.assert_close(logits(x_SD.unsqueeze(0)), plain)
    moved = logits((x_SD + 0.1).unsqueeze(0))
    assert not torch.allclose(moved, plain)
    torch.testing.assert_close(model.logits(model.hidden(tokens_S.unsqueeze(0))[:, -1]), plain)  # the hook is gone
    label = int(plain.argmax())
    before = {k: v.clone() for k, v in model.state_dict().items()}
    got = robustness_margin(logits, [x_SD], [label], most=3.0)
    assert 0 < got["margin"] <= 3.0
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, before[name])
