"""Tokens end to end are padded rows: states, gradients, recomputed layers; the kernels' plain paths are what they replace."""

from __future__ import annotations

import pytest
import torch

from posttrain.models.elementwise import gated, turned
from posttrain.models.rows import Rows, states, streamed
from posttrain.models.stream import Stream
from tests.models import tiny
from tests.models.test_language import LENGTHS, calm_policy


def rows_of() -> Rows:
    return Rows.of(tiny.rollouts(LENGTHS))


def test_states_and_gradients_are_those_of_padded_rows():
    policy = calm_policy()
    rows = rows_of()
    found = []
    for which in ("padded", "stream"):
        policy.zero_grad()
        h_BTD, last_BD = states(policy.model, rows, "padded") if which == "padded" else streamed(policy.model, rows)
        h_BTD = h_BTD * rows.real_BT.unsqueeze(-1)
        (h_BTD.pow(2).sum() + last_BD.pow(3).sum()).backward()
        grads = torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None])
        found.append((h_BTD.detach(), last_BD.detach(), grads))
    for want, got in zip(*found, strict=True):
        assert float((got - want).norm()) <= 1e-5 * float(want.norm())


def test_a_prompt_is_there_once():
    stream = Stream.of(rows_of())
    prompts, answers = {s for s, _ in LENGTHS}, [t for _, t in LENGTHS]
    assert len(stream.tokens_N) == sum(prompts) + sum(answers)
    assert stream.longest_q == max(answers) and stream.longest_k == max(s + t for s, t in LENGTHS)


@pytest.mark.parametrize("recompute", [1, 2])
def test_recomputed_layers_change_nothing(recompute):
    model, stream = calm_policy().model, Stream.of(rows_of())
    grads = []
    for n in (0, recompute):
        model.zero_grad()
        model.streamed(stream, n).pow(2).sum().backward()
        grads.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    assert torch.equal(*grads)


def test_gate_and_turn_by_hand():
    a, b = torch.tensor([0.0, 2.0]), torch.tensor([5.0, 3.0])
    torch.testing.assert_close(gated(a, b), torch.tensor([0.0, 2.0 / (1 + 2.718281828**-2) * 3]))
    # a quarter turn takes (1, 0) to (0, 1) and (0, 1) to (-1, 0)
    x = torch.tensor([[[1.0, 0.0], [0.0, 1.0]]])
    got = turned(x, torch.zeros(1, 1), torch.ones(1, 1))
    torch.testing.assert_close(got, torch.tensor([[[0.0, 1.0], [-1.0, 0.0]]]))
