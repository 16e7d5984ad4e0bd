"""Mixed preference optimisation on the registered plan: who is easy, who learns from whom, what PPO is held to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import posttrain as pt
from posttrain.core.registry import find
from posttrain.systems.preference.mixed_preference_opt import easy_of
from tests.wiring.spies import traced

PAIRS = [{"prompt": f"tell {i}", "chosen": "good" * (1 + i % 3), "rejected": "bad"} for i in range(16)]


@pytest.mark.derived("plan/mixed-preference-opt")
def test_easy_pairs_are_those_with_a_wide_gap_either_way() -> None:
    gap_P = torch.tensor([0.2, -3.0, 1.0, float("nan")])
    # the widest half of 4: |-3| and |1|; above 0.1: all but the one without a gap
    assert easy_of(gap_P, easy=0.5).tolist() == [False, True, True, False]
    assert easy_of(gap_P, least=0.1).tolist() == [True, True, True, False]
    assert easy_of(gap_P, least=2.0).tolist() == [False, True, False, False]


def prompts(trace: Any, phase: str) -> set[str]:
    return {r.prompt.last for s in trace.steps if s.phase == phase for r in s.rollouts}


def test_the_easy_half_is_learned_from_the_hard_half_is_answered() -> None:
    trace = traced("mixed-preference-opt(epochs=1)", rows=PAIRS, num_generations=2)
    assert trace.parts == ["policy->start", "reward-model", "split", "dpo", "policy->dpo", "ppo", "measured"]
    model = pt_margins(trace)
    easy = set(sorted(model, key=model.get, reverse=True)[: trace.summary["split"]["first"]])
    assert prompts(trace, "dpo") == easy and prompts(trace, "ppo") == set(model) - easy
    assert {r.text for u in trace.of(phase="dpo") for r in u.rows} <= {
        x for p in PAIRS for x in (p["chosen"], p["rejected"])
    }
    start, ended = trace.of(phase="dpo")[0].before, trace.of(phase="dpo")[-1].after
    assert {u.reference for u in trace.of(phase="dpo")} == {start}
    first = trace.of(phase="ppo")[0]
    assert first.before == ended and {u.reference for u in trace.of(phase="ppo")} == {ended} != {start}
    paid = [r for s in trace.steps if s.phase == "ppo" for r in s.rollouts]
    assert all("reward_model" in r.rewards for r in paid)
    assert float((first.batch["old_value_BT"] * first.batch["mask_BT"]).abs().sum()) > 0, (
        "the critic begins as the reward model"
    )
    assert trace.phases[-1].method.shaping[0].params["coef"] == 0.05
    assert set(trace.summary["measured"]) == {"start", "dpo", "ppo"}
    assert {p.name: p.pace for p in find("mixed-preference-opt", "plan").fn().phases()} == {
        "reward-model": 1.0, "dpo": 0.1, "ppo": 1.0,
    }  # fmt: skip
    assert trace.summary["split"]["gap_first"] > trace.summary["split"]["gap_second"]


def pt_margins(trace: Any) -> dict[str, float]:
    """The size of the gap of every training pair, by its prompt."""
    from posttrain.evals.reward_model import margins
    from posttrain.rewards.scorers.reward_model import RewardModel

    env = trace.phases[0].loop.env
    pairs = [env.prompt(i) for i in range(env.size)]
    found = margins(RewardModel(trace.roles["reward_model"]), pairs).abs().tolist()
    return {p.last: x for p, x in zip(pairs, found, strict=True)}


def test_controls_swap_the_halves_and_keep_the_start() -> None:
    plain = traced("mixed-preference-opt(epochs=1)", rows=PAIRS, num_generations=2)
    other = traced("mixed-preference-opt(order='hard first', reference='start')", rows=PAIRS, num_generations=2)
    assert prompts(other, "dpo") == prompts(plain, "ppo") and prompts(other, "ppo") == prompts(plain, "dpo")
    assert {u.reference for u in other.of(phase="ppo")} == {other.of(phase="dpo")[0].before}
    drawn = traced("mixed-preference-opt(order='random')", rows=PAIRS, num_generations=2)
    assert drawn.summary["split"]["first"] == plain.summary["split"]["first"] and prompts(drawn, "dpo") != prompts(
        plain, "dpo"
    )


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("easy=1.5", "easy is a share between 0 and 1"),
        ("order='easyfirst'", "easy first"),
        ("reference='dp'", "dpo"),
        ("least=1000.0", "0 of .* pairs are easy, .* choose another --plan.least"),
    ],
)
def test_what_cannot_be_split_is_a_sentence(options: str, told: str) -> None:
    with pytest.raises(pt.UserError, match=told):
        traced(f"mixed-preference-opt({options})", rows=PAIRS)


def test_rows_without_pairs_are_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"question": "1+1", "answer": "2"}\n')
    with pytest.raises(pt.UserError, match="chosen"):
        pt.run(method="mixed-preference-opt", model="no/such/folder", task=str(file))


def test_as_many_pairs_are_easy_as_is_told() -> None:
    trace = traced("mixed-preference-opt(easy=0.25, epochs=0.2)", rows=PAIRS, num_generations=2)
    first, second = (trace.summary["split"][half] for half in ("first", "second"))
    assert first == round(0.25 * (first + second)) > 0
