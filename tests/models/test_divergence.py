"""Divergences in chunks against the dense formula and plain autograd in float64: values, gradients, memory."""

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from posttrain.core.errors import UserError
from posttrain.models import likelihood as heads
from posttrain.models.divergence import at_ids, divergence, likeliest

N, V, D, E, K = 13, 11, 5, 7, 4  # the reference has another width


def dense(h, w, ref_h, ref_w, heat, beta):
    """Straight from the definition, over tensors of N x V."""
    q = torch.softmax(h @ w.T / heat[:, None], -1)
    p = torch.softmax(ref_h @ ref_w.T / heat[:, None], -1)
    if beta == 0:
        return (p * (p / q).log()).sum(-1)
    if beta == 1:
        return (q * (q / p).log()).sum(-1)
    m = beta * p + (1 - beta) * q
    return beta * (p * (p / m).log()).sum(-1) + (1 - beta) * (q * (q / m).log()).sum(-1)


def drawn(dtype=torch.float64, n=N, v=V):
    g = torch.Generator().manual_seed(0)
    normal = [torch.randn(*size, generator=g, dtype=torch.float64) for size in ((n, D), (v, D), (n, E), (v, E))]
    heat = 0.5 + torch.rand(n, generator=g, dtype=torch.float64)
    up = torch.randn(n, generator=g, dtype=torch.float64)
    return [x.to(dtype) for x in normal], heat.to(dtype), up.to(dtype)


def both(fn, leaves, up):
    h, w = (x.clone().requires_grad_() for x in leaves)
    found = fn(h, w)
    (found * up).sum().backward()
    return found.detach(), h.grad, w.grad


@pytest.mark.parametrize("rows", [1, 4, 1000], ids=["rows alone", "some", "whole"])
@pytest.mark.parametrize("beta", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_values_and_gradients_are_those_of_the_dense_formula(monkeypatch, beta, rows):
    monkeypatch.setattr(heads, "CHUNK", rows * V * 4)
    (h, w, ref_h, ref_w), heat, up = drawn()
    want = both(lambda h, w: dense(h, w, ref_h, ref_w, heat, beta), (h, w), up)
    got = both(lambda h, w: divergence(h, w, ref_h, ref_w, heat, beta), (h, w), up)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-10)


@pytest.mark.parametrize("rows", [1, 1000])
def test_log_probabilities_of_given_ids(monkeypatch, rows):
    monkeypatch.setattr(heads, "CHUNK", rows * V * 4)
    (h, w, _, _), heat, _ = drawn()
    g = torch.Generator().manual_seed(1)
    ids = torch.randint(V, (N, K), generator=g)
    ids[0, 1] = ids[0, 0]  # one id twice
    up = torch.randn(N, K, generator=g, dtype=torch.float64)
    want = both(lambda h, w: torch.log_softmax(h @ w.T / heat[:, None], -1).gather(-1, ids), (h, w), up)
    got = both(lambda h, w: at_ids(h, w, ids, heat), (h, w), up)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-10)


def test_by_hand():
    """q = (1/4, 3/4) from logits (0, log 3), p = (1/2, 1/2) from (0, 0), temperature 1.

    KL(p || q) = 1/2 log 2 + 1/2 log(2/3) = 1/2 log(4/3); by the logit of the second token q - p = 1/4, times w = log 3.
    KL(q || p) = 1/4 log(1/2) + 3/4 log(3/2) =: R; by that logit 3/4 (log(3/2) - R).
    beta = 1/2: m = (3/8, 5/8); KL(p || m) = 1/2 log(4/3) + 1/2 log(4/5), KL(q || m) = 1/4 log(2/3) + 3/4 log(6/5) =: S;
    D = 1/2 of their sum; by that logit 1/2 * 3/4 (log(6/5) - S).
    """
    R = 0.25 * math.log(0.5) + 0.75 * math.log(1.5)
    S = 0.25 * math.log(2 / 3) + 0.75 * math.log(6 / 5)
    expected = {
        0.0: (0.5 * math.log(4 / 3), 0.25),
        1.0: (R, 0.75 * (math.log(1.5) - R)),
        0.5: (0.5 * (0.5 * math.log(4 / 3) + 0.5 * math.log(0.8) + S), 0.5 * 0.75 * (math.log(1.2) - S)),
    }
    one, w = torch.ones(1, dtype=torch.float64), torch.tensor([[0.0], [math.log(3)]], dtype=torch.float64)
    for beta, (value, slope) in expected.items():
        h = torch.ones(1, 1, dtype=torch.float64, requires_grad=True)
        found = divergence(
            h, w, torch.ones(1, 1, dtype=torch.float64), torch.zeros(2, 1, dtype=torch.float64), one, beta
        )
        found.sum().backward()
        assert found.item() == pytest.approx(value, abs=1e-12)
        assert h.grad.item() == pytest.approx(slope * math.log(3), abs=1e-12)


