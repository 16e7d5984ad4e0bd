"""bf16 weights learn what bf16 cannot hold; Muon's update has singular values about 1."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from posttrain.weights.masters import Masters
from posttrain.weights.optimisers import adamw, muon, orthogonal
from posttrain.weights.parallel import Local


def test_steps_below_the_rounding_of_bf16_add_up():
    p = nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    masters = Masters([("p", p)])
    optimiser = torch.optim.SGD([m for _, m in masters.named], lr=1.0)
    for _ in range(1000):  # each step moves by 1e-5; bf16 near 1 knows steps of 2^-8 = 0.0039
        optimiser.zero_grad()
        (1e-5 * p.float()).sum().backward()
        optimiser.step()
        masters.publish()
    torch.testing.assert_close(masters.named[0][1].detach(), torch.full((3,), 0.99), atol=1e-4, rtol=0)
    assert p.dtype == torch.bfloat16 and torch.equal(p.detach(), torch.full((3,), 0.99).bfloat16())


def test_pieces_are_summed_in_float32():
    p = nn.Parameter(torch.ones(1, dtype=torch.bfloat16))
    masters = Masters([("p", p)])
    for g in (1.0, 2.0**-9, 2.0**-9):  # in bf16 the small ones would vanish beside 1
        (g * p).sum().backward()
    assert p.grad is None and masters.named[0][1].grad.item() == 1 + 2.0**-8


def test_a_second_learner_of_the_same_weights_has_their_gradients():
    """Phases of a plan train one policy one after another."""
    p = nn.Parameter(torch.ones(1, dtype=torch.bfloat16))
    first, second = Masters([("p", p)]), Masters([("p", p)])
    (3 * p).sum().backward()
    assert first.named[0][1].grad is None and second.named[0][1].grad.item() == 3


def test_float32_needs_no_copy_and_a_checkpoint_brings_masters_back():
    q = nn.Parameter(torch.ones(2))
    assert Masters([("q", q)]).named[0][1] is q
    p = nn.Parameter(torch.zeros(2, dtype=torch.bfloat16))
    masters = Masters([("p", p), ("q", q)])
    assert set(masters.tensors()) == {"p"}
    masters.load({"p": torch.tensor([0.1, 0.2])})
    assert torch.equal(p.detach(), torch.tensor([0.1, 0.2]).bfloat16())


def test_orthogonal_has_singular_values_about_one():
    for shape in ((8, 5), (5, 8)):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
        s = torch.linalg.svdvals(orthogonal(x))
        assert s.min() > 0.5 and s.max() < 1.3  # five rounds bring them near 1, not to it
        u, _, v = torch.linalg.svd(x, full_matrices=False)
        assert (orthogonal(x) * (u @ v)).sum() > 0.9 * orthogonal(x).norm() * (u @ v).norm()


@pytest.mark.derived("optimiser/muon")
def test_muon_moves_matrices_and_leaves_vectors_to_adam():
    w, b = nn.Parameter(torch.zeros(4, 6)), nn.Parameter(torch.zeros(4))
    optimiser = muon([("layer.weight", w), ("layer.bias", b)], lr=0.1)
    g = torch.Generator().manual_seed(0)
    w.grad, b.grad = torch.randn(4, 6, generator=g), torch.tensor([3.0, -2.0, 1.0, 0.5])
    optimiser.step()
    want = -0.1 * 0.2 * 6**0.5 * orthogonal(1.95 * w.grad)  # first step: momentum m = g, Nesterov g + 0.95 m
    torch.testing.assert_close(w.detach(), want)
    torch.testing.assert_close(
        b.detach(), -0.1 * torch.sign(b.grad), atol=1e-5, rtol=0
    )  # Adam's first step is the sign


def test_adam_of_muon_is_torchs():
    p, q = (nn.Parameter(torch.tensor([1.0, -2.0])) for _ in range(2))
    ours, theirs = muon([("norm", p)], lr=0.01), adamw([("norm", q)], lr=0.01)
    for step in range(4):
        for x, o in ((p, ours), (q, theirs)):
            x.grad = torch.tensor([0.3 * step - 0.5, 1.0])
            o.step()
    torch.testing.assert_close(p.detach(), q.detach(), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("norm", [1.0, math.inf, math.nan])
def test_a_fused_step_is_the_step_of_one_that_waits_and_none_where_a_norm_is_not_finite(norm: float) -> None:
    """The device decides: what the host sees is the same, bit for bit, the moments and their count included."""
    order: list[str] = []

    def made(fused: bool) -> tuple[Masters, torch.optim.Optimizer, list[bool]]:
        p = nn.Parameter(torch.linspace(-1, 1, 7).to(torch.bfloat16))
        masters = Masters([("p", p)])
        optimiser = torch.optim.AdamW([masters.named[0][1]], lr=0.1, fused=True)
        moved = []
        for each in (1.0, norm, 1.0):
            masters.named[0][1].grad = torch.linspace(1, 2, 7)
            given = torch.tensor(each) if fused else each
            moved.append(masters.step(optimiser, (given, 0.0), lambda: order.append("meanwhile")))
        return masters, optimiser, moved

    (one, a, moved), (other, b, waited) = made(True), made(False)
    assert moved == waited == [True, math.isfinite(norm), True] and len(order) == 6
    assert not hasattr(a, "found_inf")
    for x, y in ((one.named[0][1], other.named[0][1]), (one.copies[0][0], other.copies[0][0])):
        assert torch.equal(x, y)
    (mine,), (theirs,) = a.state.values(), b.state.values()
    assert mine.keys() == theirs.keys() and all(torch.equal(mine[k], theirs[k]) for k in mine)
    assert float(mine["step"]) == 2 + math.isfinite(norm)


@pytest.mark.parametrize("bad", [(math.nan, 1.0), (1.0, math.inf), (1.0, -math.inf)])
@pytest.mark.parametrize("there", [(True, True), (True, False), (False, True), (False, False)])
def test_one_norm_that_is_not_finite_is_enough(bad: tuple[float, float], there: tuple[bool, bool]) -> None:
    """Wherever it is: on the device, or already here."""
    p = nn.Parameter(torch.ones(3))
    optimiser = torch.optim.AdamW([p], lr=0.1, fused=True)
    p.grad = torch.ones(3)
    norms = [torch.tensor(norm) if on else norm for norm, on in zip(bad, there, strict=True)]
    assert not Masters([("p", p)]).step(optimiser, norms)
    assert torch.equal(p.detach(), torch.ones(3)) and not hasattr(optimiser, "found_inf")


@pytest.mark.parametrize("kind", ["fused", "plain", "sgd"])
def test_what_can_be_done_meanwhile_is_done_once_all_is_launched(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a fused AdamW can leave it to the device; others must know the norm first."""
    p = nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    masters, order = Masters([("p", p)]), list[str]()
    named = [masters.named[0][1]]
    optimiser = torch.optim.SGD(named, lr=0.1) if kind == "sgd" else torch.optim.AdamW(named, fused=kind == "fused")
    optimiser.register_step_post_hook(lambda *_: order.append("step"))
    publish = masters.publish
    monkeypatch.setattr(masters, "publish", lambda: (order.append("publish"), publish())[1])
    named[0].grad = torch.ones(3)
    assert masters.step(optimiser, (torch.tensor(1.0), 0.0), lambda: order.append("meanwhile"))
    launched = ["step", "publish"]
    assert order == ([*launched, "meanwhile"] if kind == "fused" else ["meanwhile", *launched])


@pytest.mark.parametrize("max_norm", [0.5, 100.0])
def test_a_norm_that_stays_on_the_device_is_torchs(max_norm: float, monkeypatch: pytest.MonkeyPatch) -> None:
    def made() -> list[tuple[str, nn.Parameter]]:
        draw, out = torch.Generator().manual_seed(0), []
        for name, shape in (("a", (3, 5)), ("b", (7,)), ("c", (2, 2, 2))):
            p = nn.Parameter(torch.zeros(shape))
            p.grad = torch.randn(shape, generator=draw)
            out.append((name, p))
        return [*out, ("none", nn.Parameter(torch.zeros(2)))]

    one, other = made(), made()
    want = nn.utils.clip_grad_norm_([p for _, p in one], max_norm)
    assert Local().clip(made(), max_norm) == float(want)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    norm = Local().clip(other, max_norm)
    assert isinstance(norm, torch.Tensor) and torch.equal(norm, want)
    assert all(torch.equal(x.grad, y.grad) for (_, x), (_, y) in zip(one[:3], other[:3], strict=True))
    assert Local().clip(other[3:], max_norm) == 0.0
