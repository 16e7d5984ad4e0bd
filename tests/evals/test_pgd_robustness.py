"""Robustness margins by hand on linear models and a tabular policy's features, and of a decoder's embeddings."""

from __future__ import annotations

import pytest
import torch

from claims.worlds.tabular import TabularPolicy
from posttrain.core.errors import UserError
from posttrain.core.sampling import Sampling
from posttrain.core.types import Prompt
from posttrain.systems.reward_shaping_safety.rl_pgd_robustness import (
    Answer,
    Label,
    harden,
    moved,
    project,
    random_change,
    reward_guided_pgd,
    robustness_margin,
    untargeted_pgd,
)
from tests.runs import tiny_run


def linear(x_BF: torch.Tensor) -> torch.Tensor:
    """Label 0 where x_0 + 2 x_1 > 0, else 1."""
    u_B = x_BF[:, 0] + 2 * x_BF[:, 1]
    return torch.stack([u_B, -u_B], -1)


def other_than(label: int):
    return lambda y: float(y != (label,))


def margin(logits, inputs, labels, *rest, **options) -> dict[str, float]:
    """Of a classifier, for inputs with their labels."""
    return robustness_margin([Label(logits, x) for x in inputs], [other_than(y) for y in labels], *rest, **options)


@pytest.mark.derived("eval/robustness-margin")
def test_the_margin_of_a_linear_model() -> None:
    # at (1, 1) the margin is u / |w|_1 = 3 / 3 = 1: every change within eps moves u by at most 3 eps
    got = margin(linear, [torch.tensor([1.0, 1.0])], [0], most=4.0, halvings=12)
    assert got["margin"] == pytest.approx(1.0, abs=0.01) and got["right"] == 1.0


def test_the_step_goes_towards_the_better_output_and_stays_in_the_ball() -> None:
    # towards label 1 both features must fall; with the sign flipped delta would be +eps
    reads = Label(linear, torch.tensor([1.0, 1.0]))
    for search in (reward_guided_pgd, untargeted_pgd):
        assert search(reads, other_than(0), eps=0.5).tolist() == [-0.5, -0.5]
    assert project(torch.tensor([-2.0, 0.1, 2.0]), 0.5).tolist() == pytest.approx([-0.5, 0.1, 0.5])


@pytest.mark.derived("plan/rl-pgd-robustness")
def test_one_step_of_the_search_by_hand() -> None:
    """At (1, 1): u = 3, logits (3, -3): log p_1 = -6 - log(1 + e^-6) = -6.002476; p_0 = 0.997527, d log p_1 / dx = p_0 (-2, -4) =
    (-1.995054, -3.990109), d log p_0 / dx = (1 - p_0) (2, 4) = (0.004945, 0.009890). Cross-entropy falls against its gradient: towards label 1 by
    (-step, -step), away from label 0 the same way; beyond the ball it is cut: -0.45 - 0.125 -> -0.5."""
    reads, none = Label(linear, torch.tensor([1.0, 1.0])), torch.zeros(2)
    for label, value, slope in ((1, -6.002476, (-1.995054, -3.990109)), (0, -0.002476, (0.004945, 0.009890))):
        delta = none.clone().requires_grad_()
        logp = reads.logp(delta, (label,))
        logp.backward()
        assert logp.item() == pytest.approx(value, abs=1e-5)
        assert delta.grad is not None and delta.grad.tolist() == pytest.approx(slope, abs=1e-5)
    assert moved(reads, none, (1,), -0.125, 0.5).tolist() == [-0.125, -0.125]
    assert moved(reads, none, (0,), 0.125, 0.5).tolist() == [-0.125, -0.125]
    assert moved(reads, torch.full((2,), -0.45), (1,), -0.125, 0.5).tolist() == [-0.5, -0.5]


@pytest.mark.derived("plan/rl-pgd-robustness")
def test_the_target_is_the_best_scored_output_and_of_equals_the_likeliest() -> None:
    """Three outputs with logits (0, x, -x) at x = 1, all of them drawn. Score 1 for output 2 alone: it is aimed at, d log p_2 / dx < 0, so x falls by
    2.5 eps a step in one step, cut to -eps. Scores all 0: output 1 is the likeliest, d log p_1 / dx > 0, so x rises to +eps."""

    def three(x_BF: torch.Tensor) -> torch.Tensor:
        return torch.cat([torch.zeros_like(x_BF), x_BF, -x_BF], -1)

    reads = Label(three, torch.tensor([1.0]))
    for score, change in ((lambda y: float(y == (2,)), -0.5), (lambda y: 0.0, 0.5)):
        assert reward_guided_pgd(reads, score, eps=0.5, steps=1).tolist() == [change]


