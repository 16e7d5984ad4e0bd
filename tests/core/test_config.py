"""Settings: few, checked where they are made, unknown keys answered with the nearest."""

import pytest

from posttrain.core.config import Config, count_keys, from_dict, to_dict
from posttrain.core.errors import UserError


def test_round_trip():
    config = Config(task="counting", steps=3)
    assert from_dict(Config, to_dict(config)) == config


def test_unknown_keys_fail_with_the_nearest():
    with pytest.raises(UserError, match="no setting named stpes; did you mean steps"):
        from_dict(Config, {"stpes": 3})
    with pytest.raises(UserError, match=r"no setting named sampling.temprature; did you mean sampling.temperature"):
        from_dict(Config, {"sampling": {"temprature": 1.0}})


@pytest.mark.parametrize(
    "bad",
    [
        {"steps": -1},
        {"prompts": 0},
        {"num_generations": 0},
        {"lr": 0.0},
        {"lr": -1.0},
        {"schedule": "cosinus"},
        {"layout": "ragged"},
    ],
)
def test_impossible_values_are_refused_with_the_value(bad):
    (value,) = bad.values()
    with pytest.raises(UserError, match=str(value)):
        Config(**bad)


def test_fewer_than_a_hundred_settings():
    assert 10 < count_keys() < 100
