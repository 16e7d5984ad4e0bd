"""The slot engine makes the same answers as plain sampling, whatever the slots; kernels' twins mean what they say."""

from itertools import chain

import pytest
import torch

from posttrain.core import rng
from posttrain.engines.native.choose import choose
from posttrain.engines.native.engine import Engine
from posttrain.engines.native.kernels import attend_plain, gate_plain, mass_plain
from posttrain.engines.sampling import Sampling, generate
from posttrain.models.decoder import Decoder
from posttrain.models.shape import DecoderConfig

SHAPES = {
    "llama": DecoderConfig(60, 32, 48, 2, 4, 2, 8),
    "qwen2": DecoderConfig(1500, 32, 48, 2, 4, 4, 8, qkv_bias=True, model_type="qwen2"),
    "qwen3": DecoderConfig(60, 32, 48, 2, 4, 1, 16, qk_norm=True, tied=False, model_type="qwen3"),
    "biases": DecoderConfig(60, 32, 48, 2, 4, 2, 8, qkv_bias=True, out_bias=True, mlp_bias=True),
}


def made(name: str) -> Decoder:
    torch.manual_seed(0)
    model = Decoder(SHAPES[name]).eval()
    for p in model.parameters():
        torch.nn.init.normal_(p, mean=float(p.dim() == 1), std=0.2)
    return model


CONTEXTS = [torch.arange(2, 2 + n) for n in (1, 4, 9, 3)]
KEYS = [[rng.key(p, i) for i in range(n)] for p, n in enumerate((3, 1, 4, 2))]


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("how", [Sampling(12), Sampling(12, temperature=0.0), Sampling(12, temperature=0.7, top_k=4)])
def test_same_answers_as_plain_sampling(name, how):
    model = made(name)
    want = generate(model, CONTEXTS, KEYS, how, [1, 5])
    got = Engine(model).generate(CONTEXTS, KEYS, how, [1, 5])
    for a, b in zip(chain(*want), chain(*got), strict=True):
        assert a.tokens.tolist() == b.tokens.tolist() and a.stopped == b.stopped
        torch.testing.assert_close(a.logp_T, b.logp_T, atol=1e-4, rtol=0)


def test_fewer_slots_than_answers_changes_nothing():
    model = made("llama")
    want = Engine(model).generate(CONTEXTS, KEYS, Sampling(12), [1])
    small = Engine(model, most=3)
    got = small.generate(CONTEXTS, KEYS, Sampling(12), [1])
    assert small.slots.count == 3
    assert [s.tokens.tolist() for g in got for s in g] == [s.tokens.tolist() for g in want for s in g]


def test_new_weights_are_seen_at_once():
    model = made("llama")
    engine = Engine(model)
    before = engine.generate(CONTEXTS, KEYS, Sampling(12), [1])
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn_like(p))
    again = engine.generate(CONTEXTS, KEYS, Sampling(12), [1])
    fresh = generate(model, CONTEXTS, KEYS, Sampling(12), [1])
    assert [s.tokens.tolist() for g in again for s in g] == [s.tokens.tolist() for g in fresh for s in g]
    assert [s.tokens.tolist() for g in again for s in g] != [s.tokens.tolist() for g in before for s in g]


def test_choose_draws_the_softmax():
    logits = torch.tensor([0.0, 1.0, 2.0, -1.0]).repeat(20000, 1)
    token, logp = choose(logits, torch.arange(20000) * 7919, torch.tensor(0), torch.tensor(1.0), Sampling())
    want = torch.softmax(logits[0], -1)
    share = torch.bincount(token, minlength=4) / len(token)
    assert (share - want).abs().max() < 4 * (0.25 / 20000) ** 0.5  # four standard errors at most
    torch.testing.assert_close(logp, torch.log(want)[token])


def test_two_levels_reach_every_block_and_never_an_impossible_token():
    logits = torch.full((4000, 2500), -torch.inf)
    logits[:, [3, 1023, 1024, 2499]] = 0.0  # a quarter each, in all three blocks of 1024
    token, _ = choose(logits, torch.arange(4000), torch.tensor(1), torch.tensor(1.0), Sampling())
    assert set(token.tolist()) == {3, 1023, 1024, 2499}


def test_twins_by_hand():
    # keys 0 and 1 at places 0 and 1, the rest out of sight: weights are softmax(0, 1/sqrt(4) * 2) = softmax(0, 1)
    q = torch.full((1, 1, 4), 0.5)
    keys = torch.zeros(1, 1, 3, 4)
    keys[0, 0, 1] = 1.0
    values = torch.tensor([0.0, 1.0, 9.0]).view(1, 1, 3, 1).expand(1, 1, 3, 4)
    out = attend_plain(q, keys, values, torch.tensor([1]))
    torch.testing.assert_close(out, torch.full((1, 1, 4), torch.sigmoid(torch.tensor(1.0)).item()))
    # rms of (3, 3) is 3: [3, 6] / 3 = [1, 2], so the gate is silu(1) * 2
    got = gate_plain(torch.tensor([[3.0, 6.0]]), torch.tensor([[3.0, 3.0]]), None, 0.0)
    torch.testing.assert_close(got, torch.tensor([[1.0 / (1 + 2.718281828**-1) * 2]]))
    z = torch.zeros(1, 1500)  # 1024 zeros, then 476
    torch.testing.assert_close(mass_plain(z, torch.tensor(1.0)), torch.log(torch.tensor([[1024.0, 476.0]])))