def test_what_the_model_gets_wrong_is_not_counted() -> None:
    got = margin(linear, [torch.tensor([1.0, 1.0]), torch.tensor([-1.0, 0.0])], [0, 0], halvings=12)
    assert got["right"] == 0.5 and got["inputs"] == 1 and got["margin"] == pytest.approx(1.0, abs=0.01)
    nothing = margin(linear, [torch.tensor([1.0, 1.0])], [0], most=0.5)
    assert nothing["margin"] == 0.5  # no change within the limit does it
    with pytest.raises(UserError, match="as many of each"):
        robustness_margin([], [])


def test_random_changes_need_more_in_many_dimensions() -> None:
    # u = sum of 64 features = 64 eps for the best corner; a random one moves it by about 8 eps
    def wide(x_BF: torch.Tensor) -> torch.Tensor:
        return torch.stack([x_BF.sum(-1), -x_BF.sum(-1)], -1)

    x = torch.full((64,), 0.25)
    guided, random = (margin(wide, [x], [0], f)["margin"] for f in (reward_guided_pgd, random_change))
    assert guided == pytest.approx(0.25, abs=0.07) and random > 2 * guided


def test_a_tabular_policys_features() -> None:
    # logits = f . table: features (1, 0), letter 0 ahead by 2; moving feature 0 down to -eps closes 2 (1 - eps)
    policy = TabularPolicy(1, 1, 2, memory=False, features_PF=torch.tensor([[1.0, 0.0]]))
    with torch.no_grad():
        policy.table[0, 0, 0] = torch.tensor([2.0, 0.0])

    def logits(f_BF: torch.Tensor) -> torch.Tensor:
        return f_BF @ policy.table.detach()[:, 0, 0]

    got = margin(logits, list(policy.features_PF), [0], most=4.0, halvings=12)
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
        margins.append(margin(model, list(x_BF[:10]), y_B[:10].tolist())["margin"])
    assert margins[1] > 1.2 * margins[0]


def test_an_answer_as_a_function_of_the_prompts_embeddings() -> None:
    torch.manual_seed(0)
    policy = tiny_run.policy()
    prompt = Prompt.text("p", "abcb", "c")
    reads = Answer(policy, prompt, longest=5)
    none = torch.zeros_like(reads.x)
    (plain,) = policy.sample([prompt], 1, Sampling(max_tokens=5, temperature=0.0))[0]
    (said,) = reads.top(none.unsqueeze(0))
    assert list(said) == plain.actions.tolist(), "without a change it says what the policy says"
    logp = policy.forward([plain])["logp_BT"].mean()
    torch.testing.assert_close(reads.logp(none, said), logp, atol=1e-5, rtol=1e-4)
    drawn = reads.draws(none, 4, seed=1)
    assert len({y[0] for y in drawn}) == 4, "the samples begin differently"
    assert not torch.allclose(reads.logp(none + 0.5, said), logp)
    torch.testing.assert_close(policy.forward([plain])["logp_BT"].mean(), logp)  # the change is gone
    several = reads.top(torch.stack([none, none + 3.0, none]))
    assert several[0] == several[2] == said, "each row has its own change"


def test_the_guided_search_moves_towards_a_wrong_answer_and_the_plain_one_away_from_the_right_one() -> None:
    torch.manual_seed(0)
    policy = tiny_run.policy().requires_grad_(False)
    reads = Answer(policy, Prompt.text("p", "abcb", "c"), longest=3)
    before = {k: v.clone() for k, v in policy.state_dict().items()}
    none = torch.zeros_like(reads.x)
    (own,) = reads.top(none.unsqueeze(0))
    plain = untargeted_pgd(reads, lambda y: float(y != own), eps=0.3)
    assert float(reads.logp(plain, own)) < float(reads.logp(none, own)) and float(plain.abs().max()) <= 0.3 + 1e-6
    wanted = next(y for y in reads.draws(none, 4, seed=0) if y != own)
    guided = reward_guided_pgd(reads, lambda y: float(y[0] == wanted[0]), eps=0.3)
    first = (wanted[0],)
    assert float(reads.logp(guided, first)) > float(reads.logp(none, first))
    for name, value in policy.state_dict().items():
        torch.testing.assert_close(value, before[name])
