"""4-bit weights: close to the original, the same in sampler and trainer, with adapters that are trained beside them."""

from __future__ import annotations

from importlib.util import find_spec

import pytest
import torch
from torch import nn

from posttrain.core.config import Config
from posttrain.core.errors import UserError
from posttrain.core.sampling import Sampling
from posttrain.core.types import Prompt
from posttrain.models.four_bit import FourBit
from posttrain.models.lora import LoRALinear, add_lora, merged_state
from posttrain.policies.load import load_model

pytestmark = pytest.mark.skipif(find_spec("bitsandbytes") is None, reason="needs posttrain[4bit]")


def linear() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(128, 64)


def test_a_quantized_matrix_is_near_and_its_product_exact() -> None:
    plain = linear()
    packed = FourBit(plain, "cpu")
    assert packed.packed.numel() * 2 == plain.weight.numel() and packed.absmax.numel() * 64 == plain.weight.numel()
    wide = packed.dequantized()
    # 16 levels for values of one block: NF4 is off by about a tenth of the mean size
    assert 0.02 < float(((wide - plain.weight).abs().mean() / plain.weight.abs().mean()).detach()) < 0.15
    x = torch.randn(5, 128, requires_grad=True)
    y = packed(x)
    torch.testing.assert_close(y, x @ wide.T + plain.bias)
    up = torch.randn(5, 64)
    (grad,) = torch.autograd.grad((y * up).sum(), x)
    torch.testing.assert_close(grad, up @ wide)


def test_the_adapter_is_that_of_a_plain_layer() -> None:
    packed = FourBit(linear(), "cpu")
    same = linear()
    same.weight.data = packed.dequantized()
    packed.adapt(4, 8.0, 0, "layer")
    beside = LoRALinear.wrap(same, 4, 8.0, 0, "layer")
    for layer in (packed, beside):
        nn.init.normal_(layer.lora_b, generator=torch.Generator().manual_seed(1))
    x = torch.randn(3, 128)
    torch.testing.assert_close(packed(x), beside(x))
    torch.testing.assert_close(packed.merged(), beside.merged())
    for layer in (packed, beside):
        layer(x).square().sum().backward()
    torch.testing.assert_close(packed.lora_a.grad, beside.lora_a.grad)
    torch.testing.assert_close(packed.lora_b.grad, beside.lora_b.grad)


def test_sampler_and_trainer_agree_and_the_sum_can_be_written() -> None:
    policy = add_lora(load_model("pocket", "cpu", bits=4), 4)
    assert sum(isinstance(m, FourBit) for m in policy.modules()) == 7 * policy.model.config.num_layers
    for name, p in policy.named_parameters():
        assert p.requires_grad == name.endswith(("lora_a", "lora_b"))
        if name.endswith("lora_b"):
            nn.init.normal_(p, std=0.02)
    ((r, *_),) = policy.sample([Prompt.text("q", "What is 12+30?")], 2, Sampling(12))
    logp_T = policy.forward([r])["logp_BT"][0, : len(r)].detach()
    torch.testing.assert_close(logp_T, r.logp_T, atol=1e-4, rtol=0)
    whole = load_model("pocket", "cpu")
    whole.model.load_state_dict(merged_state(policy.model))
    torch.testing.assert_close(whole.forward([r])["logp_BT"][0, : len(r)].detach(), logp_T, atol=1e-4, rtol=0)


def test_settings_that_make_no_sense_are_sentences() -> None:
    with pytest.raises(UserError, match="--lora 16"):
        Config(bits=4)
    with pytest.raises(UserError, match="use 4"):
        Config(bits=8, lora=4)