def test_the_likeliest_ids_come_first():
    (h, w, _, _), heat, _ = drawn()
    ids, logp = likeliest(h, w, K, heat)
    every = torch.log_softmax(h @ w.T / heat[:, None], -1)
    torch.testing.assert_close(logp, every.sort(-1, descending=True).values[:, :K])
    torch.testing.assert_close(every.gather(-1, ids), logp)
    assert likeliest(h, w, 50, heat)[0].shape == (N, V), "all of a vocabulary with fewer"


def test_padding_of_a_vocabulary_is_left_out_of_both():
    """Two sizes of one family pad the vocabulary differently: what only one has is in neither distribution."""
    (h, w, ref_h, ref_w), heat, _ = drawn()
    more = torch.cat([ref_w, torch.ones(3, E, dtype=torch.float64)])
    want = divergence(h, w, ref_h, ref_w, heat, 0.5)
    torch.testing.assert_close(divergence(h, w, ref_h, more, heat, 0.5), want)
    wider = torch.cat([w, torch.ones(2, D, dtype=torch.float64)])
    torch.testing.assert_close(divergence(h, wider, ref_h, ref_w, heat, 0.5), want)
    assert (divergence(h, w[:-2], ref_h, ref_w, heat, 0.5) - want).abs().max() > 1e-3


def test_equal_models_have_no_divergence_and_no_gradient():
    (h, w, _, _), heat, up = drawn()
    for beta in (0.0, 0.5, 1.0):
        found, dh, dw = both(lambda h, w: divergence(h, w, h, w, heat, beta), (h, w), up)  # noqa: B023
        assert max(float(x.abs().max()) for x in (found, dh, dw)) < 1e-12


def test_beta_is_a_share():
    (h, w, ref_h, ref_w), heat, _ = drawn()
    with pytest.raises(UserError, match=r"beta is 1.5; it is a share between 0, KL"):
        divergence(h, w, ref_h, ref_w, heat, 1.5)


class Largest(TorchDispatchMode):
    """Remembers the largest tensor that any operation made."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, (tuple, list)) else (out,):
            self.numbers = max(self.numbers, x.numel() if isinstance(x, torch.Tensor) else 0)
        return out


@pytest.mark.parametrize("what", ["divergence", "at_ids", "likeliest", "dense"])
def test_no_tensor_is_as_large_as_rows_by_vocabulary(monkeypatch, what):
    """64 rows of a vocabulary of 500 in chunks of 8 rows: nothing larger than a chunk (or a head), forward and backward; the dense
    formula is the control."""
    n, v = 64, 500
    monkeypatch.setattr(heads, "CHUNK", 8 * v * 4)
    (h, w, ref_h, ref_w), heat, up = drawn(torch.float32, n, v)
    ids = torch.zeros(n, K, dtype=torch.long)
    h.requires_grad_(), w.requires_grad_()
    with Largest() as seen:
        if what == "likeliest":
            likeliest(h, w, K, heat)
        elif what == "at_ids":
            (at_ids(h, w, ids, heat).sum(-1) * up).sum().backward()
        else:
            (divergence if what == "divergence" else dense)(h, w, ref_h, ref_w, heat, 0.5).sum().backward()
    limit = max(8 * v, v * E)
    assert (seen.numbers <= limit) == (what != "dense"), f"{seen.numbers} numbers in one tensor, of {n * v}"


def test_half_precision_is_summed_in_float32():
    (h, w, ref_h, ref_w), heat, _ = drawn(torch.bfloat16)
    found = divergence(h, w, ref_h, ref_w, heat.float(), 0.5)
    assert found.dtype == torch.float32
    want = divergence(*(x.double() for x in (h, w, ref_h, ref_w, heat)), 0.5)
    torch.testing.assert_close(found.double(), want, atol=1e-5, rtol=1e-4)
