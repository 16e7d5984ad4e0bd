"""Rows with a sequence of padding after them give what they give without it; captured graphs, on a GPU, give the same bits."""

from __future__ import annotations

import pytest
import torch

from posttrain.core.turn import Observation, Turn
from posttrain.models.captured import Passes, accumulate, likelihood_of, padded, room, rounded
from posttrain.models.decoder import Decoder
from posttrain.models.layout import Rows
from posttrain.models.shape import DecoderConfig
from posttrain.policies.language import LanguagePolicy
from posttrain.weights.masters import Masters


def tiny() -> Decoder:
    torch.manual_seed(0)
    return Decoder(DecoderConfig(50, 32, 64, 2, 4, 2, 8, tied=True))


def turns(sizes: list[tuple[int, list[int]]]) -> list[Turn]:
    """(length of a prompt, lengths of its answers)"""
    draw, made = torch.Generator().manual_seed(1), []
    for prompt, answers in sizes:
        seen = Observation(torch.randint(0, 50, (prompt,), generator=draw))
        for n in answers:
            made.append(Turn.of(seen, torch.randint(0, 50, (n,), generator=draw), torch.zeros(n)))
    return made


SIZES = [(3, [5, 2]), (7, [1]), (130, [4, 9, 33])]


def test_padding_changes_no_log_probability_and_no_gradient():
    model, rows = tiny(), turns(SIZES)
    expected = LanguagePolicy(model, None).forward(rows)["logp_BT"]
    weight = torch.randn(expected.shape, generator=torch.Generator().manual_seed(2))
    (expected * weight).sum().backward()
    grads = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    laid_rows = Rows.of(rows)
    laid = padded(laid_rows)
    logp_M = likelihood_of(model, laid, laid.numbers, 1.0)
    real_BT = laid_rows.real_BT
    torch.testing.assert_close(logp_M[: laid.real], expected[real_BT].detach(), atol=1e-5, rtol=0)
    (logp_M[: laid.real] * weight[real_BT]).sum().backward()
    for n, p in model.named_parameters():
        torch.testing.assert_close(p.grad, grads[n], atol=1e-4, rtol=1e-4)


def test_sizes_come_back_for_rows_of_other_lengths():
    # 211 and 214 tokens: both 256 + padding, as 16 sizes lie between two powers of two
    one, other = (padded(Rows.of(turns([(3, [5, n]), (7, [1]), (130, [4, 9, 33])]))) for n in (2, 5))
    assert one.real != other.real and one.kind == other.kind
    assert [rounded(n) for n in (1, 64, 65, 2048, 2049, 6144, 6145)] == [64, 64, 128, 2048, 2176, 6144, 6400]


def test_gradients_are_added_to_the_masters():
    p = torch.nn.Parameter(torch.zeros(3, dtype=torch.bfloat16))
    masters, grad = Masters([("p", p)]), torch.tensor([1.0, 2.0, 3.0], dtype=torch.bfloat16)
    accumulate([(p, grad)])
    accumulate([(p, grad)])
    assert p.grad is None
    assert masters.named[0][1].grad.tolist() == [2.0, 4.0, 6.0]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="graphs are captured on a GPU")
def test_a_replayed_pass_gives_the_bits_of_a_launched_one():
    model = tiny().cuda().to(torch.bfloat16)
    masters, rows, passes = Masters(model.named_parameters()), turns(SIZES), Passes(model)
    seen = []
    for _ in range(4):  # launched, captured, replayed, replayed
        logp_M = passes.likelihood(Rows.of(rows), 1.0)
        logp_M.square().sum().backward()
        seen.append((logp_M.detach().clone(), [p.grad.clone() for _, p in masters.named]))
        for _, p in masters.named:
            p.grad = None
    assert len(passes.kept) == 1
    for logp_M, grads in seen[1:]:
        assert torch.equal(logp_M, seen[0][0])
        assert all(torch.equal(a, b) for a, b in zip(grads, seen[0][1], strict=True))


def test_where_nothing_can_be_captured_every_pass_is_launched_with_the_same_padding(monkeypatch, capsys):
    """A driver that refuses is told of once; sizes and kernels stay those of passes that were not captured yet."""

    def refuse(*_):
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    monkeypatch.setattr("posttrain.models.captured.Captured", refuse)
    monkeypatch.setattr("posttrain.models.captured.half_precision", lambda model: True)
    monkeypatch.setattr("posttrain.models.captured.layers_to_recompute", lambda *_: 0)
    monkeypatch.setattr("posttrain.models.captured.room", lambda device: True)
    monkeypatch.setattr("torch.cuda.graph_pool_handle", lambda: None)
    monkeypatch.setattr("torch.Tensor.pin_memory", lambda x: x)
    passes, rows = Passes(tiny()), Rows.of(turns(SIZES))
    seen = [passes.likelihood(rows, 1.0) for _ in range(3)]
    assert all(x is not None and torch.equal(x, seen[0]) for x in seen)
    assert capsys.readouterr().err.count("cannot be captured here (operation not permitted") == 1


@pytest.mark.parametrize(
    ("free", "reserved", "allocated", "expected"), [(60, 10, 5, True), (40, 30, 5, True), (40, 10, 5, False)]
)
def test_a_graph_is_made_only_where_half_of_the_card_is_free(monkeypatch, free, reserved, allocated, expected):
    """Of 100: what is free, and what this process holds and does not use."""
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda device: (free, 100))
    monkeypatch.setattr("torch.cuda.memory_reserved", lambda device: reserved)
    monkeypatch.setattr("torch.cuda.memory_allocated", lambda device: allocated)
    assert room(torch.device("cuda")) is expected


def test_a_weight_that_is_replaced_or_frozen_makes_another_kind_of_pass():
    """A graph reads the addresses that it was captured with. What is frozen is never moved, and a tied matrix may be told twice."""
    model = tiny()
    passes = Passes(model)
    before = passes.addresses()
    assert set(before) == {p.data_ptr() for p in model.parameters()} and passes.addresses() == before
    block = model.model.layers[0]
    block.mlp.down_proj.weight = torch.nn.Parameter(block.mlp.down_proj.weight.detach().clone())
    after = passes.addresses()
    assert len(after) == len(before) and sum(a != b for a, b in zip(after, before, strict=True)) == 1
    block.mlp.down_proj.weight.requires_grad_(False)
    assert passes.addresses() == [x for x in after if x != block.mlp.down_proj.weight.data_ptr()]


def test_a_pass_of_replaced_weights_is_not_taken_for_one_that_was_seen(monkeypatch):
    monkeypatch.setattr("posttrain.models.captured.half_precision", lambda model: True)
    monkeypatch.setattr("posttrain.models.captured.layers_to_recompute", lambda *_: 0)
    monkeypatch.setattr("posttrain.models.captured.room", lambda device: False)
    monkeypatch.setattr("torch.Tensor.pin_memory", lambda x: x)
    passes, rows = Passes(tiny()), Rows.of(turns(SIZES))
    passes.likelihood(rows, 1.0)
    passes.likelihood(rows, 1.0)
    assert len(passes.seen) == 1
    norm = passes.model.model.norm
    norm.weight = torch.nn.Parameter(norm.weight.detach().clone())
    passes.likelihood(rows, 1.0)
    assert len(passes.seen) == 2
