"""DR-IRL: rounds of a reward learned against the policy's own answers, a model for each category, credit by hardness."""

from __future__ import annotations

import pytest
import torch

from posttrain.advantages.grpo import grpo
from posttrain.core.batch import Batch
from posttrain.core.errors import UserError
from posttrain.core.registry import find
from posttrain.rewards.scorers.reward_model import RewardModel
from posttrain.systems.reward_shaping_safety.dr_irl import hardness, responsiveness
from tests.wiring.spies import ROWS, traced

DATA = [r | {"category": "even" if i % 2 else "odd"} for i, r in enumerate(ROWS)]
NAME = "dr-irl(rounds=2,steps=1,categories='odd,even')"


def test_rounds_of_reward_and_policy() -> None:
    trace = traced(NAME, rows=DATA, num_generations=4, prompts=4)
    one = ["compare.{0}", "reward-odd.{0}", "reward-even.{0}", "grpo-s.{0}"]
    assert trace.parts == ["policy->start", *(x.format(i) for i in (1, 2) for x in one)]
    policy = trace.of("policy")
    compared = [d for d in trace.samples if len(d.prompts) > 4]
    assert [d.weights for d in compared] == [policy[0].before, policy[0].after], "each round asks the policy as it is"
    for round in (1, 2):
        for name in ("odd", "even"):
            rows = [r for u in trace.of(f"reward-{name}", f"reward-{name}.{round}") for r in u.rows]
            assert {r.text for r in rows} & {r["answer"] for r in DATA if r["category"] == name}
    first, second = (trace.of("reward-odd", f"reward-odd.{i}") for i in (1, 2))
    assert second[0].before == first[-1].after, "the reward model is taught further"
    assert policy[1].reference == policy[0].before
    for update in policy:
        batch = Batch(**{k: v for k, v in update.batch.items() if k != "adv_BT"})
        scale = (hardness(batch) * responsiveness(batch, 1.0)).unsqueeze(-1)
        plain = grpo(batch.but(reward_BT=update.batch["reward_BT"]))
        torch.testing.assert_close(update.batch["adv_BT"], plain * scale, atol=1e-5, rtol=1e-4)
        assert {float(x) for x in update.batch["reward:category_B"]} <= {0.0, 1.0}
        assert float(scale.std()) > 0, "prompts are not equally hard"
    paid = [r for s in trace.steps if s.phase == "grpo-s.2" for r in s.rollouts]
    assert {r.prompt.info["category"] for r in paid} == {"odd", "even"}
    for r in paid:
        (due,) = RewardModel(trace.roles[f"reward-{r.prompt.info['category']}"]).scores([r]).tolist()
        assert r.reward == pytest.approx(due, rel=1e-3, abs=1e-4), "by the model of its own category"


def test_without_scaling_the_credit_is_grpos() -> None:
    trace = traced("dr-irl(rounds=1,steps=1,scaled=False)", rows=DATA, num_generations=4, prompts=4)
    assert trace.parts == ["policy->start", "compare.1", "reward.1", "grpo-s.1"], "the reward is learned all the same"
    (update,) = trace.of("policy")
    batch = Batch(**{k: v for k, v in update.batch.items() if k != "adv_BT"})
    torch.testing.assert_close(update.batch["adv_BT"], grpo(batch), atol=1e-5, rtol=1e-4)


def test_gaps_are_looked_at_category_by_category() -> None:
    # category 0: gaps 0 and 0, m = 1.  category 1: gaps 0, 0, 3, mean 1, (3 - 1)^2 > 1 is out, (0 - 1)^2 = 1 stays: near mean 0,
    # m = sigmoid(0) / sigmoid(1) = .5 / .731059 = .683940
    batch = Batch(
        mask_BT=torch.ones(5, 1), reward_BT=torch.tensor([[1.0], [1.0], [1.0], [1.0], [-2.0]]),
        **{"reward:demonstration_B": torch.ones(5), "reward:category_B": torch.tensor([0.0, 0.0, 1.0, 1.0, 1.0])},
    )  # fmt: skip
    assert responsiveness(batch, 1.0).tolist() == pytest.approx([1.0, 1.0, 0.68394, 0.68394, 0.68394], abs=1e-5)


def test_what_is_missing_is_said() -> None:
    with pytest.raises(UserError, match="category='even'"):
        traced("dr-irl(rounds=1,steps=1,categories='odd')", rows=DATA)
    with pytest.raises(UserError, match="has no demonstration"):
        traced("dr-irl(rounds=1,steps=1)", rows=[{"question": r["question"]} for r in ROWS])
    with pytest.raises(UserError, match="does not use --reward"):
        traced(NAME, rows=DATA, reward=lambda prompt, text: 1.0)


def test_the_width_of_near_gaps_is_an_option() -> None:
    *_, learn = find("dr-irl(tau=0.5)", "plan")().phases()
    assert learn.method.advantage.defaults()["tau"] == 0.5
