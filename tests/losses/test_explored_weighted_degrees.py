"""WPO, XPO and SPO: values and gradients by hand, and the answers that SPO takes phrases from."""

from __future__ import annotations

import math

import pytest
import torch

from posttrain.core.batch import Batch
from posttrain.losses.aggregate import Totals, token_mean
from posttrain.losses.objective import objective
from posttrain.losses.supervised.sft import sft
from posttrain.systems.preference.spo_selfsup_degree import degree, key_phrases, versions, without
from posttrain.systems.preference.wpo import wpo_loss
from posttrain.systems.preference.xpo import xpo_loss
from tests.losses.table import batch_of, inside, value_and_gradient

# chosen: two tokens, of probability .8 and .5; rejected: one of .2. Log-ratios to the reference .5 and .5, and -1: u = 2
LOGP = [[math.log(0.8), math.log(0.5)], [math.log(0.2)]]
REF = [[math.log(0.8) - 0.5, math.log(0.5) - 0.5], [math.log(0.2) + 1]]


def sig(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def ls(x: float) -> float:
    """-log sigmoid(x)."""
    return math.log1p(math.exp(-x))


def likely(first: list[list[float]], temperature: float = 1.0) -> Batch:
    """A vocabulary of two, whose logits are the hidden states: the first id's probability at each action, at a temperature."""
    rows = [[[temperature * math.log(p), temperature * math.log(1 - p)] for p in row] for row in first]
    T = max(map(len, rows))
    hidden_BTD = torch.tensor([row + [[9.0, -9.0]] * (T - len(row)) for row in rows], dtype=torch.float64)
    heat_B = torch.full((len(rows),), temperature, dtype=torch.float64)
    batch = batch_of(LOGP, pairs=[(0, 1)], ref_logp=REF)
    return batch.but(hidden_BTD=hidden_BTD, head_VD=torch.eye(2, dtype=torch.float64), temperature_B=heat_B)


@pytest.mark.derived("preference_loss/wpo")
@pytest.mark.parametrize("temperature", [1.0, 2.0])
def test_wpo_weighs_a_pair_by_how_usual_its_tokens_are(temperature: float) -> None:
    # sum of squares: .8^2 + .2^2 = .68 where the token has .8 or .2, .5 where it has .5
    # w_w = sqrt(.8 / .68 * .5 / .5) = 1.084652,  w_l = .2 / .68 = .294118,  the product .319015
    batch = likely([[0.8, 0.5], [0.2]], temperature)
    weight = math.sqrt(0.8 / 0.68) * 0.2 / 0.68
    loss_P, grad_BT = value_and_gradient(wpo_loss, batch, beta=0.5)
    torch.testing.assert_close(loss_P.tolist(), [weight * ls(1.0)], rtol=1e-9, atol=0)
    pull = -weight * 0.5 * sig(-1.0)  # through the margin alone: weights have no gradient
    torch.testing.assert_close(inside(grad_BT, batch), [[pull, pull], [-pull]], rtol=1e-9, atol=0)


def test_a_pair_never_weighs_more_than_one_and_weights_teach_nothing() -> None:
    # both answers are likelier than what is sampled there on average: .8 / .68 > 1, so the product is cut to 1
    batch = likely([[0.8, 0.8], [0.8]])
    usual = batch.but(logp_BT=torch.log(torch.full_like(batch.logp_BT, 0.8)))
    margin = float((usual.logp_BT - usual["ref_logp_BT"])[0].sum() - (usual.logp_BT - usual["ref_logp_BT"])[1, 0])
    loss_P, _ = value_and_gradient(wpo_loss, usual, beta=0.5)
    torch.testing.assert_close(loss_P.tolist(), [ls(0.5 * margin)], rtol=1e-9, atol=0)
    hidden = batch["hidden_BTD"].clone().requires_grad_()
    head = batch["head_VD"].clone().requires_grad_()
    out = wpo_loss(batch.but(hidden_BTD=hidden, head_VD=head, logp_BT=batch.logp_BT.clone().requires_grad_()))
    assert torch.autograd.grad(out.sum(), (hidden, head), allow_unused=True) == (None, None)


@pytest.mark.derived("preference_loss/xpo")
@pytest.mark.parametrize(("won", "said"), [(1.0, math.log(0.8) + math.log(0.5)), (0.0, math.log(0.2))])
def test_xpo_makes_the_starts_answer_less_likely_whether_or_not_it_won(won: float, said: float) -> None:
    # -log sigmoid(.5 * 2) + .1 log pi(y_ref): the start's is the preferred answer, or the other
    batch = batch_of(LOGP, pairs=[(0, 1)], ref_logp=REF).but(**{"reward:explored_B": torch.tensor([won, 1 - won])})
    loss_P, grad_BT = value_and_gradient(xpo_loss, batch, beta=0.5, alpha=0.1)
    torch.testing.assert_close(loss_P.tolist(), [ls(1.0) + 0.1 * said], rtol=1e-9, atol=0)
    up, down = -0.5 * sig(-1.0), 0.5 * sig(-1.0)
    want = [[up + 0.1] * 2, [down]] if won else [[up] * 2, [down + 0.1]]
    torch.testing.assert_close(inside(grad_BT, batch), want, rtol=1e-9, atol=0)


@pytest.mark.derived("term/degree")
def test_degree_is_the_cross_entropy_of_the_mean_state() -> None:
    # row 0: logits of two tokens (1, 0) and (3, 0): mean (2, 0); degree 1: -log softmax = log(1 + e^2) = 2.126928; side chosen, gamma .5
    # row 1: one token (0, 1), degree 1: log(1 + e^-1) = .313262; rejected, gamma .25
    batch = batch_of(LOGP)
    value = torch.tensor([[[1.0, 0.0], [3.0, 0.0]], [[0.0, 1.0], [7.0, 7.0]]], dtype=torch.float64)
    told = {"reward:degree_B": torch.tensor([1.0, 1.0]), "reward:side_B": torch.tensor([1.0, 0.0])}
    batch = batch.but(value_BTK=value, **told)
    leaf = value.clone().requires_grad_()
    out_BT = degree(batch.but(value_BTK=leaf), chosen=0.5, rejected=0.25)
    torch.testing.assert_close(out_BT[:, 0].tolist(), [0.5 * math.log1p(math.e**2), 0.25 * ls(1.0)], rtol=1e-9, atol=0)
    per_answer = torch.where(batch.mask_BT > 0, out_BT, 0.0).sum(-1) / batch.lengths_B
    (grad,) = torch.autograd.grad(per_answer.sum(), leaf)
    # d/d logit = gamma (softmax - [degree]) / |y|: softmax of (2, 0) is (.880797, .119203)
    p, q = sig(2.0), sig(1.0)
    want = [[[0.25 * p, -0.25 * p]] * 2, [[0.25 * (1 - q), -0.25 * (1 - q)], [0.0, 0.0]]]
    torch.testing.assert_close(grad.tolist(), want, rtol=1e-9, atol=1e-12)


def test_degree_does_not_depend_on_how_the_batch_is_cut() -> None:
    draw = torch.Generator().manual_seed(0)
    value = torch.randn(4, 3, 3, generator=draw, dtype=torch.float64, requires_grad=True)
    batch = batch_of([[-1.0] * 3, [-1.0], [-1.0] * 2, [-1.0] * 3]).but(
        value_BTK=value,
        **{"reward:degree_B": torch.tensor([0.0, 2, 1, 2]), "reward:side_B": torch.tensor([1.0, 1, 0, 0])},
    )
    totals = Totals.of(batch)

    def gradient(*pieces: list[int]) -> torch.Tensor:
        losses = [objective(batch.rows(torch.tensor(p)), totals, sft, token_mean, [degree])[0] for p in pieces]
        return torch.autograd.grad(sum(losses), value)[0]

    whole = gradient([0, 1, 2, 3])
    assert float(whole.abs().max()) > 1e-3
    for cut in (([0], [1], [2], [3]), ([3, 1], [0, 2]), ([2, 1, 0], [3])):
        torch.testing.assert_close(gradient(*cut), whole, rtol=0, atol=1e-12)


def test_phrases_stand_between_stop_words_and_long_ones_come_first() -> None:
    text = "Compatibility of systems of linear constraints over the set of natural numbers."
    found = [text[a:b] for a, b in key_phrases(text)]
    # two words of degree 2 each are worth 4, a single word 1; equal ones as they stand
    assert found == ["linear constraints", "natural numbers", "Compatibility", "systems", "set"]
    # a word of two phrases: deep has degree 2 + 3 in 2, so "deep sea" is 2.5 + 2 and "deep blue water" 2.5 + 3 + 3
    text = "deep sea and deep blue water"
    assert [text[a:b] for a, b in key_phrases(text)] == ["deep blue water", "deep sea"]


def test_versions_lose_ever_more_and_are_never_told_apart_by_nothing() -> None:
    text = "The old ship and the grey sea, with cold wind."
    assert without(text, 1 / 3) == "The and the grey sea, with cold wind."
    made = versions(text)
    assert [d for d, _ in made] == [0, 1, 2] and made[0][1] == text
    assert made[2][1] == "The and the, with cold wind."
    assert versions("8") == [(0, "8")], "nothing would be left"
    # one phrase: a third of it and two thirds of it are both the whole, so there is no third version
    assert versions("It is cold.") == [(0, "It is cold."), (1, "It is.")]
    assert versions("") == [(0, "")]


def test_a_phrase_of_words_that_stand_in_long_ones_comes_before_a_longer_one() -> None:
    text = "alpha beta gamma delta epsilon zeta eta theta, red green blue, alpha beta"
    # alpha and beta are in phrases of 8 and 2 words: (8 + 2) / 2 = 5 each, 10 in all; red, green and blue in one of 3: 3 each, 9 in all
    found = [text[a:b] for a, b in key_phrases(text)]
    assert found == ["alpha beta gamma delta epsilon zeta eta theta", "alpha beta", "red green blue"]
