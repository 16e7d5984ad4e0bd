"""Reward-robust RLHF: a reward model of the pairs, heads on it, and PPO on the surest head mixed with the worst."""

from __future__ import annotations

import pytest
import torch

from posttrain.core.errors import UserError
from posttrain.systems.reward_shaping_safety.reward_robust_rlhf import BayesianHeads, last_states
from tests.wiring.spies import ROWS, traced

PAIRS = [{"prompt": r["question"], "chosen": r["answer"], "rejected": "no"} for r in ROWS]


def test_the_nominal_stands_apart_from_the_members() -> None:
    trace = traced(
        "reward-robust-rlhf(heads=3,steps=2,epochs=1,lam=0.7,beta=0.0)", rows=PAIRS, num_generations=2, prompts=8
    )
    assert [(p.name, p.role) for p in trace.phases] == [("reward-model", "reward-model"), ("ppo", "policy")]
    assert trace.of("policy")[0].before == trace.of("reward-model")[0].before, "both start at the given model"
    made = trace.of("policy")[0]
    kept = [r for g in next(s for s in trace.steps if s.phase == "ppo").kept for r in g.rollouts]
    for row, r in enumerate(kept):
        heads = [r.rewards[f"head{k}"] for k in range(3)]
        assert r.reward in [pytest.approx(x, abs=1e-5) for x in heads], "the nominal reward is that of one head"
        paid = float((made.batch["reward_BT"][row]).sum())
        assert paid == pytest.approx(0.7 * r.reward + 0.3 * min(heads), abs=1e-4)
    assert len({round(r.rewards["head0"] - r.rewards["head1"], 6) for r in kept}) > 1, "heads differ"


def test_heads_give_the_scores_they_were_fitted_to() -> None:
    trace = traced("reward-robust-rlhf(heads=2,steps=1,epochs=1)", rows=PAIRS, num_generations=2, prompts=8)
    judge = trace.roles["reward-model"]
    from posttrain.core.types import Group, Prompt
    from posttrain.rewards.scorers.reward_model import RewardModel

    written = [judge.written(Prompt.text(str(i), f"{i}+1=?"), text) for i in range(8) for text in ("no", f"{i} yes")]
    made = BayesianHeads(judge, written, heads=2)
    made.score([Group(r.prompt, [r]) for r in written])
    target = RewardModel(judge).raw(written)
    told = torch.tensor([r.reward for r in written])
    assert float(torch.corrcoef(torch.stack([told, target]))[0, 1]) > 0.9
    assert last_states(judge, written).shape == (16, 16)


def test_a_reward_beside_the_learned_one_is_refused() -> None:
    with pytest.raises(UserError, match="take --reward away"):
        traced("reward-robust-rlhf(steps=1,epochs=1)", rows=PAIRS, reward=lambda prompt, text: 1.0, prompts=8)
