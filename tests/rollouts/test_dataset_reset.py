"""Answers that begin in the middle of a demonstration."""

from __future__ import annotations

import pytest
import torch

from claims.worlds.tabular import TabularPolicy
from posttrain.core.assemble import assemble
from posttrain.core.errors import UserError
from posttrain.core.protocols import RolloutRequest
from posttrain.core.sampling import Sampling
from posttrain.core.types import Prompt
from posttrain.policies.load import load_model
from posttrain.runs.in_memory import row
from posttrain.systems.policy_gradient.dr_po import dataset_reset

POLICY = TabularPolicy(1, 6, 4).randomise(1.0, "reset test")


def asked(n: int = 200, **info) -> list[Prompt]:
    return [row(0, i, **info) for i in range(n)]


@pytest.mark.derived("rollout/dataset-reset")
def test_a_share_of_prompts_starts_at_every_place_of_the_demonstration() -> None:
    groups = dataset_reset(
        RolloutRequest({"policy": POLICY}, asked(400, demonstration="abcdab"), Sampling(), 0, 0), n=2, beta=0.5
    )
    begun = [int((~g.rollouts[0].mask_T).sum()) for g in groups]
    # half begin at 0 anyway, the others at 0..5 alike: 0 in 1/2 + 1/12 of 400 = 233, each other place in 33
    assert 200 < begun.count(0) < 266 and all(15 < begun.count(h) < 55 for h in range(1, 6))
    for g, h in zip(groups, begun, strict=True):
        for r in g.rollouts:
            assert r.text[:h] == "abcdab"[:h] and len(r) == 6 and (not r.truncated)
            assert not r.mask_T[:h].any() and r.mask_T[h:].all() and r.info.get("prefix", 0) == h
            again_T = POLICY.forward([r])["logp_BT"][0]
            torch.testing.assert_close(again_T[h:], r.logp_T[h:])


def test_the_prefix_earns_no_credit_and_the_outcome_falls_on_the_last_action() -> None:
    groups = dataset_reset(
        RolloutRequest({"policy": POLICY}, asked(20, demonstration="abcdab"), Sampling(), 0, 0), n=1, beta=1.0
    )
    for g in groups:
        g.rollouts[0].reward = 1.0
    _, batch = assemble(groups)
    assert float(batch["reward_BT"][:, -1].sum()) == 20.0
    assert batch.lengths_B.tolist() == [6.0 - g.rollouts[0].info.get("prefix", 0) for g in groups]


def test_starts_from_the_prompt_alone() -> None:
    for prompts, beta in ((asked(30, demonstration="abcdab"), 0.0), (asked(30), 1.0)):
        groups = dataset_reset(RolloutRequest({"policy": POLICY}, prompts, Sampling(), 0, 0), n=1, beta=beta)
        assert all(g.rollouts[0].mask_T.all() for g in groups)
    with pytest.raises(UserError, match="0 to 1"):
        dataset_reset(RolloutRequest({"policy": POLICY}, asked(1), Sampling(), 0, 0), beta=1.5)


def test_a_language_policy_starts_from_a_prefix() -> None:
    p = load_model("pocket", "cpu")
    prompts = [Prompt.text(f"q{i}", "2+3=", "5", demonstration="<think>2+3=5</think>5") for i in range(4)]
    groups = dataset_reset(RolloutRequest({"policy": p}, prompts, Sampling(max_tokens=12), 0, 0), n=2, beta=1.0)
    assert any(not r.mask_T.all() for g in groups for r in g.rollouts)
    for r in (r for g in groups for r in g.rollouts):
        own = r.mask_T
        torch.testing.assert_close(p.forward([r])["logp_BT"][0, : len(r)][own], r.logp_T[own], atol=1e-4, rtol=1e-4)
        assert int(own.sum()) >= 1 and len(r) <= 12
