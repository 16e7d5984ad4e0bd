"""Rewards by name and weight."""

import pytest

from posttrain.core.errors import UserError
from posttrain.core.types import Group
from posttrain.environments.school import school
from posttrain.rewards.runtime.scorer import Prescored
from posttrain.rewards.scorers.spec import apart, build_scorer, split_sum

ENV = school("arithmetic", level=1, think=False)


def test_weights_and_names():
    scorer = build_scorer("task + 0.25*length(target=3, unit='words') + -1e-1*repetition", ENV)
    assert scorer.weights == {"task": 1.0, "length(target=3, unit='words')": 0.25, "repetition": -0.1}


def test_a_plus_inside_a_parameter_is_not_a_sum():
    assert split_sum("regex(pattern='a+b') + task") == ["regex(pattern='a+b')", "task"]


def test_empty_means_the_task_itself():
    prompt = ENV.prompt(0)
    totals, _ = build_scorer("", ENV).texts([prompt, prompt], [prompt.answer, "no"])
    assert totals == [1.0, 0.0]


@pytest.mark.parametrize("bad", ["0.5*", "nmueric", "task ++ format", "task * 2"])
def test_bad_specs_say_what_to_write(bad):
    with pytest.raises(UserError, match=r"cannot read|did you mean"):
        build_scorer(bad, ENV)


def test_a_function_in_a_file_by_its_name(tmp_path):
    file = tmp_path / "reward_of_mine.py"
    file.write_text("def long(prompt, text):\n    return float(len(text))\n")
    scorer = build_scorer(f"task + 0.5*{file}:long", ENV)
    prompt = ENV.prompt(0)
    right = len(prompt.answer)
    assert scorer.weights == {"task": 1.0, "long": 0.5}
    assert scorer.texts([prompt], [prompt.answer])[0] == [1 + 0.5 * right]
    with pytest.raises(UserError, match=r"no function in .*reward_of_mine.py named 'lnog'; did you mean 'long'"):
        build_scorer(f"{file}:lnog", ENV)
    with pytest.raises(UserError, match="there is no such file"):
        build_scorer("nowhere.py:long", ENV)


def test_given_scores_nothing():
    assert Prescored().score([Group(ENV.prompt(0), [])]).n == 0


def test_two_of_one_short_name_are_called_as_they_were_typed():
    made = apart([("rm", 1, 0.5), ("task", 2, 1.0), ("rm", 3, 0.5)], ["a/rm", "task", "'b c/rm'"])
    assert made == [("a/rm", 1, 0.5), ("task", 2, 1.0), ("b c/rm", 3, 0.5)]
    with pytest.raises(UserError, match="two rewards have the same name"):
        build_scorer("task + task", ENV)
