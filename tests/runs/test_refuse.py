"""Settings that could only be silently wrong are refused before anything is loaded."""

from __future__ import annotations

import pytest

from posttrain.core.config import Config, from_dict
from posttrain.core.errors import UserError
from posttrain.core.method import find_method
from posttrain.core.registry import parts
from posttrain.core.sampling import Sampling
from posttrain.runs.refuse import refuse
from tests.cli.conftest import call


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["--loss", "dpo", "--num-generations", "2"], "nothing here says which of two is better"),
        (["--loss", "dpo"], "--select best_worst"),
        (["--num-generations", "1"], "there is 1 per prompt"),
        (["--sampling.temperature", "0"], "at temperature 0 all answers to a prompt are the same"),
        (["--terms", "value_loss"], "value-loss reads return_BT, which no part of grpo provides"),
        (["--loss", "bradley_terry"], "says which of two is better"),
    ],
)
def test_the_command_is_refused_with_a_sentence(argv: list[str], told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def loaded(*args: object, **kwargs: object) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr("posttrain.runs.start.load_policy", loaded)
    said = call("run", "grpo", *argv)
    assert said.code == 2 and told in said.err and "Traceback" not in said.err


def test_every_registered_method_can_run_as_it_is() -> None:
    for part in parts("method"):
        method = find_method(part.name)
        refuse(from_dict(Config, method.own({})), method)  # with the settings that are the method's own


def test_an_advantage_without_a_group_needs_no_siblings() -> None:
    reinforce = find_method("reinforce")
    refuse(Config(num_generations=1, sampling=Sampling(temperature=1.0)), reinforce)


def test_ranked_answers_are_pairs() -> None:
    refuse(Config(), find_method("grpo").but(loss="dpo", select="best_worst", aggregate="token_mean"))
    with pytest.raises(UserError, match="in pairs"):
        refuse(Config(), find_method("grpo").but(loss="dpo"))
