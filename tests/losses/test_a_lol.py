"""A-LoL by hand: each regime of the clipped ratio, every variant; how rows are drawn; the value of a prompt."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch

from posttrain.core.errors import UserError
from posttrain.core.types import Prompt
from posttrain.environments.language.listed import Listed
from posttrain.models.prompt_value import PromptValue, fitted, prompt_values
from posttrain.policies.load import load_model
from posttrain.systems.supervised_from_reward.a_lol import by_worth, leftover_lunch
from tests.losses.table import batch_of, inside, value_and_gradient
from tests.wiring.spies import tiny_folder


@pytest.mark.derived("policy_loss/a-lol")
def test_the_ratio_of_the_whole_answer_is_clipped_and_constant() -> None:
    # reference -1 at every token; rho is the product of an answer's ratios, then within [0.1, 1.9]; gradient -A rho at every token
    #   (2, .6)    rho = 1.2          A = .5: -.6, -.6
    #   (2, 2)     rho = 4 -> 1.9     A = 1:  -1.9, -1.9
    #   (.2, .1)   rho = .02 -> .1    A = 2:  -.2, -.2
    #   (3)        A = 0: nothing
    ratios, credit = [[2.0, 0.6], [2.0, 2.0], [0.2, 0.1], [3.0]], [0.5, 1.0, 2.0, 0.0]
    grads = [[-0.6, -0.6], [-1.9, -1.9], [-0.2, -0.2], [0.0]]
    logp = [[-1.0 + math.log(r) for r in row] for row in ratios]
    batch = batch_of(logp, ref_logp=[[-1.0] * len(r) for r in ratios], adv=[[a] * len(r) for a, r in zip(credit, ratios, strict=True)])  # fmt: skip
    loss_BT, grad_BT = value_and_gradient(leftover_lunch, batch)
    torch.testing.assert_close(inside(grad_BT, batch), grads, rtol=1e-9, atol=1e-12)
    expected = [[g * p for g, p in zip(gs, ps, strict=True)] for gs, ps in zip(grads, logp, strict=True)]
    torch.testing.assert_close(inside(loss_BT, batch), expected, rtol=1e-9, atol=1e-12)


@pytest.mark.derived("policy_loss/a-lol")
@pytest.mark.parametrize(
    ("variant", "grads"),
    [
        ("seq", [-2 * 1.9, -2 * 0.5]),  # ratios 4 -> 1.9 and .5, each its own
        ("ref-free", [-2.0, -2.0]),
        ("kl", [-2.0 + 0.1, -2.0 + 0.1]),  # -A + beta
        ("a-lol", [-2 * 1.9, -2 * 1.9]),  # 4 * .5 = 2 -> 1.9
    ],
)
def test_variants(variant: str, grads: list[float]) -> None:
    logp = [[-1 + math.log(4), -1 + math.log(0.5)]]
    batch = batch_of(logp, ref_logp=[[-1.0, -1.0]], adv=[[2.0, 2.0]])
    loss_BT, grad_BT = value_and_gradient(leftover_lunch.but(variant=variant, beta=0.1), batch)
    torch.testing.assert_close(inside(grad_BT, batch), [grads], rtol=1e-9, atol=1e-12)
    extra = [
        0.1 * -r if variant == "kl" else 0.0 for r in (-1.0, -1.0)
    ]  # the reference's part of the penalty, a constant
    expected = [g * p + e for g, p, e in zip(grads, logp[0], extra, strict=True)]
    torch.testing.assert_close(inside(loss_BT, batch), [expected], rtol=1e-9, atol=1e-12)


def test_another_variant_is_refused() -> None:
    with pytest.raises(UserError, match="variant of A-LoL named 'sequence'"):
        leftover_lunch(batch_of([[-1.0]], ref_logp=[[-1.0]], adv=[[1.0]]), variant="sequence")


def test_rows_are_drawn_in_proportion_to_their_worth() -> None:
    # worths 3, 1 and -1: three quarters, one quarter, never
    rows = tuple(Prompt.text(f"p{i}", "q", worth=w) for i, w in enumerate((3.0, 1.0, -1.0)))
    drawn = by_worth.live()
    drawn.start(Listed("rows", rows), seed=1)
    came = [p for step in range(200) for p in drawn.propose(10, step)]
    share = Counter(p.id.partition("#")[0] for p in came)
    assert share["p2"] == 0 and share["p0"] / 2000 == pytest.approx(0.75, abs=0.04)
    one = drawn.propose(10, 7)
    assert [p.id for p in one] == [p.id for p in drawn.propose(10, 7)] and len({p.id for p in one}) == 10
    with pytest.raises(UserError, match="no prompt that is worth more than 0"):
        by_worth.live().start(Listed("rows", rows[2:]), seed=1)


def test_a_value_is_fitted_to_what_prompts_earn() -> None:
    policy = load_model(tiny_folder())
    prompts = [Prompt.text(f"p{i}", "a" * (1 + i % 3) if i % 2 else "bb" * (1 + i % 3)) for i in range(24)]
    earned = [1.0 if i % 2 else 0.0 for i in range(24)]
    head, error = fitted(policy, prompts, earned, 60, seed=0, rate=1e-2)
    assert error < 0.1, "the variance of what is earned is 0.25"
    found = prompt_values(policy, head, prompts)
    assert max(found[0::2]) < min(found[1::2])
    assert fitted(policy, prompts, earned, 3, seed=0)[1] == fitted(policy, prompts, earned, 3, seed=0)[1]


def test_the_head_of_the_pass_with_the_least_error_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Errors of the passes: 3, 1, 2; the head that is kept has the error 1."""
    told = iter([3.0, 1.0, 2.0])
    real = torch.nn.functional.mse_loss
    monkeypatch.setattr("torch.nn.functional.mse_loss", lambda x, y: real(x, y) * 0 + next(told))
    policy = load_model(tiny_folder())
    _, error = fitted(policy, [Prompt.text(f"p{i}", "a") for i in range(4)], [0.0, 1.0, 0.0, 1.0], 3, seed=0)
    assert error == 1.0


def test_padding_changes_no_value() -> None:
    head = PromptValue(16)
    torch.nn.init.normal_(head.out.weight)
    h_PLD, length_P = torch.randn(2, 5, 16), torch.tensor([3, 5])
    alone = head(h_PLD[:1, :3], torch.tensor([3]))
    torch.testing.assert_close(head(h_PLD, length_P)[:1], alone)
