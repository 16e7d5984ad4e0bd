"""Who pays where a plan trains a reward model or a judge first, and in which units: SALSA, DR-PO, summarize-hf, Pairwise-RL."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from posttrain.rewards.scorers.policy_judge import PolicyJudge
from posttrain.rewards.scorers.reward_model import RewardModel
from tests.wiring import spies
from tests.wiring.spies import traced
from tests.wiring.trace import Trace

STORIES = [{"prompt": f"tell {i}", "completion": f"a tale of the {i} men"} for i in range(24)]


@pytest.fixture
def pairs(tmp_path: Path) -> str:
    file = tmp_path / "pairs.jsonl"
    rows = [{"prompt": f"tell {i}", "chosen": "good", "rejected": "bad"} for i in range(24)]
    file.write_text("".join(json.dumps(r) + "\n" for r in rows))
    return str(file)


def paid(trace: Trace) -> list[Any]:
    return [r for s in trace.steps if s.phase == "ppo" for r in s.rollouts]


@pytest.mark.parametrize("name", ["salsa", "dr-po", "summarize-hf"])
def test_scores_are_in_deviations_from_what_people_wrote(name: str, pairs: str) -> None:
    trace = traced(f"{name}(pairs={pairs!r}, warmup=0.1, epochs=0.1)", rows=STORIES)
    model, note = RewardModel(trace.roles["reward_model"]), trace.summary["reward_model"]
    written = {r.prompt.id: r for s in trace.steps if s.phase == "reward-model" for r in s.rollouts if r.text == "good"}
    raw = model.scores(list(written.values()))
    assert note["mean"] == pytest.approx(float(raw.mean()), abs=1e-4) and abs(note["std"] - 1) > 0.1
    assert note["std"] == pytest.approx(float(raw.std(correction=0)), abs=1e-4)
    made = paid(trace)
    due = (model.scores(made) - note["mean"]) / note["std"]
    assert [r.reward for r in made] == pytest.approx(due.tolist(), rel=1e-3, abs=1e-3)


def test_salsa_is_held_to_the_middle_of_both_at_its_price() -> None:
    begun: dict[str, torch.Tensor] = {}

    def look(prompt: Any, text: str) -> float:
        now = spies._ACTIVE[-1]
        if now.now[0] == "ppo" and not begun:  # before the first update
            begun.update({k: x.clone() for k, x in now.roles["policy"].model.state_dict().items()})
        return float(len(text))

    trace = traced("salsa(warmup=0.3, epochs=0.1)", rows=STORIES, reward=look)
    other = trace.roles["other"].model.state_dict()
    held = trace.phases[-1].loop.learner.reference.policy.model.state_dict()
    assert any((begun[k] - other[k]).abs().max() > 1e-3 for k in begun), "two models, not one"
    for k in begun:
        torch.testing.assert_close(held[k], (begun[k] + other[k]) / 2)
    batch = trace.of(phase="ppo")[0].batch
    away_B = ((batch["old_logp_BT"] - batch["ref_logp_BT"]) * batch["mask_BT"]).sum(-1)
    earned_B = torch.tensor([float(len(r.text)) for r in trace.of(phase="ppo")[0].rows])
    assert away_B.abs().max() > 0.05, "it begins away from the soup, so that the first answers are charged"
    torch.testing.assert_close(batch["reward_BT"].sum(-1), earned_B - 0.02 * away_B, rtol=1e-4, atol=1e-5)


def chance(judge: PolicyJudge, r: Any, orders: str) -> float:
    """P(the answer beats its anchor) as the judge says it: in both places, or in the first alone."""
    (first,), (second,) = (judge.prefer([r.prompt], [a], [b]) for a, b in ((r.text, "good"), ("good", r.text)))
    return (first + 1 - second) / 2 if orders == "both" else first


@pytest.mark.parametrize("orders", ["both", "as given"])
def test_pairwise_rl_is_paid_by_the_judge_that_it_trained(orders: str, pairs: str) -> None:
    trace = traced(f"pairwise-rl(pairs={pairs!r}, epochs=0.1, orders={orders!r})", rows="")
    made = paid(trace)
    taught, untaught = (
        [chance(PolicyJudge(trace.roles[role]), r, orders) for r in made] for role in ("judge", "start")
    )
    assert max(abs(a - b) for a, b in zip(taught, untaught, strict=True)) > 1e-3, "the lessons have changed its mind"
    assert [r.reward for r in made] == pytest.approx(taught, abs=1e-5)
