"""Packed tokens give what padded rows give: hidden states, gradients, recomputed layers; the kernels' plain versions by hand."""

from __future__ import annotations

import pytest
import torch

from posttrain.models.elementwise import add_rms_norm, swiglu
from posttrain.models.fused_linear import fused_linear
from posttrain.models.layout import Rows, hidden_states, hidden_states_packed
from posttrain.models.lora import LoRALinear
from posttrain.models.packed import PackedBatch
from posttrain.models.rotate_and_gather import rotate_and_gather
from tests.models import tiny
from tests.policies.test_language import LENGTHS, calm_policy


def rows_of() -> Rows:
    return Rows.of(tiny.rows(LENGTHS))


def test_states_and_gradients_are_those_of_padded_rows():
    policy = calm_policy()
    rows = rows_of()
    found = []
    for which in ("padded", "packed"):
        policy.zero_grad()
        h_BTD, last_BD = (
            hidden_states(policy.model, rows, "padded")
            if which == "padded"
            else hidden_states_packed(policy.model, rows)
        )
        h_BTD = h_BTD * rows.real_BT.unsqueeze(-1)
        (h_BTD.pow(2).sum() + last_BD.pow(3).sum()).backward()
        grads = torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None])
        found.append((h_BTD.detach(), last_BD.detach(), grads))
    for want, got in zip(*found, strict=True):
        assert float((got - want).norm()) <= 1e-5 * float(want.norm())


def test_a_prompt_is_there_once():
    packed = PackedBatch.of(rows_of())
    prompts, answers = {s for s, _ in LENGTHS}, [t for _, t in LENGTHS]
    assert len(packed.tokens_N) == sum(prompts) + sum(answers)
    assert packed.longest_q == max(answers) and packed.longest_k == max(s + t for s, t in LENGTHS)


@pytest.mark.parametrize("recompute", [1, 2])
def test_recomputed_layers_change_nothing(recompute):
    model, packed = calm_policy().model, PackedBatch.of(rows_of())
    grads = []
    for n in (0, recompute):
        model.zero_grad()
        model.hidden_packed(packed, n).pow(2).sum().backward()
        grads.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    assert torch.equal(*grads)


def test_swiglu_by_hand():
    got = swiglu(torch.tensor([[0.0, 2.0, 5.0, 3.0]]))
    torch.testing.assert_close(got, torch.tensor([[0.0, 2.0 / (1 + 2.718281828**-2) * 3]]))


def test_a_quarter_turn_and_copies_for_every_sequence_that_attends():
    """Of two tokens with q, k, v in turn; the first is at a quarter turn, which takes (1, 0) to (0, 1) and (0, 1) to (-1, 0)."""
    packed = PackedBatch.of(rows_of())
    packed.rope = (torch.tensor([[0.0], [1.0]]), torch.tensor([[1.0], [0.0]]))
    packed.source_K = torch.tensor([0, 1, 0])
    qkv = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [5.0, 6.0]], [[1.0, 2.0], [3.0, 4.0], [7.0, 8.0]]], requires_grad=True)
    q, k, v = rotate_and_gather(qkv, 1, packed)
    assert q.tolist() == [[[0.0, 1.0]], [[1.0, 2.0]]]
    assert k.tolist() == [[[-1.0, 0.0]], [[3.0, 4.0]], [[-1.0, 0.0]]]
    assert v.tolist() == [[[5.0, 6.0]], [[7.0, 8.0]], [[5.0, 6.0]]]
    (k[0].sum() + 10 * k[2].sum() + 2 * v[0].sum() + v[2].sum()).backward()
    assert qkv.grad.tolist() == [[[0, 0], [11, -11], [3, 3]], [[0, 0], [0, 0], [0, 0]]]


def test_keys_are_listed_by_token():
    packed = PackedBatch.of(rows_of())
    for n in range(len(packed.tokens_N)):
        mine = packed.order_K[packed.first_N[n] : packed.first_N[n + 1]]
        assert mine.tolist() == (packed.source_K == n).nonzero().flatten().tolist() != []


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("frozen", [False, True])
def test_fused_layers_are_the_layers_side_by_side(bias, frozen):
    torch.manual_seed(0)
    layers = [torch.nn.Linear(4, n, bias=bias).double() for n in (3, 1, 2)]
    for layer in layers:
        layer.weight.requires_grad_(not frozen)
    x = torch.randn(5, 4, dtype=torch.double, requires_grad=True)
    given = [x, *(p for layer in layers for p in layer.parameters() if p.requires_grad)]
    up = torch.randn(5, 6, dtype=torch.double)
    got, want = fused_linear(layers, x), torch.cat([layer(x) for layer in layers], -1)
    torch.testing.assert_close(got, want)
    for a, b in zip(torch.autograd.grad(got, given, up), torch.autograd.grad(want, given, up), strict=True):
        torch.testing.assert_close(a, b)


def test_fused_layers_with_adapters_keep_them():
    layers = [LoRALinear.wrap(torch.nn.Linear(4, n), 2, 4.0, n) for n in (3, 2)]
    for layer in layers:
        torch.nn.init.normal_(layer.lora_b)
    x = torch.randn(5, 4)
    torch.testing.assert_close(
        fused_linear(layers, x), torch.cat([x @ layer.merged().T + layer.bias for layer in layers], -1)
    )


def test_a_norm_after_a_sum():
    """(1, 5) + (2, -1) = (3, 4), whose rms is sqrt(12.5)."""
    x, h = add_rms_norm(torch.tensor([[1.0, 5.0]]), torch.tensor([[2.0, -1.0]]), torch.tensor([1.0, 2.0]), 0.0)
    assert x.tolist() == [[3.0, 4.0]]
    torch.testing.assert_close(h, torch.tensor([[3.0, 8.0]]) / 12.5**0.5)
