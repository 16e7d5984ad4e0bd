"""ReFT: its credit and critic's loss by hand, which questions it asks, and the whole of it on the embedded model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from posttrain.api import run_plan
from posttrain.core.batch import Batch
from posttrain.core.config import Config
from posttrain.core.errors import UserError
from posttrain.core.plan import Context, Phase
from posttrain.core.registry import find
from posttrain.core.sampling import Sampling
from posttrain.core.types import Prompt
from posttrain.environments.task import task
from posttrain.environments.worked import Worked, with_steps
from posttrain.methods.ppo import ppo
from posttrain.runs.run import Run
from posttrain.systems.policy_gradient.reft import reft, reinforced


def two_tokens() -> Batch:
    """One right answer of two tokens, rewarded at the end; the policy is 0.5 above and then 1 below the reference."""
    streams = {
        "old_logp_BT": [-1.0, -2.0], "ref_logp_BT": [-1.5, -1.0], "reward_BT": [0.0, 1.0], "old_value_BT": [0.2, 0.4],
        "value_BT": [0.3, 0.4], "logp_BT": [-1.0, -2.0], "mask_BT": [1.0, 1.0],
    }  # fmt: skip
    return Batch(**{k: torch.tensor([x], dtype=torch.float64) for k, x in streams.items()})


def test_credit_by_hand() -> None:
    """KL in the reward: (0 - 0.05 x 0.5, 1 + 0.05 x 1) = (-0.025, 1.05). Surprises, gamma 1: 1.05 - 0.4 = 0.65 and
    -0.025 + 0.4 - 0.2 = 0.175; credit, lambda 0.95: 0.65 and 0.175 + 0.95 x 0.65 = 0.7925; returns are 1.05 and 0.9925."""
    method, batch = reinforced(), two_tokens()
    (shaping,) = method.shaping
    reward_BT = shaping.live()(batch)
    assert reward_BT[0].tolist() == pytest.approx([-0.025, 1.05])
    adv_BT, return_BT = method.advantage.but(whiten=False)(batch.but(reward_BT=reward_BT))
    assert adv_BT[0].tolist() == pytest.approx([0.7925, 0.65])
    assert return_BT[0].tolist() == pytest.approx([0.9925, 1.05])


def test_the_critics_loss_by_hand() -> None:
    """5/2 (v - R)^2: 2.5 x 0.6925^2 = 1.198890625 and 2.5 x 0.65^2 = 1.05625, gradient 5 (v - R): -3.4625 and -3.25.
    Both values are within 0.2 of the old ones, so nothing is clipped."""
    (term,) = reinforced().terms
    value_BT = two_tokens()["value_BT"].requires_grad_()
    batch = two_tokens().but(value_BT=value_BT, return_BT=torch.tensor([[0.9925, 1.05]], dtype=torch.float64))
    loss_BT = term(batch)
    assert loss_BT[0].tolist() == pytest.approx([1.198890625, 1.05625])
    loss_BT.sum().backward()
    assert value_BT.grad[0].tolist() == pytest.approx([-3.4625, -3.25])


def test_the_difference_to_ppo() -> None:
    base, other = ppo.describe(), reinforced(beta=0.01).describe()
    assert {k for k in base if base[k] != other[k]} == {"name", "shaping", "terms", "rollout", "minibatches"}
    assert set(other) - set(base) == {"critic"} and other["critic"]["start"] == "shared"
    assert other["shaping"][0]["coef"] == 0.01 and reinforced().describe()["shaping"][0]["coef"] == 0.05


def test_worked_answers() -> None:
    plain = Prompt.text("p", "2+3?", "5", steps="2+3=5", think=True)
    assert with_steps(plain).info["demonstration"] == "<think>2+3=5</think>5"
    assert with_steps(plain).answer == "5" and "demonstration" not in plain.info
    for other in ({"steps": ""}, {"steps": "2+3=5", "think": False}, {"steps": "s", "demonstration": "mine"}):
        prompt = Prompt.text("p", "2+3?", "5", **other)
        assert with_steps(prompt) is prompt  # nothing to add: the gold answer, or the one it brought, is imitated


def test_the_same_few_questions_for_training_and_none_of_them_for_test() -> None:
    env = task("word_problems")
    worked = Worked(env, 3)
    assert worked.size == 3
    asked = [worked.prompt(i) for i in range(5)]
    assert [p.id for p in asked] == [env.prompt(i % 3).id for i in range(5)]
    for p in asked:
        assert p.info["demonstration"] == f"<think>{p.info['steps']}</think>{p.answer}"
        assert worked.grade(p, p.info["demonstration"]) == 1.0
    assert worked.prompt(0, "test") == env.prompt(0, "test") and "demonstration" not in worked.prompt(0, "test").info


def names(**options: Any) -> list[str]:
    return [part.name for part in reft(**options).walk(Context(None, None, {}))]


def test_what_follows_what() -> None:
    assert names() == ["sft", "accuracy-of-sft", "ppo"]
    assert names(warmup=0) == ["ppo"]
    phases = {p.name: p for p in reft(questions=32, warmup=2, epochs=9).parts if isinstance(p, Phase)}
    context = Context(None, Config(task="word_problems", prompts=16), {})
    assert [p.steps(context) for p in phases.values() if callable(p.steps)] == [4, 18]
    assert phases["sft"].method.name == "sft" and phases["ppo"].method == reinforced()
    assert phases["ppo"].role == phases["sft"].role and not phases["ppo"].reference  # held near what SFT left


def test_options_that_cannot_work() -> None:
    with pytest.raises(UserError, match="questions=-1"):
        reft(questions=-1)
    with pytest.raises(UserError, match="epochs=0"):
        reft(epochs=0)


def test_the_whole_of_it(tmp_path: Path) -> None:
    """Few questions are asked again and again, and the reward is partial credit."""
    settings = Config(name="r", task="word_problems", prompts=4, eval_problems=4, sampling=Sampling(max_tokens=48))
    made = find("reft(questions=6,warmup=1,epochs=2,credit=0.25)", "plan")()
    summary = run_plan(made, settings, tmp_path)
    assert {"accuracy_before", "accuracy_of_sft", "accuracy_after"} <= summary.keys()
    store = Run.open(tmp_path / "r").store
    asked = {row["prompt_id"].partition("#")[0] for row in store.rollouts(phase="ppo")}
    assert asked <= {task("word_problems").prompt(i).id for i in range(6)}
    rewards = {row["reward"] for row in store.rollouts(phase="ppo")}
    assert rewards <= {0.0, 0.25, 1.0} and rewards & {0.25, 1.0}
