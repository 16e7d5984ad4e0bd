"""AdamW with moments of 8 bits: near AdamW, a quarter of its state, and resumed bit for bit."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from posttrain.core.errors import UserError
from posttrain.core.registry import find
from posttrain.weights.adamw_8bit import adamw_8bit, levels, pack, unpack
from posttrain.weights.learner import Learner
from posttrain.weights.optimisers import adamw
from tests.runs import tiny_run


def draw(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.derived("optimiser/adamw-8bit")
def test_the_first_update_of_a_small_tensor_is_adamws() -> None:
    """m = .1 g, v = .05 g^2; corrected m / sqrt(v) = g / |g|: p <- (1 - .1 x .5) p - .1 sign(g); the second in the comment below.

    g2 = 1 after g1 = 2: m = (.9 x .2 + .1 x 1) / (1 - .81) = .28 / .19; v = (.95 x .2 + .05) / (1 - .9025) = .24 / .0975
    """
    p = nn.Parameter(torch.tensor([[1.0, -1.0]]))
    step = adamw_8bit([("w", p)], lr=0.1, weight_decay=0.5)
    p.grad = torch.tensor([[2.0, -3.0]])
    step.step()
    torch.testing.assert_close(p.data, torch.tensor([[0.85, -0.85]]), atol=1e-6, rtol=0)
    p.grad = torch.tensor([[1.0, 0.0]])
    step.step()
    assert float(p.detach()[0, 0]) == pytest.approx(
        0.85 * 0.95 - 0.1 * (0.28 / 0.19) / math.sqrt(0.24 / 0.0975), abs=1e-6
    )


def test_levels_have_equal_ratios() -> None:
    """Signed: 127 levels from 1e-6 to 1, each 10^(6/126) = 1.116 times the one before."""
    table = levels(True, torch.device("cpu"))
    assert len(table) == 128 and table[0] == 0 and table[-1] == 1
    torch.testing.assert_close(table[2:] / table[1:-1], torch.full((126,), 10 ** (6 / 126)), rtol=1e-4, atol=0)


@pytest.mark.parametrize("signed", [True, False])
def test_a_value_comes_back_as_one_of_its_two_levels_and_right_on_average(signed: bool) -> None:
    x = torch.randn(1000, generator=draw(1)) * (1 if signed else 0) + (0 if signed else 1) * torch.rand(
        1000, generator=draw(2)
    )
    ratio = 10 ** (6 / 126) if signed else 10 ** (7 / 254)
    total = torch.zeros_like(x)
    for seed in range(400):
        code, scale = pack(x, signed, draw(seed))
        back = unpack(code, scale, signed)
        near = x.abs() > 1e-5
        assert code.dtype is torch.uint8 and len(scale) == 4 and bool((back.sign() == x.sign())[near].all())
        assert float((back / x)[near].max()) < ratio * 1.0001 and float((x / back)[near].max()) < ratio * 1.0001
        total += back
    assert (
        float(((total / 400) / x - 1)[near].abs().mean()) < 0.004
    )  # sd of one is about ratio / 4, of the mean a twentieth


def test_a_second_moment_is_never_rounded_to_nothing() -> None:
    """m / (sqrt(v) + eps) would be 1e8 times too large; a moment that is 0 stays 0."""
    x = torch.tensor([1.0] + [1e-9] * 100 + [0.0] * 155)
    code, scale = pack(x, False, draw())
    assert bool((code[1:101] == 1).all()) and bool((code[101:] == 0).all()) and scale.tolist() == [1.0]


def test_it_learns_as_adamw_does_with_a_quarter_of_the_state() -> None:
    """Least squares in 8,192 weights whose gradients differ by factors of up to 1,000."""
    scale = torch.logspace(-1.5, 1.5, 128)
    target = torch.randn(64, 128, generator=draw(3))

    def loss_after(make: Any) -> tuple[float, float]:
        w = nn.Parameter(torch.zeros(64, 128))
        step = make([("w", w)], lr=0.05)
        for k in range(150):
            x = torch.randn(64, 128, generator=draw(100 + k)) * scale
            step.zero_grad()
            ((w - target) * x).square().mean().backward()
            step.step()
        size = sum(s.numel() * s.element_size() for s in step.state[w].values())
        return float((w.detach() - target).square().mean()), size / w.numel()

    (exact, whole), (ours, bytes) = loss_after(adamw), loss_after(adamw_8bit)
    assert whole == pytest.approx(8, abs=0.01) and bytes == pytest.approx(2 + 8 / 256, abs=0.01)
    assert ours < 0.05 and ours < 2 * exact + 0.01


def test_pieces_make_no_difference_but_of_the_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tensor of 20 blocks and a bit, also one whose memory is transposed: every piece uses the scales of its own blocks."""
    out = []
    for piece in (1 << 22, 512):
        monkeypatch.setattr("posttrain.weights.adamw_8bit._PIECE", piece)
        w = nn.Parameter(torch.zeros(71, 73).t())
        step = adamw_8bit([("w", w)], lr=0.1)
        for k in range(3):
            w.grad = torch.randn(73, 71, generator=draw(k)) * torch.logspace(-3, 3, 73).unsqueeze(1)
            step.step()
        out.append((w.detach().clone(), step.state[w]["m_scale"]))
    assert len(out[0][1]) == -(-71 * 73 // 256)
    torch.testing.assert_close(out[0][1], out[1][1], rtol=0.12, atol=0)  # a level is 11.6%
    torch.testing.assert_close(out[0][0], out[1][0], rtol=0, atol=0.06)


def learner() -> Learner:
    method = tiny_run.method().but(optimiser="adamw_8bit")
    return Learner(tiny_run.policy(), method, 0, 3e-3)


def advance(one: Learner, steps: range) -> None:
    for step in steps:
        generator = draw(step)
        for _, p in one.named_parameters():
            p.grad = torch.randn(p.shape, generator=generator)
        one._step(1.0)


def test_resumed_bit_for_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("posttrain.weights.adamw_8bit._SMALL", 100)  # the tiny model's matrices count as large
    whole, first, second = learner(), learner(), learner()
    advance(whole, range(6))
    advance(first, range(3))
    second.load(first.tensors(), first.state())
    advance(second, range(3, 6))
    assert any(k.endswith("|m8") for k in first.tensors()["optimiser"])
    for name, table in whole.tensors().items():
        for key, x in table.items():
            assert x.equal(second.tensors()[name][key]), (name, key)


@pytest.mark.parametrize("part", ["adamw", "adamw_8bit", "muon"])
@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"betas": (0.9, 1.0)}, "two numbers from 0 to below 1"),
        ({"betas": 0.9}, r"betas of \S+ is 0.9; expected \(a number, a number\)"),
        ({"weight_decay": -1.0}, "weight_decay is -1.0"),
        ({"eps": math.nan}, r"eps of \S+ is nan"),
        ({"lr": math.inf}, r"lr of \S+ is inf"),
        ({"weight_decay": "much"}, r"weight_decay of \S+ is 'much'"),
    ],
)
def test_settings_out_of_range_are_one_sentence(part: str, wrong: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError, match=told):
        Learner(tiny_run.policy(), tiny_run.method().but(optimiser=find(part, "optimiser").but(**wrong)))


def test_momentum_is_below_1() -> None:
    with pytest.raises(UserError, match="momentum is 1"):
        Learner(tiny_run.policy(), tiny_run.method().but(optimiser=find("sgd", "optimiser").but(momentum=1.0)))


def test_the_command_line_knows_it() -> None:
    assert find("adamw-8bit", "optimiser").name == "adamw-8bit"
