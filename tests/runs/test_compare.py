"""Comparison: same prompts, same budget; the table and the picture are there, bad input is answered."""

import json

import pytest

from posttrain.core.config import Config
from posttrain.core.errors import UserError
from posttrain.core.method import find_method
from posttrain.core.sampling import Sampling
from posttrain.evals.intervals import paired, student
from posttrain.runs.compare import Comparison, _row, comparable, compare, own_settings
from posttrain.runs.compare_runs import compare_runs

SMALL = Config(prompts=2, num_generations=2, eval_problems=6, think=False, sampling=Sampling(max_tokens=6))


def test_two_methods_on_a_school_task(tmp_path):
    made = compare(["grpo", "rloo"], "strings", seeds=2, steps=2, config=SMALL, picture=tmp_path / "c.png")
    assert (tmp_path / "c.png").stat().st_size > 1000
    assert [r.method for r in made.rows] == ["grpo", "rloo"] and all(len(r.accuracy) == 2 for r in made.rows)
    assert made.rows[0].curve[0] == made.rows[1].curve[0]  # the first step is the same prompts and the same policy
    assert "ahead of grpo" in str(made) and made.to_dict()["seeds"] == 2


@pytest.mark.parametrize(
    ("methods", "says"),
    [
        (["grpo"], "at least two"),
        (["grpo", "grpo"], "different"),
        (["grpo", "rlo"], "rloo"),
        (["grpo", "dpo"], "learns from written pairs, which a task does not have; use online-dpo"),
        (["grpo", "par"], "par is a plan of several phases"),
        (["grpo", "reward-model"], "trains a reward model"),
        (["grpo", "topr(rollout='logged')"], "learns from logged answers"),
    ],
)
def test_bad_input(methods, says):
    with pytest.raises(UserError, match=says):
        compare(methods, "strings", seeds=2, steps=1, config=SMALL)


def test_answers_a_prompt_may_be_said():
    assert comparable("grpo", 3).rollout.defaults()["n"] == 3 and comparable("grpo").rollout.defaults()["n"] == 8
    assert comparable("sft", 3).rollout.name == "demonstrations"  # has no number of answers to set


def test_intervals_are_those_of_claims():
    """Three seeds that are 0.1, 0.2 and 0.3 ahead: a bootstrap would call that clear, Student t of so few does not."""
    row = _row("rloo", [0.5, 0.7, 0.9], [0.4, 0.5, 0.6], [])
    assert (row.low, row.high) == student([0.5, 0.7, 0.9])
    assert (row.ahead_low, row.ahead_high) == pytest.approx(paired([0.1, 0.2, 0.3]))
    first = _row("grpo", [0.5, 0.6], [0.5, 0.6], [])
    same = _row("rloo", [0.6, 0.7], [0.5, 0.6], [])
    assert "+10.0% on every seed\nno clear difference" in str(Comparison("t", "pocket", 1, 2, 0.0, [first, same]))
    assert Comparison("t", "pocket", 1, 2, 0.0, [same]).to_dict()["rows"][0]["ahead_low"] is None


def test_a_method_has_its_own_settings_here_too():
    made = own_settings(find_method("prorl"), SMALL)
    assert (made.sampling.temperature, made.eval_every, made.sampling.max_tokens) == (1.2, 10, 6)
    assert own_settings(find_method("grpo"), SMALL).sampling.temperature == 1.0
    with pytest.raises(UserError, match="--critic-lr is for a method with a critic"):
        own_settings(find_method("grpo"), Config(critic_lr=1e-3))


@pytest.mark.parametrize(
    "told",
    [
        {"name": "accuracy", "prompts": ["a"], "before": [0.0], "after": [[1.0]]},
        {"name": "accuracy", "prompts": ["a", "b"], "before": [0.0], "after": [1.0]},
        {"name": "accuracy", "prompts": 3, "before": [0.0], "after": [1.0]},
    ],
)
def test_damaged_figures_of_a_run_are_a_sentence(tmp_path, told):
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "held_out.json").write_text(json.dumps(told))
    with pytest.raises(UserError, match=r"held_out.json is damaged: .* delete it to compare without it"):
        compare_runs([tmp_path / "a", tmp_path / "b"])
