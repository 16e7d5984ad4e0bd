"""SALSA: the reference is the average of two fine-tunings, and the plan makes both of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from claims.worlds.tabular import TabularPolicy
from posttrain.api import run_plan
from posttrain.core.config import Config
from posttrain.core.errors import UserError
from posttrain.core.plan import Context, Phase
from posttrain.core.registry import find
from posttrain.core.sampling import Sampling
from posttrain.methods.ppo import ppo
from posttrain.runs.in_memory import numbered
from posttrain.systems.policy_gradient.salsa import salsa
from posttrain.weights.soup import soup


def filled(x: float) -> TabularPolicy:
    policy = TabularPolicy(1, 1, 2, memory=False)
    with torch.no_grad():
        policy.table.copy_(torch.tensor([[[[x, 0.0]]]]))
    return policy


def started(*policies: TabularPolicy, **params: float) -> Any:
    live: Any = find("soup", "reference").but(**params).live()
    for policy in policies:
        live.start(policy)
    return live


@pytest.mark.derived("reference/soup")
def test_the_soup_is_the_weighted_mean() -> None:
    # .5 * 1 + .5 * 3 = 2; alpha .25: .25 * 1 + .75 * 3 = 2.5; started once it is that policy
    assert started(filled(1.0), filled(3.0)).policy.table.flatten().tolist() == [2.0, 0.0]
    assert started(filled(1.0), filled(3.0), alpha=0.25).policy.table.flatten().tolist() == [2.5, 0.0]
    assert started(filled(1.0)).policy.table.flatten().tolist() == [1.0, 0.0]


def test_the_soup_is_a_copy_and_stays() -> None:
    one, two = filled(1.0), filled(3.0)
    live = started(one, two)
    with torch.no_grad():
        one.table.add_(5.0)
        two.table.add_(5.0)
    live.after_step(one, 0)
    assert live.policy.table.flatten().tolist() == [2.0, 0.0]
    assert not any(p.requires_grad for p in live.policy.parameters())
    # its log-probabilities are of the averaged logits: log softmax(2, 0)
    (rollout,) = one.sample(numbered(1).prompts, 1, Sampling(), 0)[0]
    expected = torch.log_softmax(torch.tensor([2.0, 0.0]), 0)[rollout.actions[0]]
    torch.testing.assert_close(live.streams([rollout.row], ["logp_BT"])["logp_BT"][0, 0], expected)


def test_what_follows_what() -> None:
    made = salsa(questions=32, warmup=3, epochs=5, beta=0.1, alpha=0.3)
    assert [part.name for part in made.walk(Context(None, None, {}))] == ["", "sft", "sft-other", "ppo"]
    phases = {p.name: p for p in made.parts if isinstance(p, Phase)}
    context = Context(None, Config(task="word_problems", prompts=16), {})
    assert [p.steps(context) for p in phases.values() if callable(p.steps)] == [6, 6, 10]
    assert (phases["sft"].role, phases["sft-other"].role, phases["ppo"].role) == ("policy", "other", "policy")
    assert phases["ppo"].reference == "other" and phases["ppo"].method.reference.name == soup.name
    base, other = ppo.describe(), phases["ppo"].method.describe()
    assert {k for k in base if base[k] != other[k]} == {"name", "shaping", "reference"}
    with pytest.raises(UserError, match="warmup=0"):
        salsa(warmup=0)


def test_the_whole_of_it(tmp_path: Path) -> None:
    settings = Config(
        name="s",
        task="word_problems",
        reward="task",
        prompts=2,
        num_generations=2,
        eval_problems=2,
        sampling=Sampling(max_tokens=16),
    )
    summary = run_plan(find("salsa(questions=4,warmup=1,epochs=1)", "plan")(), settings, tmp_path)
    assert summary["plan"] == "salsa" and not summary["stopped"]
