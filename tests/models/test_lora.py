"""LoRA starts as the model, learns only the adapters, and is worth the same merged, sampled and exported."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from posttrain.core.errors import UserError
from posttrain.core.sampling import Sampling
from posttrain.inference.engine import Engine
from posttrain.methods.grpo import grpo
from posttrain.models.lora import LoRALinear, add_lora, merged_state
from posttrain.models.sampling import generate
from posttrain.policies.load import load_model, save_model
from posttrain.weights.learner import Learner
from tests.models import tiny


def adapted(**changes):
    policy = add_lora(tiny.policy(tiny.decoder(**changes)), 4)
    for i, p in enumerate(p for n, p in policy.named_parameters() if "lora" in n):
        nn.init.normal_(p, std=0.2, generator=torch.Generator().manual_seed(i))
    return policy


def test_a_layer_by_hand():
    linear = nn.Linear(2, 1, bias=False)
    nn.init.constant_(linear.weight, 1.0)
    layer = LoRALinear.wrap(linear, 1, 3.0, "x")
    layer.lora_a.data, layer.lora_b.data = torch.tensor([[2.0, 0.0]]), torch.tensor([[5.0]])
    # W x + 3 * 5 * (2 x1) = (x1 + x2) + 30 x1
    assert layer(torch.tensor([[1.0, 4.0]])).item() == 35.0
    assert layer.merged().tolist() == [[31.0, 1.0]]


def test_it_starts_as_the_model_and_trains_the_adapters_alone():
    policy = tiny.policy()
    before = {k: v.clone() for k, v in policy.state_dict().items()}
    rollouts = tiny.rollouts()
    want = policy.forward(rollouts)["logp_BT"]
    add_lora(policy, 2)
    torch.testing.assert_close(policy.forward(rollouts)["logp_BT"], want)
    learner = Learner(policy, grpo, lr=0.1)
    assert (
        all("lora" in name for name, _ in learner.named_parameters()) and len(learner.named_parameters()) == 2 * 7 * 2
    )
    policy.forward(rollouts)["logp_BT"].sum().backward()
    learner.optimiser.step()
    after = policy.state_dict()
    assert all(torch.equal(after[k], v) for k, v in before.items())
    assert any(after[k].abs().sum() > 0 for k in after if k.endswith("lora_b"))


def test_the_engine_samples_the_adapted_model_and_sees_it_learn():
    policy = adapted()
    contexts, keys = [torch.tensor([3, 4, 5])], [[1, 2, 3]]
    engine = Engine(policy.model)
    for _ in range(2):
        want = generate(policy.model, contexts, keys, Sampling(10), [1])
        got = engine.generate(contexts, keys, Sampling(10), [1])
        assert [s.tokens.tolist() for s in got[0]] == [s.tokens.tolist() for s in want[0]]
        with torch.no_grad():
            for p in policy.parameters():
                if p.requires_grad:
                    p.mul_(-1.5)


def test_export_writes_the_sum(tmp_path):
    policy = adapted()
    save_model(policy, tmp_path)
    plain = load_model(str(tmp_path), "cpu")
    assert not any("lora" in k for k in plain.state_dict())
    rollouts = tiny.rollouts()
    torch.testing.assert_close(
        plain.forward(rollouts)["logp_BT"], policy.forward(rollouts)["logp_BT"], atol=1e-5, rtol=1e-5
    )
    assert set(merged_state(policy.model)) == set(tiny.policy(tiny.decoder()).model.state_dict())


def test_draws_belong_to_the_seed():
    a, b, c = (dict(add_lora(tiny.policy(), 2, seed=s).named_parameters()) for s in (0, 0, 1))
    name = next(n for n in a if n.endswith("lora_a"))
    assert torch.equal(a[name], b[name]) and not torch.equal(a[name], c[name])


def test_a_model_without_projections():
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = nn.Sequential(nn.Linear(2, 2))

    with pytest.raises(UserError, match="--lora"):
        add_lora(Odd(), 2)


def test_a_rank_beyond_the_layers_own_is_refused_before_it_takes_all_memory():
    with pytest.raises(
        UserError, match="--lora 65536 is more than the rank of the layers themselves, which is at most"
    ):
        add_lora(tiny.policy(), 65_536)
