"""The chunked head against plain autograd: values and gradients, cut in one piece or in many."""

import math

import pytest
import torch

from posttrain.models import likelihood as module
from posttrain.models.likelihood import likelihood, normalised

N, V, D = 13, 11, 5


def plain(h, weight, token, temperature):
    logp = torch.log_softmax(h @ weight.T / temperature, -1)
    return logp.gather(-1, token.unsqueeze(-1)).squeeze(-1), -(logp.exp() * logp).sum(-1)


@pytest.mark.parametrize("chunk", [V, 4 * V, 1000 * V])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_values_and_gradients(monkeypatch, chunk, temperature):
    monkeypatch.setattr(module, "CHUNK", chunk)
    g = torch.Generator().manual_seed(0)
    token = torch.randint(V, (N,), generator=g)
    up_logp, up_entropy = torch.randn(N, generator=g), torch.randn(N, generator=g)
    h0, w0 = torch.randn(N, D, generator=g), torch.randn(V, D, generator=g)
    results = []
    for fn in (plain, likelihood):
        h, w = h0.clone().requires_grad_(), w0.clone().requires_grad_()
        logp, entropy = fn(h, w, token, temperature)
        (logp * up_logp + entropy * up_entropy).sum().backward()
        results.append((logp, entropy, h.grad, w.grad))
    for want, got in zip(*results, strict=True):
        torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("chunk", [V, 1000 * V])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_normaliser_has_a_gradient_of_its_own(monkeypatch, chunk, temperature):
    monkeypatch.setattr(module, "CHUNK", chunk)
    g = torch.Generator().manual_seed(1)
    token, up = torch.randint(V, (N,), generator=g), torch.randn(3, N, generator=g)
    h0, w0 = torch.randn(N, D, generator=g), torch.randn(V, D, generator=g)
    results = []
    for fn in (lambda *a: (*plain(*a), torch.logsumexp(a[0] @ a[1].T / a[3], -1)), normalised):
        h, w = h0.clone().requires_grad_(), w0.clone().requires_grad_()
        found = fn(h, w, token, temperature)
        sum((x * u).sum() for x, u in zip(found, up, strict=True)).backward()
        results.append((*found, h.grad, w.grad))
    for want, got in zip(*results, strict=True):
        torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)


def test_the_normaliser_by_hand():
    # logits (0, log 3), token 1: logz = log 4, and logp + logz = log 3 is the token's own logit
    # d logz / dh = p_1 w_1 = 3/4 log 3; d (logp + logz) / dh = w_1 = log 3
    w, token = torch.tensor([[0.0], [math.log(3)]]), torch.tensor([1])
    for stream, value, slope in (("logz", math.log(4), 0.75 * math.log(3)), ("logit", math.log(3), math.log(3))):
        h = torch.ones(1, 1, requires_grad=True)
        logp, _, logz = normalised(h, w, token)
        found = logz if stream == "logz" else logp + logz
        found.sum().backward()
        assert math.isclose(found.item(), value, rel_tol=1e-6) and math.isclose(h.grad.item(), slope, rel_tol=1e-5)


def test_by_hand():
    # two tokens, states 1: logits (0, log 3), so p = (1/4, 3/4); H = 1/4 log 4 + 3/4 log 4/3
    h = torch.ones(1, 1, requires_grad=True)
    w = torch.tensor([[0.0], [math.log(3)]])
    logp, entropy = likelihood(h, w, torch.tensor([1]))
    assert math.isclose(logp.item(), math.log(0.75), rel_tol=1e-6)
    assert math.isclose(entropy.item(), 0.25 * math.log(4) + 0.75 * math.log(4 / 3), rel_tol=1e-6)
    logp.sum().backward()
    assert math.isclose(h.grad.item(), 0.25 * math.log(3), rel_tol=1e-5)  # (1 - p_1) w_1 - p_0 w_0


def test_a_policy_gives_the_same_streams_and_gradient_with_the_chunked_head(monkeypatch):
    from posttrain.core.types import Prompt
    from posttrain.policies import language

    from . import tiny

    results = []
    for limit in (10**9, 1):  # never chunked, always chunked
        monkeypatch.setattr(language, "CHUNK", limit)
        policy = tiny.policy()
        rollouts = [
            policy.written(Prompt.text(str(i), "ab cd"), text) for i, text in enumerate(("hello", "a b", "xyz"))
        ]
        out = policy.forward(rollouts, ("logp_BT", "entropy_BT"))
        (out["logp_BT"].sum() + out["entropy_BT"].pow(2).sum()).backward()
        results.append((out["logp_BT"], out["entropy_BT"], torch.cat([p.grad.flatten() for p in policy.parameters()])))
    for want, got in zip(*results, strict=True):
        assert float(((got - want).norm() / want.norm()).detach()) < 1e-5
